"""The alert rules and the dashboard speak only of metrics that exist, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from foliot.engine.telemetry.metrics import Metrics
from foliot.kernel.messages import Message, ModelResponse, ToolResult, Usage
from foliot.kernel.run.events import (
    ApprovalDecided,
    ApprovalRequested,
    BudgetExceeded,
    ModelResponded,
    RunFailed,
    RunRetried,
    RunWaiting,
    ToolFinished,
)
from foliot.store.queue.queue import QueueItem, enqueue
from foliot.store.sqlite.database import SqliteDatabase

DEPLOY = Path(__file__).parents[2] / "deploy"
# What Prometheus itself knows of a target.
PROMETHEUS = {"up": set[str](), "process_resident_memory_bytes": set[str]()}
OF_TARGETS = {"job", "instance", "le"}
_METRIC = re.compile(r"\b((?:foliot|process)_[a-z_]+|up)\b(?:\{([^}]*)\})?")
_BY = re.compile(r"\bby \(([^)]*)\)")


def alerts() -> dict[str, str]:
    rules = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text())
    return {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}


def panels() -> dict[str, str]:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    return {f"{p['title']} {t['refId']}": t["expr"] for p in board["panels"] for t in p["targets"]}


EXPRESSIONS = {**alerts(), **panels()}


@pytest.fixture
async def exported(tmp_path) -> dict[str, set[str]]:
    """Every series that a busy process exports: its name, and the names of its labels."""
    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    await database.write(enqueue, [QueueItem(1, "r", 1, "a", "x", "", "c", 0, 1.0)])
    metrics = Metrics(database, transport=lambda: ("store", True))
    answer = ModelResponse(Message("assistant", ()), Usage(1, 1, cost_usd=1.0), model="m")
    for event in (
        ModelResponded(1, answer, 0.1),
        ModelResponded(1, ModelResponse(Message("assistant", ()), Usage(1, 1), model="m"), 0.1),
        ToolFinished(ToolResult("c", "t"), 0.1),
        RunFailed("c", "r", "m"),
        RunRetried(1, "r"),
        RunWaiting("approval", "person"),
        ApprovalRequested("c", "a", "t", "d"),
        ApprovalDecided("c", "approve"),
        BudgetExceeded("tokens", 2, 1, "m"),
    ):
        metrics.tally.recorded("r", 1, 0.0, event)
    text = (await metrics.render()).decode()
    await database.close()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
        found.setdefault(family.name, set())  # a gauge without series yet: its name is exported all the same
    return found


# Gauges whose series appear only while there is something to tell.
SOMETIMES = {
    "foliot_waiting_runs": {"reason"},
    "foliot_waiting_longest_seconds": {"reason"},
    "foliot_budget_used_ratio": {"namespace", "budget"},
    "foliot_worker_runs": {"worker"},
    "foliot_worker_capacity": {"worker"},
}


@pytest.mark.parametrize("where", sorted(EXPRESSIONS))
async def test_an_expression_names_only_what_is_exported(where: str, exported) -> None:
    expression = EXPRESSIONS[where]
    named = _METRIC.findall(expression)
    assert named, expression
    labels: set[str] = set(OF_TARGETS)
    for name, selector in named:
        assert name in exported or name in PROMETHEUS, f"{name} is exported by nobody"
        own = exported.get(name, set()) | SOMETIMES.get(name, set()) | OF_TARGETS
        assert set(re.findall(r"(\w+)\s*[=!]~?", selector)) <= own, f"{name} has no such label: {selector}"
        labels |= own
    for group in _BY.findall(expression):
        assert {word.strip() for word in group.split(",")} <= labels, f"grouped by a label that nothing has: {group}"


def test_every_alert_says_how_grave_it_is_and_what_to_do() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text())
    for rule in rules["groups"][0]["rules"]:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


def test_no_two_panels_cover_each_other() -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
