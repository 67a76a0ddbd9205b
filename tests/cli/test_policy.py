"""`foliot policy`: what would happen, by which rule, and what new rules would change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Foliot

SHOP = """\
kind: ModelEndpoint
metadata: {name: brain}
spec: {provider: scripted, default_model: scripted, script: [{say: hello}]}
---
kind: AgentRole
metadata: {name: clerk}
spec: {permissions: ["tool:refund:invoke"]}
---
kind: Tool
metadata: {name: refund}
spec:
  type: function
  function: json:dumps
  operation_classes: [write]
  input_schema:
    type: object
    properties: {amount: {type: number}}
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
kind: Agent
metadata: {name: desk}
spec: {model_ref: brain, tools: [refund], roles: [clerk]}
---
kind: Agent
metadata: {name: guest}
spec: {model_ref: brain, tools: [refund, other]}
---
kind: ToolPermission
metadata: {name: no-guests}
spec:
  tool_ref: agent:guest
  conditions: [{when: 'args.input == "refund all"', verdict: deny, reason: not by guests}]
---
kind: Agent
metadata: {name: boss}
spec: {model_ref: brain, tools: [delegate, "agent:guest"]}
"""


@pytest.fixture
def shop(foliot: Foliot, tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(SHOP)
    said = foliot("apply", "-f", path, "--allow-missing")
    assert said.code == 0, said.err


@pytest.mark.usefixtures("shop")
class TestExplain:
    def test_every_layer_is_told_and_the_rule_that_decides(self, foliot: Foliot) -> None:
        said = foliot("policy", "explain", "desk", "refund", "--args", '{"amount": 600}')

        assert said.code == 0
        told = said.out.partition("\n\n")[0].splitlines()[1:]
        assert [line.split()[0] for line in told] == [
            "model",
            "advertised",
            "resolve",
            "arguments",
            "allow-list",
            "permissions",
            "policy",
            "conditions",
            "approval",
        ]
        assert (
            "desk calls refund: needs an approval, by ToolPermission/refunds: large refunds are looked at" in said.out
        )

    @pytest.mark.parametrize(
        ("agent", "args", "outcome", "layer"),
        [
            ("desk", '{"amount": 20}', "allow", "permissions"),
            ("desk", '{"amount": 501}', "ask", "conditions"),
            ("desk", '{"amount": "lots"}', "deny", "arguments"),
            ("guest", '{"amount": 20}', "deny", "permissions"),
        ],
    )
    def test_as_data(self, foliot: Foliot, agent: str, args: str, outcome: str, layer: str) -> None:
        said = foliot("policy", "explain", agent, "refund", "--args", args, "-o", "json")

        found = json.loads(said.out)
        assert (found["outcome"], found["decided"]["layer"]) == (outcome, layer)

    def test_without_arguments_nothing_is_said_of_them(self, foliot: Foliot) -> None:
        said = foliot("policy", "explain", "desk", "refund")

        assert "desk calls refund: allowed" in said.out
        assert "no --args were given" in said.out

    def test_a_tool_that_the_agent_does_not_have_is_refused(self, foliot: Foliot) -> None:
        said = foliot("policy", "explain", "boss", "refund", "--args", '{"amount": 1}')

        assert "boss calls refund: refused, by the layer advertised" in said.out

    def test_a_tool_that_nobody_has_is_an_error_with_near_names(self, foliot: Foliot) -> None:
        said = foliot("policy", "explain", "desk", "refnd", "--args", "{}")

        assert said.code == 3
        assert "did you mean refund?" in said.err

    def test_a_tool_that_only_the_agent_names_is_judged_by_its_name(self, foliot: Foliot) -> None:
        said = foliot("policy", "explain", "guest", "other", "--task", "tmp")

        assert "judged by its name alone" in said.out
        assert "there is no Task/tmp here" in said.out

    def test_an_unknown_agent_is_an_error_with_near_names(self, foliot: Foliot) -> None:
        said = foliot("policy", "explain", "dest", "refund")

        assert said.code == 3
        assert "desk" in said.err

    @pytest.mark.parametrize("args", ["{", "[1]", "7"])
    def test_arguments_that_are_no_object_are_refused(self, foliot: Foliot, args: str) -> None:
        said = foliot("policy", "explain", "desk", "refund", "--args", args)

        assert said.code == 2
        assert "--args" in said.err

    def test_the_deployments_default_counts(self, foliot: Foliot, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "allowed" in foliot("policy", "explain", "guest", "other").out.splitlines()[4]
        monkeypatch.setenv("FOLIOT_DEFAULT_TOOL_ACCESS", "deny")

        said = foliot("policy", "explain", "guest", "other", "-o", "json")

        rules = [layer["rule"] for layer in json.loads(said.out)["layers"]]
        assert "default_tool_access" in rules


@pytest.mark.usefixtures("shop")
class TestSimulate:
    NEW = """\
