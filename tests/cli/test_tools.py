"""`foliot tools list|describe|call|test`: what there is, and calls of it, governed and recorded as any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Foliot

SHOP = """\
kind: AgentRole
metadata: {name: clerk}
spec: {permissions: ["tool:refund:invoke"]}
---
kind: Tool
metadata: {name: refund}
spec:
  type: function
  function: shop_tools:refund
  version: 1.2.0
  input_schema:
    type: object
    properties: {amount: {type: number}, api_key: {type: string}}
    required: [amount]
---
kind: ToolPermission
metadata: {name: refunds}
spec:
  tool_ref: refund
  required_permissions: ["tool:refund:invoke"]
  conditions:
    - {when: args.amount > 500.0, verdict: approval_required, reason: large refunds are looked at}
---
kind: Tool
metadata: {name: lookup}
spec: {type: function, function: "shop_tools:lookup", effect: read}
---
kind: Tool
metadata: {name: lost}
spec: {type: function, function: "no_such_module:f"}
---
kind: Tool
metadata: {name: boxed}
spec: {type: function, function: "shop_tools:lookup", runtime: {isolation_mode: container}}
---
kind: ModelEndpoint
metadata: {name: brain}
spec: {provider: scripted, default_model: scripted, script: [{say: hello}]}
---
kind: Agent
metadata: {name: desk}
spec: {model_ref: brain, tools: [refund], roles: [clerk]}
---
kind: Agent
metadata: {name: guest}
spec: {model_ref: brain, tools: [refund]}
"""
CODE = """\
def refund(amount, api_key=""):
    with open("acted.txt", "a") as file:
        file.write(f"{amount}\\n")
    return f"gave {amount}"

def lookup(city: str):
    if city == "nowhere":
        raise ValueError("there is no such city")
    return {"city": city}
