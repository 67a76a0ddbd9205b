"""A person is waited for by a sub-agent: what the commands say of the run above it, and that they end.

What an agent alone does is the measure: the same exit codes, and no word of a crash where there was none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Foliot

MANIFEST = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: boss-model}
spec:
  provider: scripted
  default_model: scripted
  script:
    - {call: {"agent:cashier": {input: Refund it.}}}
    - {say: "The cashier says: {last_result}."}
---
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: cashier-model}
spec:
  provider: scripted
  default_model: scripted
  script:
    - {call: {refund: {amount: 900}}}
    - {say: "{last_result}"}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: boss}
spec: {model_ref: boss-model, tools: ["agent:cashier"]}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: cashier}
spec: {model_ref: cashier-model, tools: [refund]}
---
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: refund}
spec: {type: function, function: "till:refund", effect: once, operation_classes: [write]}
---
apiVersion: foliot.dev/v1
kind: ToolPermission
metadata: {name: refund}
spec:
  operation_rules: [{operation_class: write, verdict: approval_required}]
"""
TOOLS = """\
def refund(amount: int) -> str:
    return f"{amount} euros"
"""


@pytest.fixture
def waiting(foliot: Foliot, tmp_path: Path) -> str:
    """The approval that the sub-agent of run `b1` waits for."""
    (tmp_path / "team.yaml").write_text(MANIFEST)
    (tmp_path / "till.py").write_text(TOOLS)
    assert foliot("apply", "-f", "team.yaml").code == 0
    assert foliot("run", "boss", "Go.", "--id", "b1").code == 8
    return foliot("approvals", "list", "-o", "name").out.strip()


@pytest.mark.parametrize("words", [("resume", "b1"), ("resume",)])
def test_resume_ends_when_a_person_is_waited_for_below(foliot: Foliot, waiting: str, words: tuple[str, ...]) -> None:
    said = foliot(*words)
    assert said.code == 8
    assert f"foliot approvals approve {waiting}" in said.err
    assert "session" not in said.err


def test_a_decision_ends_when_another_person_is_waited_for_below(foliot: Foliot, waiting: str, tmp_path: Path) -> None:
    """The cashier asks twice: each command ends, with the next thing that is waited for."""
    twice = MANIFEST.replace("    - {call: {refund: {amount: 900}}}\n", "    - {call: {refund: {amount: 900}}}\n" * 2)
    twice = twice.replace("once, operation", "idempotent, operation").replace(
        "amount: 900}}}\n    - {say", "amount: 901}}}\n    - {say"
    )
    (tmp_path / "team.yaml").write_text(twice)
    assert foliot("apply", "-f", "team.yaml").code == 0
    assert foliot("run", "boss", "Go.", "--id", "b2").code == 8
    first = foliot("approvals", "list", "--phase", "Pending", "-o", "name").out.split()
    (mine,) = {*first} - {waiting}
    said = foliot("approvals", "approve", mine)
    assert said.code == 8, said.err
    (second,) = {*foliot("approvals", "list", "--phase", "Pending", "-o", "name").out.split()} - {waiting}
    assert f"foliot approvals approve {second}" in said.err
    said = foliot("approvals", "approve", second)
    assert (said.code, said.out) == (0, "The cashier says: 901 euros.\n")


def test_a_run_that_waits_for_a_person_below_is_no_crash(foliot: Foliot, waiting: str) -> None:
    """Between the commands nothing is dead: every place says that it waits, and none that a worker was gone."""
    said = foliot("resume", "b1")
    assert "takes over" not in said.err
    for listed in (foliot("runs").out, foliot("runs", "-o", "json").out, foliot("trace", "b1").out):
        assert "interrupted:" not in listed
        assert "interrupted · " not in listed
    row = next(line for line in foliot("runs").out.splitlines() if line.startswith("b1"))
    assert " waiting " in row
    assert "waits: approval (person)" in row
    assert json.loads(foliot("runs", "-o", "json").out)["items"][-1]["status"]["interrupted"] is False
    assert foliot("runs", "--phase", "interrupted").out == ""
    why = foliot("why", "b1").out
    for text in (said.err, why, foliot("trace", "b1").out):
        for word in (
            "It is at work",
            "held by",
            "interrupted",
            "is gone",
            "was gone",
            "took over",
            "nobody knew",
            "cut off",
        ):
            assert word not in text
    assert "waits for an approval of refund" in why

    said = foliot("approvals", "approve", waiting)
    assert (said.code, said.out) == (0, "The cashier says: 900 euros.\n")
    assert "takes over" not in said.err
    told = foliot("why", "b1").out + foliot("trace", "b1").out
    for word in ("was gone", "took over", "nobody knew", "started"):
        assert word not in told
    assert "released while agent:cashier was under way, and resumed" in told


def test_a_task_that_waits_for_a_person_below_says_so_and_for_what(foliot: Foliot, tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text(MANIFEST)
    (tmp_path / "till.py").write_text(TOOLS)
    assert foliot("apply", "-f", "team.yaml").code == 0
    said = foliot("task", "run", "boss", "Go.", "--name", "t1")
    assert said.code == 8, said.err
    approval = foliot("approvals", "list", "-o", "name").out.strip()
    assert f"foliot approvals approve {approval}" in said.err
    row = next(line for line in foliot("task", "list").out.splitlines() if "t1" in line)
    assert "WaitingApproval" in row
    why = foliot("why", "t1").out
    assert "at work" not in why
    assert f"foliot approvals approve {approval}" in why
    assert foliot("task", "list", "--phase", "running", "-o", "name").out == ""
    assert foliot("task", "list", "--phase", "waiting", "-o", "name").out.strip().endswith("t1")
    foliot("approvals", "approve", approval)
    said = foliot("task", "wait", "t1", "--here")
    assert (said.code, said.out) == (0, "The cashier says: 900 euros.\n")


def test_of_a_process_that_died_it_is_still_said(foliot: Foliot, waiting: str, tmp_path: Path) -> None:
    """Let go and died are told apart by what the store keeps, not by what both look like."""
    script = "import os, sys; from foliot.cli.watch import run; run._tell_wait = lambda *a: os._exit(9)\n"
    script += "from foliot.cli.main import cli; cli(['resume', 'b1'], prog_name='foliot')"
    died = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, timeout=60)
    assert died.returncode == 9
    assert "takes over" in foliot("resume", "b1").err
    assert "the worker was gone while agent:cashier was under way" in foliot("why", "b1").out
