"""A fork from before a payment: what the original has done is said before it starts, and where it is asked again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

MANIFEST = """\
kind: ModelEndpoint
metadata: {name: brain}
spec:
  provider: scripted
  script:
    - {call: {look: {order: A-1}}}
    - {call: {pay: {amount: 860, token: hunter2}}}
    - {say: "Done: {last_result}."}
---
kind: Tool
metadata: {name: look}
spec: {type: function, function: "fork_tools:look", effect: read}
---
kind: Tool
metadata: {name: pay}
spec: {type: function, function: "fork_tools:pay", effect: once}
---
kind: Agent
metadata: {name: desk}
spec: {model_ref: brain, tools: [look, pay]}
"""
RULE = """\
kind: ToolPermission
metadata: {name: pay}
spec: {operation_rules: [{operation_class: write, verdict: approval_required}]}
"""
TOOLS = """\
async def look(order: str) -> str:
    return "860 paid twice"


async def pay(amount: int, token: str) -> str:
    if amount == 13:
        raise ConnectionResetError("the line is dead")
    with open("ledger.txt", "a") as ledger:
        ledger.write(f"{amount}\\n")
    return f"{amount} euros, receipt R-7"
"""
MADE = "the original run r1 has already made this call: result: 860 euros, receipt R-7"


@pytest.fixture
def paid(foliot, home: Path, tmp_path: Path) -> Path:
    """The ledger of run r1, which has paid in its second step without a rule; the rule is declared since."""
    (tmp_path / "desk.yaml").write_text(MANIFEST)
    (tmp_path / "rule.yaml").write_text(RULE)
    (tmp_path / "fork_tools.py").write_text(TOOLS)
    assert foliot("apply", "-f", "desk.yaml").code == 0
    assert foliot("run", "desk", "pay", "--id", "r1").code == 0
    assert foliot("apply", "-f", "rule.yaml").code == 0
    return tmp_path / "ledger.txt"


@pytest.mark.parametrize(("at", "ahead"), [(1, True), (2, True), (3, False)])
def test_a_dry_run_names_the_effects_that_lie_ahead_and_starts_nothing(foliot, paid, at: int, ahead: bool) -> None:
    said = foliot("fork", "r1", "--at", str(at), "--dry-run")

    assert (said.code, "receipt R-7" in said.out) == (0, ahead), said.err
    assert "look" not in said.out
    assert "hunter2" not in said.out
    effects = json.loads(foliot("fork", "r1", "--at", str(at), "--dry-run", "--json").out)["effects"]
    assert [(each["tool"], each["effect"], each["outcome"]) for each in effects] == [("pay", "once", "done")] * ahead
    assert foliot("runs", "-o", "name").out.split() == ["r1"]


def test_whoever_is_asked_about_the_call_of_a_fork_reads_that_the_original_has_made_it(foliot, paid) -> None:
    said = foliot("fork", "r1", "--at", "2")

    assert (said.code, paid.read_text()) == (8, "860\n"), said.err
    assert said.err.index("receipt R-7") < said.err.index("step 1")
    (document,) = json.loads(foliot("approvals", "list", "-o", "json").out)["items"]
    assert MADE in document["spec"]["reason"]
    assert MADE in foliot("approvals", "show", document["metadata"]["name"]).out
    assert "hunter2" not in json.dumps(document)
    fork = document["spec"]["run"]
    assert MADE in foliot("why", fork).out
    (effect,) = json.loads(foliot("trace", fork, "-o", "json").out)["fork"]["effects"]
    assert (effect["step"], effect["result"]) == (2, "860 euros, receipt R-7")
    again = foliot("fork", fork, "--at", "1", "--dry-run")
    assert "receipt R-7" in again.out  # a fork of the fork knows it too


def test_a_call_of_the_same_tool_with_other_arguments_is_told_apart(foliot, paid, tmp_path: Path) -> None:
    (tmp_path / "desk.yaml").write_text(MANIFEST.replace("860, token", "800, token"))
    assert foliot("apply", "-f", "desk.yaml").code == 0
    assert foliot("fork", "r1", "--at", "1").code == 8
    (document,) = json.loads(foliot("approvals", "list", "-o", "json").out)["items"]
    assert "the original run r1 has already made pay with amount=860" in document["spec"]["reason"]
    assert "hunter2" not in json.dumps(document)


def test_a_doubt_about_the_call_of_a_fork_says_what_the_original_has_made(foliot, paid, tmp_path: Path) -> None:
    (tmp_path / "desk.yaml").write_text(MANIFEST.replace("860, token", "13, token"))
    assert foliot("apply", "-f", "desk.yaml").code == 0
    assert foliot("delete", "tool-permission", "pay").code == 0
    assert foliot("fork", "r1", "--at", "1").code == 8
    newest = foliot("runs", "-o", "name").out.split()[0]
    told = foliot("why", newest).out
    assert "nobody knows whether pay took effect" in told
    assert "the original run r1 has already made pay with amount=860" in told


BOSS = """\
kind: ModelEndpoint
metadata: {name: boss}
spec:
  provider: scripted
  script: [{call: {"agent:desk": {input: pay}}}, {say: "{last_result}"}]
---
kind: Agent
metadata: {name: boss}
spec: {model_ref: boss, tools: ["agent:desk"]}
"""


def test_what_a_run_below_the_original_has_done_is_named_and_asked_about(foliot, home: Path, tmp_path: Path) -> None:
    (tmp_path / "desk.yaml").write_text(f"{MANIFEST}---\n{BOSS}")
    (tmp_path / "rule.yaml").write_text(RULE)
    (tmp_path / "fork_tools.py").write_text(TOOLS)
    assert foliot("apply", "-f", "desk.yaml").code == 0
    assert foliot("run", "boss", "pay", "--id", "r1").code == 0
    assert foliot("apply", "-f", "rule.yaml").code == 0
    effects = json.loads(foliot("fork", "r1", "--at", "1", "--dry-run", "--json").out)["effects"]
    assert [(each["tool"], each["run_id"].startswith("sub-")) for each in effects] == [("pay", True)]
    assert foliot("fork", "r1", "--at", "1").code == 8
    (document,) = json.loads(foliot("approvals", "list", "-o", "json").out)["items"]
    assert "has already made this call: result: 860 euros, receipt R-7" in document["spec"]["reason"]
    assert (tmp_path / "ledger.txt").read_text() == "860\n"


def test_an_approval_of_a_fork_shows_what_the_original_had_looked_up(foliot, paid) -> None:
    assert foliot("fork", "r1", "--at", "2").code == 8
    (document,) = json.loads(foliot("approvals", "list", "-o", "json").out)["items"]
    shown = foliot("approvals", "show", document["metadata"]["name"]).out
    assert "in r1, step 1: look" in shown
    assert "860 paid twice" in shown


def test_an_agent_that_is_inactive_takes_no_fork(foliot, paid, tmp_path: Path) -> None:
    (tmp_path / "desk.yaml").write_text(MANIFEST.replace("tools: [look, pay]", "tools: [look, pay], active: false"))
    assert foliot("apply", "-f", "desk.yaml").code == 0
    said = foliot("fork", "r1", "--at", "3")
    assert "is inactive" in said.err
    assert foliot("runs", "-o", "name").out.split() == ["r1"]