"""


@pytest.fixture(autouse=True)
def shop(foliot: Foliot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import sys

    monkeypatch.delitem(sys.modules, "shop_tools", raising=False)
    monkeypatch.setenv("FOLIOT_CONTAINER_CLI", str(tmp_path / "no-engine"))  # whatever this machine has
    (tmp_path / "shop_tools.py").write_text(CODE)
    path = tmp_path / "shop.yaml"
    path.write_text(SHOP)
    said = foliot("apply", "-f", path)
    assert said.code == 0, said.err
    return tmp_path / "acted.txt"


def records(foliot: Foliot) -> list[tuple[str, str]]:
    found = json.loads(foliot("audit", "list", "-o", "json").out)
    return [(each["tool"], each["outcome"]) for each in reversed(found)]


class TestList:
    @pytest.mark.fence
    def test_every_tool_is_there_with_whether_it_can_be_called_or_why_not(self, foliot: Foliot) -> None:
        found = json.loads(foliot("tools", "list", "-o", "json").out)
        tools = {each["name"]: each for each in found["tools"]}
        assert (tools["refund"]["from"], tools["refund"]["version"], tools["refund"]["available"]) == (
            "declared",
            "1.2.0",
            True,
        )
        assert "no_such_module" in tools["lost"]["problem"]
        assert "container" in tools["boxed"]["problem"]
        assert tools["write_todos"]["from"] == "builtin"
        assert tools["python"]["available"]
        assert tools["read"]["available"]
        assert (tools["bash"]["isolation"], tools["bash"]["available"]) == ("sandboxed", True)

    def test_what_the_deployment_lets_nobody_call_is_listed_so_with_the_reason_of_the_refusal(
        self, foliot: Foliot, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FOLIOT_ALLOWED_TOOLS", "lookup")
        found = {each["name"]: each for each in json.loads(foliot("tools", "list", "-o", "json").out)["tools"]}
        assert [name for name, each in found.items() if each["available"]] == ["lookup"]
        assert 'tool "refund" is not allowed in this deployment (FOLIOT_ALLOWED_TOOLS)' in found["refund"]["problem"]
        for name, arguments in (("lookup", {"city": "Bonn"}), ("refund", {"amount": 1})):
            said = foliot("tools", "call", name, "--args", json.dumps(arguments))
            assert (said.code == 0) is found[name]["available"], said.err
        assert 'tool "refund" is not allowed' in said.err

    def test_the_snapshot_says_what_this_deployment_offers_and_lacks(self, foliot: Foliot) -> None:
        offers = json.loads(foliot("tools", "list", "-o", "json").out)["capabilities"]
        assert offers["types"]["function"] == {"available": True}
        assert "FOLIOT_NATS" in offers["types"]["queue"]["problem"]
        assert offers["isolation"]["none"] == {"available": True}
        assert offers["isolation"]["container"]["available"] is False
        assert offers["isolation"]["wasm"] == offers["types"]["wasm"] == {"available": True}
        assert "FOLIOT_MCP_COMMANDS" in offers["mcp_stdio"]["problem"]
        assert set(offers["extras"]) >= {"mcp", "grpc", "nats", "postgres"}

    def test_a_table_for_people_and_names_for_programs(self, foliot: Foliot) -> None:
        said = foliot("tools", "list")
        assert said.code == 0
        assert said.out.splitlines()[0].split()[:4] == ["NAME", "FROM", "TYPE", "EFFECT"]
        names = foliot("tools", "list", "--available", "-o", "name").out.split()
        assert "lookup" in names
        assert "lost" not in names


class TestDescribe:
    def test_one_tool_with_its_schema_and_the_rules_that_speak_of_it(self, foliot: Foliot) -> None:
        found = json.loads(foliot("tools", "describe", "refund", "-o", "json").out)
        assert found["schema"]["required"] == ["amount"]
        assert found["rules"] == ["ToolPermission/refunds"]
        assert "type: function" in foliot("tools", "describe", "lookup").out

    def test_a_name_that_is_not_there_is_answered_with_near_ones(self, foliot: Foliot) -> None:
        said = foliot("tools", "describe", "refnd")
        assert said.code == 3
        assert "refund" in said.err


class TestCall:
    def test_an_agent_that_may_is_answered_and_the_call_is_recorded(self, foliot: Foliot, shop: Path) -> None:
        said = foliot("tools", "call", "refund", "--args", '{"amount": 3, "api_key": "k-1"}', "--as-agent", "desk")
        assert (said.code, said.out) == (0, "gave 3\n")
        assert shop.read_text() == "3\n"
        assert records(foliot) == [("refund", "allowed"), ("refund", "ok")]
        assert "k-1" not in foliot("audit", "list", "-o", "json").out

    def test_an_agent_that_may_not_is_refused_by_the_rule_and_nothing_happens(self, foliot: Foliot, shop: Path) -> None:
        said = foliot("tools", "call", "refund", "--args", '{"amount": 3}', "--as-agent", "guest")
        assert said.code == 6
        assert "ToolPermission/refunds" in said.err
        assert not shop.exists()
        assert records(foliot) == [("refund", "denied")]

    def test_what_needs_an_approval_is_not_made_unless_a_grant_stands(self, foliot: Foliot, shop: Path) -> None:
        words = ("tools", "call", "refund", "--args", '{"amount": 900}', "--as-agent", "desk")
        said = foliot(*words)
        assert said.code == 6
        assert "needs an approval" in said.err
        assert not shop.exists()

        granted = foliot("approvals", "grant", "--tool", "refund", "--until", "1h")
        assert granted.code == 0, granted.err
        assert foliot(*words).out == "gave 900\n"
        assert records(foliot) == [("refund", "asked"), ("refund", "granted"), ("refund", "allowed"), ("refund", "ok")]

    def test_wrong_arguments_are_told_before_anything_runs(self, foliot: Foliot, shop: Path) -> None:
        said = foliot("tools", "call", "refund", "--args", '{"amount": "much"}', "--as-agent", "desk")
        assert said.code == 1
        assert "invalid_input" in said.err
        assert not shop.exists()
        assert foliot("tools", "call", "refund", "--args", "{").code == 2
        assert foliot("tools", "call", "refund", "--args", "[]").code == 2

    def test_a_failure_of_the_tool_is_told_as_data(self, foliot: Foliot) -> None:
        said = foliot("tools", "call", "lookup", "--args", '{"city": "nowhere"}', "-o", "json")
        assert said.code == 1
        assert json.loads(said.out)["error"]["code"] == "execution_failed"

    def test_a_tool_that_cannot_be_called_here_says_why(self, foliot: Foliot) -> None:
        said = foliot("tools", "call", "boxed", "--args", "{}")
        assert said.code == 6
        assert "container" in said.err
        assert "Traceback" not in said.err
        assert foliot("tools", "call", "lost").code != 0

    @pytest.mark.fence
    def test_a_shell_command_runs_in_a_sandbox(self, foliot: Foliot) -> None:
        said = foliot("tools", "call", "bash", "--args", '{"command": "id -un; ls /root /home"}')
        assert (said.code, "agent" in said.err + said.out) == (1, True)
        assert "exit:2" in said.err + said.out

    def test_what_would_have_to_be_contained_is_refused_and_recorded(
        self, foliot: Foliot, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("foliot.sandbox.bubblewrap.find", lambda: None)
        said = foliot("tools", "call", "bash", "--args", '{"command": "true"}')
        assert said.code == 6
        assert "isolation_unavailable" in said.err
        assert records(foliot) == [("bash", "refused")]


class TestTest:
    def test_nothing_runs_and_every_layer_speaks(self, foliot: Foliot, shop: Path) -> None:
        said = foliot("tools", "test", "refund", "--args", '{"amount": 3}', "--as-agent", "desk")
        assert said.code == 0
        assert "refund: allowed; nothing was run." in said.out
        assert not shop.exists()
        assert records(foliot) == []

    def test_a_refusal_and_a_question_are_told_apart(self, foliot: Foliot) -> None:
        refused = foliot("tools", "test", "refund", "--args", '{"amount": 3}', "--as-agent", "guest", "-o", "json")
        assert refused.code == 1
        assert json.loads(refused.out)["decided"] == "permissions"
        asked = foliot("tools", "test", "refund", "--args", '{"amount": 900}', "--as-agent", "desk", "-o", "json")
        assert (asked.code, json.loads(asked.out)["outcome"]) == (0, "ask")

    def test_wrong_arguments_are_found(self, foliot: Foliot) -> None:
        said = foliot("tools", "test", "refund", "--args", "{}", "--as-agent", "desk")
        assert said.code == 1
        assert "amount" in said.out