kind: AgentPolicy
metadata: {name: freeze}
spec: {apply_mode: global, read_only: true}
---
kind: ToolPermission
metadata: {name: refunds}
spec: {tool_ref: refund, required_permissions: ["tool:refund:invoke"]}
"""

    def test_what_would_change_is_marked_and_nothing_is_applied(self, foliot: Foliot, tmp_path: Path) -> None:
        (tmp_path / "new.yaml").write_text(self.NEW)
        calls = [
            {"agent": "desk", "tool": "refund", "args": {"amount": 20}},
            {"agent": "desk", "tool": "refund", "args": {"amount": 600}},
            {"agent": "guest", "tool": "refund", "args": {"amount": 20}},
        ]
        (tmp_path / "calls.jsonl").write_text("\n".join(map(json.dumps, calls)) + "\n\n")

        said = foliot("policy", "simulate", "-f", "new.yaml", "--calls", "calls.jsonl")

        assert said.code == 0
        assert "2 of 3 calls would change." in said.out
        assert "AgentPolicy/freeze" in said.out
        assert foliot("policy", "simulate", "-f", "new.yaml", "--calls", "calls.jsonl", "--exit-code").code == 1
        data = json.loads(
            foliot("policy", "simulate", "-f", "new.yaml", "--calls", "calls.jsonl", "--changed", "-o", "json").out
        )
        assert [(each["before"]["outcome"], each["after"]["outcome"]) for each in data] == [
            ("allow", "deny"),
            ("ask", "deny"),
        ]
        assert "freeze" not in foliot("get", "agent-policies").out

    @pytest.mark.parametrize(
        ("line", "complaint"),
        [
            ("{", "line 1: not a JSON object"),
            ('{"agent": "desk"}', "'tool' is missing"),
            ('{"agent": "desk", "tool": "refund", "argz": {}}', "unknown argz"),
            ('{"agent": "desk", "tool": "refund", "args": 5}', "args is not a JSON object"),
        ],
    )
    def test_a_line_that_is_no_call_is_named(self, foliot: Foliot, tmp_path: Path, line: str, complaint: str) -> None:
        (tmp_path / "new.yaml").write_text(self.NEW)

        said = foliot("policy", "simulate", "-f", "new.yaml", "--calls", "-", stdin=line)

        assert said.code in (2, 5)
        assert complaint in said.err

    def test_a_condition_that_does_not_parse_is_found_when_it_is_applied(self, foliot: Foliot, tmp_path: Path) -> None:
        broken = self.NEW.replace("required_permissions", 'conditions: [{when: "args.amount >"}], required_permissions')
        (tmp_path / "new.yaml").write_text(broken)

        said = foliot("apply", "-f", "new.yaml")

        assert said.code == 5
        assert "spec.conditions[0].when" in said.err
        assert "column 14" in said.err
        assert foliot("validate", "-f", "new.yaml").code == 5


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("agent", "task", "outcome", "rule"),
    [
        ("guest", "refund one", "allow", ""),
        ("guest", "refund all", "deny", "ToolPermission/no-guests"),
        ("desk", "refund one", "deny", "tools"),
    ],
)
def test_explain_knows_which_agents_a_call_would_run(
    foliot: Foliot, agent: str, task: str, outcome: str, rule: str
) -> None:
    arguments = json.dumps({"tasks": [{"agent": agent, "task": task}]})
    said = foliot("policy", "explain", "boss", "delegate", "--args", arguments, "-o", "json")
    assert said.code == 0, said.err
    told = json.loads(said.out)
    assert told["outcome"] == outcome
    assert told["decided"].get("rule", "") == rule
