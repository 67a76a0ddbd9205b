"""`foliot budgets`, and what the other commands say of a run that waits for room."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foliot.cli.commands.budgets import bar
from tests.cli.conftest import Foliot

SHOP = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: brain}
spec: {provider: scripted, default_model: scripted, pricing: {input: 0, output: 10}, script: [{say: hello there}]}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: clerk}
spec: {model_ref: brain, model_settings: {max_output_tokens: 1000}}
"""
BUDGET = """\
---
apiVersion: foliot.dev/v1
kind: Budget
metadata: {{name: {name}}}
spec: {{window: {window}, limit: {{{limit}}}, scope: {{{scope}}}}}
"""


def declare(path: Path, limit: str, *, name: str = "house", window: str = "day", scope: str = "") -> Path:
    path.write_text(SHOP + BUDGET.format(name=name, window=window, limit=limit, scope=scope))
    return path


def test_without_budgets_it_is_told_how_to_declare_one(foliot: Foliot) -> None:
    said = foliot("budgets")
    assert (said.code, said.out) == (0, "")
    assert "foliot explain budget" in said.err


def test_a_budget_is_listed_with_what_was_spent_and_what_is_left(foliot: Foliot, tmp_path: Path) -> None:
    foliot("apply", "-f", declare(tmp_path / "m.yaml", 'amount: "0.02"'))
    assert foliot("run", "clerk", "hi", "-q").code == 0
    said = foliot("budgets")
    headings, row = said.out.splitlines()
    assert headings.split() == ["NAME", "SCOPE", "WINDOW", "SPENT", "RESERVED", "LIMIT", "LEFT", "USED"]
    assert row.split()[:7] == ["house", "namespace", "day", "$0.00003", "$0.00", "$0.02", "$0.01997"]
    (data,) = json.loads(foliot("budgets", "-o", "json").out)
    assert (data["spent"]["usd"], data["left_usd"], data["percent"]) == ("0.00003", "0.01997", 0)


def test_a_budget_of_tokens_for_each_agent_is_listed_by_agent(foliot: Foliot, tmp_path: Path) -> None:
    foliot("apply", "-f", declare(tmp_path / "m.yaml", "tokens: 5000", window="total", scope='agent: "*"'))
    assert "Nothing was spent" in foliot("budgets").err
    foliot("run", "clerk", "hi", "-q")
    row = foliot("budgets").out.splitlines()[1]
    assert row.split()[:3] == ["house", "agent", "clerk"]
    assert "5,000 tok" in row


def test_a_run_without_room_waits_says_why_and_goes_on_when_the_limit_is_raised(foliot: Foliot, tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    foliot("apply", "-f", declare(manifest, 'amount: "0.001"'))
    ran = foliot("run", "clerk", "hi", "--no-wait", "--id", "r1")
    assert ran.code == 8
    why = foliot("why", "r1").out
    assert "It waits for room in budget house" in why
    assert "budget 'house' has no room: 0.00 of 0.001 USD are spent, and this may take 0.01" in why
    assert "the model was not asked" in why
    assert "foliot edit budget house" in why
    shown = foliot("budgets", "show", "house").out
    assert "1 run waits for room:\n  r1" in shown
    audited = json.loads(foliot("audit", "list", "-o", "json").out)
    assert [(each["moment"], each["outcome"], each["run_id"]) for each in audited] == [("budget", "paused", "r1")]

    foliot("apply", "-f", declare(manifest, 'amount: "1"'))
    gone_on = foliot("resume", "r1", "-q")
    assert gone_on.code == 0
    assert foliot("budgets", "show", "house").out.count("waits for room") == 0
    trace = foliot("trace", "r1").out
    assert "has no room" in trace


def test_runs_that_wait_are_taken_up_together_after_the_limit_was_raised(foliot: Foliot, tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    foliot("apply", "-f", declare(manifest, 'amount: "0.001"'))
    for name in ("r1", "r2"):
        assert foliot("run", "clerk", "hi", "--no-wait", "--id", name).code == 8
    assert "No interrupted runs" in foliot("resume").err
    foliot("apply", "-f", declare(manifest, 'amount: "1"'))
    taken_up = foliot("resume")
    assert taken_up.code == 0
    assert "Taking up 2 interrupted runs" in taken_up.err
    assert [line.split()[2] for line in taken_up.out.splitlines()] == ["succeeded", "succeeded"]


def test_a_run_that_a_budget_ends_says_which(foliot: Foliot, tmp_path: Path) -> None:
    manifest = declare(tmp_path / "m.yaml", 'amount: "0.001"')
    manifest.write_text(manifest.read_text().replace("window: day", "window: day, on_exceeded: fail"))
    foliot("apply", "-f", manifest)
    assert foliot("run", "clerk", "hi", "--id", "r1").code == 1
    assert "foliot budgets show house" in foliot("why", "r1").out
    assert "without room a run fails" in foliot("budgets", "show", "house").out


def test_a_budget_that_is_not_there_is_told_with_what_was_meant(foliot: Foliot, tmp_path: Path) -> None:
    foliot("apply", "-f", declare(tmp_path / "m.yaml", "tokens: 5"))
    said = foliot("budgets", "show", "hous")
    assert said.code == 3
    assert "did you mean house?" in said.err


@pytest.mark.parametrize(
    ("percent", "drawn"),
    [(0, "░░░░░░░░░░   0 %"), (55, "█████░░░░░  55 %"), (100, "██████████ 100 %"), (250, "██████████ 250 %")],
)
def test_the_bar_never_grows_beyond_its_box(percent: int, drawn: str) -> None:
    assert bar(percent) == drawn
