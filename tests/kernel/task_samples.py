"""One fact of every type about tasks, with every field set. Their bytes are kept in golden_tasks/ for ever."""

from __future__ import annotations

from foliot.kernel.graph import events as t
from foliot.kernel.messages import Usage

USAGE = Usage(120, 30, 80, 10, 5, 0.0123, "estimated")
MESSAGE = t.Envelope(
    "acme/report/a002/h003/join/editor",
    "join",
    "editor",
    "## lead – one\n\nready",
    2,
    3,
    4,
    2,
    "b002",
    "b002.001",
    "acme/report/a001/h003/lead/editor",
    "task_start",
    (t.Source("acme/report/a001/h003/lead/editor", "lead", "ready", "b001.001", True),),
    2,
    True,
    {"boss": 2, "editor": 1},
    "acme/report/a001/h003/join/editor",
    ("archive",),
)
TASK_SAMPLES: tuple[t.TaskEvent, ...] = (
    t.TaskAccepted("write", {"audience": "all", "topic": "write"}, "ann"),
    t.MessageSent(MESSAGE, False),
    t.MessageEnded(
        MESSAGE.id, "failed", "run-1", "half", {"route": "bug"}, (0, 2), "tool_failed", "timeout", "slow", 3, USAGE
    ),
    t.BranchEnded(MESSAGE.id, "turn_limit", "4 turns of 4"),
    t.JoinClosed("editor", 2, "timeout", "continue_partial", ("lead", "boss")),
    t.TimerWentOff(),
    t.TaskCancelRequested("ann", "enough"),
    t.TaskRequeued(2, "ann", "the key was renewed", {MESSAGE.id: "again"}),
    t.TaskSucceeded("done", {"editor": "done"}, USAGE),
    t.TaskFailed("limit_exceeded", "message_limit", "too many messages", USAGE),
    t.TaskCancelled("ann", "enough", USAGE),
    t.TaskDeadLettered("timeout", "given up", MESSAGE.id, USAGE),
)

# Fields that were added later; their bytes are in golden_tasks_grown/.
TASK_GROWN: tuple[t.TaskEvent, ...] = (t.MessageEnded(MESSAGE.id, "succeeded", worker="north"),)
