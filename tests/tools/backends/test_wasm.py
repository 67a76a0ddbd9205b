"""Tools that are modules: the contract with them, what becomes of each answer, and who may declare which."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel
from foliot.client.errors import error_of
from foliot.engine.definition.backends import Backends
from foliot.engine.definition.freeze import tool_rule
from foliot.engine.definition.grants import OperatorGrants
from foliot.errors import Denied, FoliotError, NotHere
from foliot.kernel.messages import ToolResult
from foliot.resources.validate import validate_document
from foliot.sandbox import wasm as engine
from foliot.settings.settings import load_settings
from foliot.store.base import Put
from foliot.tools.backends.wasm import WasmIsolation, WasmTool
from foliot.tools.base import (
    AuthSpec,
    Invocation,
    Tool,
    ToolDefinition,
    ToolDenied,
    ToolError,
    ToolIsolationMissing,
    ToolPolicyInvalid,
)
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.tools.secrets.masking import Masker
from foliot.tools.secrets.secrets import EnvironmentSecrets, Secrets
from tests.sandbox.modules import ECHO, FOREVER, answering, stored, system_module

CALL = Invocation("run-1", "c1", "resize", {"width": 3}, "key")
OK = '{"contract_version":"v1","status":"ok","output":"done"}'


@pytest.fixture
async def isolation() -> AsyncIterator[WasmIsolation]:
    made = WasmIsolation()
    yield made
    await made.close()


def tool(isolation: WasmIsolation, folder: Path, code: bytes, **more: Any) -> WasmTool:
    path, digest = stored(folder, code)
    fields = {key: more.pop(key) for key in ("timeout", "auth", "risk", "capabilities", "effect") if key in more}
    options = {"wasm": {"module": path, "digest": digest, **more}}
    definition = ToolDefinition("resize", type="wasm", isolation="wasm", options=options, **fields)
    isolation.check(definition)
    return WasmTool(definition, isolation)


async def called(made: Tool, **more: Any) -> ToolResult:
    return await Pipeline([made]).call(CALL, **more)


async def test_the_module_gets_the_request_of_the_contract(isolation: WasmIsolation, tmp_path: Path) -> None:
    """It echoes the request, which is no answer: what it got is in what is said of it."""
    answer = tool(isolation, tmp_path, system_module(ECHO.replace("(i32.const 1)", "(i32.const 2)")), risk="high")
    heard: list[str] = []
    with pytest.raises(ToolPolicyInvalid, match="answered nothing"):
        await answer.invoke(CALL, on_output=heard.append)
    request = json.loads("".join(heard))
    assert request.pop("request_id").startswith("wasm-resize-")
    assert request == {
        "contract_version": "v1",
        "namespace": "default",
        "tool": "resize",
        "input": '{"width":3}',
        "capabilities": [],
        "risk_level": "high",
        "runtime": {"entrypoint": "", "max_memory_bytes": 67108864, "fuel": 0, "enable_wasi": True},
        "auth": {},
        "attempt": 1,
    }


@pytest.mark.parametrize(
    ("output", "value"),
    [('"done"', "done"), ('{"width": 3}', {"width": 3}), ('""', ""), ("null", "")],
)
async def test_what_it_answers_is_the_result(
    isolation: WasmIsolation, tmp_path: Path, output: str, value: object
) -> None:
    answer = tool(isolation, tmp_path, answering(OK.replace('"done"', output)))
    assert (await answer.invoke(CALL) or "") == value


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "  ",
        "done",
        "[]",
        "{}",
        '{"status":"ok","output":"x"}',
        '{"contract_version":"v2","status":"ok"}',
        '{"contract_version":"v1"}',
        '{"contract_version":"v1","status":""}',
        '{"contract_version":"v1","status":"maybe"}',
        '{"contract_version":"v1","status":"ok"} and more',
        '{"contract_version":"v1","status":"ok","output":' + "[" * 5000 + "]" * 5000 + "}",
    ],
)
async def test_an_answer_that_breaks_the_contract_is_never_tried_again(
    isolation: WasmIsolation, tmp_path: Path, answer: str
) -> None:
    broken = tool(isolation, tmp_path, answering(answer))
    with pytest.raises(ToolPolicyInvalid, match="breaks its contract") as caught:
        await broken.invoke(CALL)
    result = (await called(broken)).error
    assert result is not None
    assert (result.code, result.retryable) == ("runtime_policy_invalid", False)
    assert caught.value.details["isolation_mode"] == "wasm"


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        ("error", None, ("execution_failed", "tool_backend_failure", True, "tool execution failed")),
        ("denied", None, ("permission_denied", "tool_permission_denied", False, "tool execution failed")),
        (" ERROR ", {"message": "no picture"}, ("execution_failed", "tool_backend_failure", True, "no picture")),
        ("error", {"retryable": False, "code": "invalid_input", "reason": "too_wide", "message": "3"},
         ("invalid_input", "too_wide", False, "3")),
        ("denied", {"reason": "not_yours", "message": "no"}, ("permission_denied", "not_yours", False, "no")),
    ],
)  # fmt: skip
async def test_what_it_says_of_a_failure_holds(
    isolation: WasmIsolation, tmp_path: Path, status: str, said: Any, expected: tuple[object, ...]
) -> None:
    answer = {"contract_version": "v1", "status": status, **({"error": said} if said else {})}
    failing = tool(isolation, tmp_path, answering(json.dumps(answer)))
    with pytest.raises(ToolError) as caught:
        await failing.invoke(CALL)
    error = caught.value
    assert (error.code, error.reason, error.retryable, error.message) == expected
    assert isinstance(error, ToolDenied) == (status == "denied")
    assert error.details["module_status"] == status.strip().lower()
    assert (error.details["tool"], error.details["contract_version"]) == ("resize", "v1")


@pytest.mark.parametrize(
    ("body", "more", "code", "retryable", "says"),
    [
        (FOREVER, {"timeout": 0.05}, "timeout", True, "out of time"),
        (FOREVER, {"fuel": 1000}, "execution_failed", False, "fuel of 1000"),
        ("(call $proc_exit (i32.const 4))", {}, "execution_failed", True, "code 4"),
        ("(unreachable)", {}, "execution_failed", True, "unreachable"),
        ("(unreachable)", {"max_memory_bytes": 65536}, "execution_failed", False, "65536 bytes of memory"),
        ("(unreachable)", {"entrypoint": "go"}, "runtime_policy_invalid", False, "no function go"),
        ("(unreachable)", {"digest": "sha256:" + "0" * 64}, "runtime_policy_invalid", False, "another file"),
    ],
    ids=["time", "fuel", "exit", "trap", "memory", "entrypoint", "digest"],
)
async def test_how_it_ended_is_told_and_certainly_had_no_effect(
    isolation: WasmIsolation, tmp_path: Path, body: str, more: dict[str, Any], code: str, retryable: bool, says: str
) -> None:
    wild = tool(isolation, tmp_path, system_module(body), **more)
    with pytest.raises(ToolError, match=says) as caught:
        await wild.invoke(CALL)
    error = caught.value
    assert (error.code, error.retryable, error.before_effect, error.unknown) == (code, retryable, True, None)


@pytest.mark.parametrize("effect", ["once", "idempotent", "read"])
async def test_a_call_that_was_out_of_time_or_cut_off_is_in_no_doubt(
    isolation: WasmIsolation, tmp_path: Path, effect: str
) -> None:
    late = tool(isolation, tmp_path, system_module(FOREVER), timeout=0.05, effect=effect)
    error = (await called(late)).error
    assert error is not None
    assert (error.code, error.before_effect, "may have" in error.message) == ("timeout", True, False)
    assert tool_rule(late.definition).effect == "read", "also after a crash there is nothing to ask"


async def test_without_wasmtime_a_run_and_a_call_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, digest = stored(tmp_path, answering(OK))
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    async with Runtime(settings=load_settings({"home": str(tmp_path / "home")}, {})) as runtime:
        document = declared({"type": "wasm", "wasm": {"module": path, "digest": digest}})
        await runtime.inside.resources.write([Put(document)])
        agent = Agent("clerk", model=ScriptedModel([{"call": {"resize": {}}}]), tools=["resize"])
        with pytest.raises(FoliotError) as run:
            await runtime.run(agent, "go")
        with pytest.raises(FoliotError) as call:
            await runtime.tools.call("resize", {}, namespace="default")
        with pytest.raises(FoliotError) as test:
            await runtime.tools.test("resize", {}, namespace="default")
    body = json.dumps({"code": call.value.code, "detail": call.value.message}).encode()
    served = error_of(call.value.http, body, where="it")
    said = {(each.code, each.exit_code, each.message) for each in (run.value, call.value, test.value, served)}
    assert said == {("isolation_unavailable", 6, run.value.message)}


async def test_what_it_said_besides_is_in_the_failure(isolation: WasmIsolation, tmp_path: Path) -> None:
    body = "(call $say (i32.const 7)) (call $write (i32.const 2) (i32.const 16) (i32.const 3)) (unreachable)"
    with pytest.raises(ToolError) as caught:
        await tool(isolation, tmp_path, system_module(body)).invoke(CALL)
    assert caught.value.details["stderr"] == "07"


async def test_a_credential_never_goes_in(isolation: WasmIsolation, tmp_path: Path) -> None:
    with pytest.raises(ToolPolicyInvalid, match="credential"):
        tool(isolation, tmp_path, answering(OK), auth=AuthSpec("bearer", "key"))


# --- declared --------------------------------------------------------------------------------------------------------


def declared(spec: dict[str, Any], *, operator: bool = True, **more: Any) -> dict[str, Any]:
    document, problems = validate_document({"kind": "Tool", "metadata": {"name": "resize"}, "spec": spec, **more})
    assert document is not None, problems
    if not operator:
        document["metadata"] |= {"uid": "u1", "declaredBy": {"user": "ann", "operator": False}}
    return document


@pytest.fixture
async def backends(request: pytest.FixtureRequest) -> AsyncIterator[Backends]:
    made = Backends(Secrets(EnvironmentSecrets({}), Masker()), None, environ={})
    yield made
    await made.close()


async def test_a_declared_module_is_called_through_every_gate(backends: Backends, tmp_path: Path) -> None:
    path, digest = stored(tmp_path, answering(OK))
    made = backends.tool(declared({"type": "wasm", "wasm": {"module": path, "digest": digest}}))
    assert made.definition.isolation == made.isolation == "wasm"
    assert (await called(made)).text == "done"
    assert "wasm" in backends.isolations.offered


async def test_a_tool_without_a_module_is_refused(backends: Backends) -> None:
    for spec in ({"type": "wasm"}, {"endpoint": "https://x.example", "runtime": {"isolation_mode": "wasm"}}):
        with pytest.raises(ToolPolicyInvalid, match="names no module"):
            backends.tool(declared(spec))


async def test_without_wasmtime_the_refusal_says_what_to_install(
    backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, digest = stored(tmp_path, answering(OK))
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    with pytest.raises(ToolIsolationMissing) as caught:
        backends.tool(declared({"type": "wasm", "wasm": {"module": path, "digest": digest}}))
    assert caught.value.hint == "pip install 'foliot-runtime[wasm]'"


@pytest.mark.parametrize(
    ("wasm", "says"),
    [
        ({"module": "x.wasm"}, "spec.wasm.digest is required"),
        ({"module": "x.wasm", "digest": "sha256:12"}, "64 hexadecimal digits"),
        ({"digest": "sha256:" + "0" * 64, "folders": {"/data": "data"}}, "absolute paths"),
        ({"digest": "sha256:" + "0" * 64, "folders": {"/data": "/srv/../etc"}}, "absolute paths"),
        ({"digest": "sha256:" + "0" * 64, "max_memory_bytes": 1}, "65536"),
        ({"digest": "sha256:" + "0" * 64, "fuel": -1}, "0"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused_at_its_field(wasm: dict[str, Any], says: str) -> None:
    given = {"kind": "Tool", "metadata": {"name": "x"}, "spec": {"type": "wasm", "wasm": wasm}}
    document, problems = validate_document(given)
    assert document is None
    assert says in " ".join(each.message for each in problems), problems


def test_only_a_tool_of_the_type_has_a_module() -> None:
    wasm = {"digest": "sha256:" + "0" * 64}
    given = {"kind": "Tool", "metadata": {"name": "x"}, "spec": {"endpoint": "https://x.example", "wasm": wasm}}
    document, problems = validate_document(given)
    assert document is None
    assert "only for spec.type=wasm" in problems[0].message


# --- granted ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A folder that is granted, with a module, a link out of it, and a folder of data; and a module beside it."""
    granted = tmp_path / "granted"
    (granted / "data").mkdir(parents=True)
    stored(granted, answering(OK), "resize.wasm")
    stored(tmp_path, answering(OK), "outside.wasm")
    (granted / "link.wasm").symlink_to(tmp_path / "outside.wasm")
    (granted / "way").symlink_to(tmp_path)
    return granted


