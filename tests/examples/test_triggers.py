"""The weekly brief and the webhooks, from manifests to finished tasks, as a newcomer would run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE = 90.0


class Shell:
    def __init__(self, home: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOLIOT_")}
        self.environ = kept | {"FOLIOT_HOME": str(home)}

    def __call__(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "foliot.cli", *words],
            cwd=EXAMPLES.parent,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def foliot(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "home")


def test_the_weekly_brief_is_written_when_it_is_asked_for(foliot: Shell) -> None:
    foliot("apply", "-f", "examples/weekly-brief")
    task = foliot("schedule", "run", "weekly-brief").strip()
    foliot("worker", "--once")
    shown = json.loads(foliot("task", "show", task.partition("/")[2], "-o", "json"))
    assert "schedules were shipped" in json.dumps(shown)
    assert shown["status"]["phase"] == "Succeeded"


def test_a_push_becomes_a_task_with_parts_of_the_body_as_input(foliot: Shell) -> None:
    foliot("create", "secret", "github-hook", "--from-literal", "value=change-me")
    foliot("create", "secret", "alarm-hook", "--from-literal", "value=change-me-too")
    foliot("apply", "-f", "examples/webhooks/webhooks.yaml")
    push = ("webhook", "send-test", "on-push", "-d", "@examples/webhooks/push.json", "-H")
    left_out = json.loads(foliot(*push, "X-GitHub-Event: issues"))
    assert left_out["filtered"] is True
    task = json.loads(foliot(*push, "X-GitHub-Event: push"))["task"]
    alarm = json.loads(foliot("webhook", "send-test", "on-alarm", "-d", '{"disk": "full"}'))["task"]
    foliot("worker", "--once")
    for each in (task, alarm):
        shown = json.loads(foliot("task", "show", each.partition("/")[2], "-o", "json"))
        assert shown["status"]["phase"] == "Succeeded"
    shown = json.dumps(json.loads(foliot("task", "show", task.partition("/")[2], "-o", "json")))
    assert "Review 6dcb09b5 of foliot/clock" in shown
