"""Without a name, `why` and `trace` mean what somebody started last: of the run of a task that is the task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Foliot
from tests.cli.test_waits_below import MANIFEST, TOOLS

TASK = """\
---
apiVersion: foliot.dev/v1
kind: Task
metadata: {name: refunds}
spec: {agent: boss, input: {message: Go.}}
"""


@pytest.fixture
def done(foliot: Foliot, tmp_path: Path) -> str:
    free = MANIFEST[: MANIFEST.rindex("---\n")]  # without the rule that asks a person
    (tmp_path / "team.yaml").write_text(free + TASK)
    (tmp_path / "till.py").write_text(TOOLS)
    said = foliot("task", "run", "-f", "team.yaml")
    assert said.code == 0, said.err
    return said.err


def test_of_a_task_its_name_is_what_was_started(foliot: Foliot, done: str) -> None:
    assert foliot("why").out.startswith("refunds  agent boss\n")
    assert json.loads(foliot("trace", "-o", "json").out)["task"] == "default/refunds"
    assert foliot("trace").out == foliot("task", "trace", "refunds").out

    assert foliot("run", "boss", "Go.", "--id", "b1").code == 0
    assert foliot("why").out.startswith("boss  b1\n")
    assert foliot("trace").out.startswith("boss  b1 ")


def test_a_task_says_what_it_used_with_its_helpers(foliot: Foliot, done: str) -> None:
    below = json.loads(foliot("runs", "-o", "json").out)["items"]
    whole = max(each["status"]["tokens"] for each in below)  # the run of the task pays for what it started
    assert whole > min(each["status"]["tokens"] for each in below) > 0
    assert f"{whole} tokens" in done
    for text in (foliot("task", "show", "refunds").out, foliot("why", "refunds").out):
        assert f"{whole} tokens, estimated, no price is known; helpers included" in text