DIGEST = "sha256:" + "0" * 64


def granted(folder: Path) -> Backends:
    grants = OperatorGrants(wasm_modules=(str(folder),))
    return Backends(Secrets(EnvironmentSecrets({}), Masker()), None, grants=grants, environ={})


@pytest.mark.parametrize(
    ("module", "folders", "field"),
    [
        ("resize.wasm", {}, None),
        ("{granted}/resize.wasm", {}, None),
        ("resize.wasm", {"/data": "{granted}/data"}, None),
        ("../outside.wasm", {}, "spec.wasm.module"),
        ("{granted}/../outside.wasm", {}, "spec.wasm.module"),
        ("/etc/hostname", {}, "spec.wasm.module"),
        ("{granted}-other/resize.wasm", {}, "spec.wasm.module"),
        ("link.wasm", {}, "spec.wasm.module"),
        ("way/outside.wasm", {}, "spec.wasm.module"),
        ("resize.wasm", {"/data": "/etc"}, "spec.wasm.folders"),
        ("resize.wasm", {"/data": "{granted}/way"}, "spec.wasm.folders"),
    ],
)
def test_others_than_the_operator_name_only_what_is_granted(
    places: Path, module: str, folders: dict[str, str], field: str | None
) -> None:
    grants = OperatorGrants(wasm_modules=(str(places),), wasm_folders=(str(places),))
    wasm = {
        "module": module.format(granted=places),
        "digest": DIGEST,
        "folders": {inside: path.format(granted=places) for inside, path in folders.items()},
    }
    document = declared({"type": "wasm", "wasm": wasm}, operator=False)
    if field is None:
        found = grants.wasm_module(document)
        assert found["module"] == str(places / "resize.wasm")
        return
    with pytest.raises(Denied) as caught:
        grants.wasm_module(document)
    assert caught.value.details["field"] == field
    assert "ask the operator" in (caught.value.hint or "")


