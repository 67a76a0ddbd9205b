"""The graph of a task on a terminal: what is drawn while it fills in, and what stays."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from foliot.cli.show.task_terminal import TerminalTaskView
from foliot.kernel.graph import events as t
from foliot.kernel.graph.advance import advance, new_state
from foliot.kernel.graph.plan import Edge, Node, Plan
from foliot.kernel.run import events as e
from foliot.work.tasks.base import Command, TaskInfo, TaskRecord
from foliot.work.views.events import RunHappening
from foliot.work.views.story import RunRow, TaskStory, tell_story

PLAN = Plan("default/job", {"first": Node((Edge("second"),)), "second": Node()}, ("first",))
NOW = 1_000.0
FIRST = "default/job/a001/h001/system/first"
SECOND = "default/job/a001/h002/first/second"


def story(*facts: t.TaskEvent, phase: str = "running", at_work: str = "") -> TaskStory:
    state, records = new_state(), list[TaskRecord]()
    for fact in (t.TaskAccepted("tell me"), *facts):
        for each in advance(PLAN, state, fact, NOW).facts:
            records.append(TaskRecord(len(records) + 1, NOW, each))
    info = TaskInfo(
        1, "u", "default", "job", "system", "duo", phase, 1, 1, 10, "", "", "", {}, {}, None, NOW, NOW, NOW, None, None
    )
    rows = [
        RunRow(message, f"run-{number}", message.rsplit("/", 1)[-1], "running", "w", None, NOW, NOW, {}, None, True)
        for number, message in enumerate((FIRST, SECOND))
        if message == at_work or any(record.event == fact for record in records for fact in facts)
    ]
    return tell_story(info, Command("system", "duo", message="tell me"), PLAN, records, rows, now=NOW)


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def view(screen: io.StringIO) -> TerminalTaskView:
    return TerminalTaskView(Console(file=screen, force_terminal=True, width=80, color_system=None), answer=True)


def test_the_graph_shows_who_is_at_work_and_what_is_being_written(view: TerminalTaskView, screen: io.StringIO) -> None:
    view.begin(story(at_work=FIRST))
    view.show([RunHappening(NOW, 3, "first", "run-0", e.StepStarted(1))])
    assert "thinks (step 1)" in screen.getvalue()
    view.piece("first", "Once upon")
    view.piece("first", " a time")
    view.tick()

    drawn = screen.getvalue()
    assert "duo  task job" in drawn
    assert "› tell me" in drawn
    assert "Once upon a time" in drawn
    assert "└─▶ ○ second" in drawn
    view.end(None, 1.0)


def test_the_end_leaves_the_graph_the_result_and_what_it_took(view: TerminalTaskView, screen: io.StringIO) -> None:
    ended = (
        t.MessageEnded(FIRST, "succeeded", "run-0", "one"),
        t.MessageEnded(SECOND, "succeeded", "run-1", "two\x1b[31m!"),
    )
    view.begin(story(at_work=FIRST))

    shown = view.end(story(*ended, phase="succeeded"), 2.0)

    assert shown
    last = screen.getvalue().rpartition("\x1b[2K")[2]
    assert "✓ first" in last
    assert "└─▶ ✓ second" in last
    assert r"two\u001b[31m!" in last
    assert "✓ succeeded  2 agents · 2 runs · 2.0s · job" in last
    assert "\x1b[31m" not in last


def test_a_failure_is_not_taken_for_a_result(view: TerminalTaskView, screen: io.StringIO) -> None:
    failed = t.MessageEnded(FIRST, "failed", "run-0", error="no such model")
    view.begin(story(at_work=FIRST))

    shown = view.end(story(failed, phase="dead_lettered"), 2.0)

    assert not shown
    assert "✗ first" in screen.getvalue()
    assert "✗ dead_lettered" in screen.getvalue()
