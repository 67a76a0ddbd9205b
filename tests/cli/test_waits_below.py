"""A person is waited for by a sub-agent: what the commands say of the run above it, and that they end.

What an agent alone does is the measure: the same exit codes, and no word of a crash where there was none.
"""

from __future__ import annotations

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