async def test_without_a_grant_nothing_is_named_and_nothing_looked_at(places: Path) -> None:
    for module in ("resize.wasm", str(places / "resize.wasm"), "", "/nowhere/at/all.wasm"):
        document = declared({"type": "wasm", "wasm": {"module": module, "digest": DIGEST}}, operator=False)
        with pytest.raises(Denied) as caught:
            OperatorGrants().check_wasm(document)
        assert "may not be the module" in caught.value.message
        backends = Backends(Secrets(EnvironmentSecrets({}), Masker()), None, environ={})
        with pytest.raises(ToolDenied):
            backends.tool(document)
        await backends.close()


async def test_a_module_can_be_named_by_its_digest_alone(places: Path) -> None:
    code = answering(OK)
    _, digest = stored(places, code)
    stored(places, code, f"{digest.removeprefix('sha256:')}.wasm")
    backends = Backends(
        Secrets(EnvironmentSecrets({}), Masker()), None, grants=OperatorGrants(wasm_modules=(str(places),)), environ={}
    )
    made = backends.tool(declared({"type": "wasm", "wasm": {"digest": digest}}, operator=False))
    assert (await called(made)).text == "done"
    await backends.close()


def test_a_module_that_is_elsewhere_makes_the_run_wait_for_a_worker_that_has_it(places: Path) -> None:
    document = declared({"type": "wasm", "wasm": {"module": "other.wasm", "digest": DIGEST}}, operator=False)
    with pytest.raises(NotHere) as caught:
        OperatorGrants(wasm_modules=(str(places),)).wasm_module(document)
    assert caught.value.details["lacks"] == "module other.wasm"


async def test_a_grant_that_is_taken_back_holds_at_once(places: Path) -> None:
    document = declared({"type": "wasm", "wasm": {"module": "resize.wasm", "digest": DIGEST}}, operator=False)
    backends = Backends(
        Secrets(EnvironmentSecrets({}), Masker()), None, grants=OperatorGrants(wasm_modules=(str(places),)), environ={}
    )
    backends.tool(document)
    backends.grants = replace(backends.grants, wasm_modules=())
    with pytest.raises(FoliotError, match="may not be the module"):
        backends.tool(document)
    await backends.close()
