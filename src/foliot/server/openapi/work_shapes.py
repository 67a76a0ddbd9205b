"""The shapes of answers about tasks and runs. Most are types of the rooms below, and are derived from those."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from foliot.client.wire import BatchWire, FactWire, StoryWire, TakenWire
from foliot.engine.approval.questions import OpenQuestion
from foliot.engine.explain.trace import Ask, CallTrace, Mark
from foliot.engine.explain.why import Explanation
from foliot.kernel.messages import Usage
from foliot.server.openapi.schema import (
    ANYTHING,
    COUNT,
    MAYBE_NUMBER,
    MAYBE_TEXT,
    NUMBER,
    SCHEMAS,
    TEXT,
    TEXTS,
    TIME,
    YES_NO,
    Schema,
    listof,
    maybe,
    ref,
    shape,
)
from foliot.server.tasks.messages import KNOWN, PHASES
from foliot.store.ledger.doubts import Doubt, DoubtPage
from foliot.tools.builtin.results import CallResult, ResultPage
from foliot.work.tasks.base import TaskInfo
from foliot.work.views.story import RunRow
from foliot.work.views.why import TaskExplanation

TYPES: Final[tuple[type[Struct], ...]] = (
    TaskInfo,
    TakenWire,
    BatchWire,
    FactWire,
    StoryWire,
    Doubt,
    DoubtPage,
    RunRow,
    TaskExplanation,
    Explanation,
    OpenQuestion,
    Ask,
    CallTrace,
    Mark,
    Usage,
    CallResult,
    ResultPage,
)


def derived(*forms: type[Struct]) -> dict[str, Any]:
    """The schemas of types that answers are made from, and of these forms of bodies."""
    _, shapes = msgspec.json.schema_components([*TYPES, *forms], ref_template=SCHEMAS + "{name}")
    return msgspec.json.decode(msgspec.json.encode(shapes), type=dict[str, Any])  # defaults may be tuples


_COUNTS: Final[dict[str, Schema]] = {
    **dict.fromkeys((*PHASES, "in_flight", "retry_count", "deadletters"), COUNT),
    **dict.fromkeys(("latency_ms_avg", "latency_ms_p95", "latency_sample_size"), COUNT),
}
_MESSAGE: Final = shape(
    {
        "timestamp": TIME,
        "message_id": TEXT,
        "idempotency_key": TEXT,
        "task_id": TEXT,
        "attempt": COUNT,
        "system": TEXT,
        "from_agent": TEXT,
        "to_agent": TEXT,
        "branch_id": TEXT,
        "parent_branch_id": TEXT,
        "type": {"enum": ["task_start", "task_handoff"]},
        "content": TEXT,
        "trace_id": TEXT,
        "parent_id": TEXT,
        "phase": {"enum": [*KNOWN]},
        "attempts": COUNT,
        "max_attempts": COUNT,
        "last_error": TEXT,
        "worker": TEXT,
        "hop": COUNT,
        "round": COUNT,
    },
    optional={"processed_at": TIME, "next_attempt_at": TIME, "run": TEXT, "run_phase": TEXT},
    about="What one agent handed to another.",
)
_RUN: Final = shape(
    {
        "apiVersion": TEXT,
        "kind": {"const": "Run"},
        "metadata": shape({"name": TEXT, "namespace": TEXT, "labels": TEXTS, "createdAt": TIME}),
        "spec": shape(
            {"agent": TEXT, "definition": TEXT, "parent": MAYBE_TEXT, "parentSeq": {"type": ["integer", "null"]}}
        ),
        "status": {
            "type": "object",
            "properties": {
                "phase": TEXT,
                "interrupted": YES_NO,
                "worker": MAYBE_TEXT,
                "leaseUntil": {"anyOf": [TIME, {"type": "null"}]},
                "updatedAt": TIME,
            },
            "required": ["phase", "interrupted", "worker", "leaseUntil", "updatedAt"],
        },
    },
    about="One agent at work. `definition` is the digest of what it is pinned to; `status` has what it took besides.",
)
_STEP: Final = shape(
    {
        "number": COUNT,
        "at": NUMBER,
        "asks": listof(ref("Ask")),
        "text": TEXT,
        "reasoning": TEXT,
        "usage": ref("Usage"),
        "model": TEXT,
        "endpoint": TEXT,
        "stop": TEXT,
        "seconds": MAYBE_NUMBER,
        "answered_at": MAYBE_NUMBER,
        "items": listof({"anyOf": [ref("CallTrace"), ref("Mark")]}),
        "ended_at": MAYBE_NUMBER,
    }
)

SHAPES: Final[dict[str, Schema]] = {
    "Message": _MESSAGE,
    "TaskMessages": shape(
        {
            "name": TEXT,
            "namespace": TEXT,
            "total": COUNT,
            "filtered_from": COUNT,
            "lifecycle_counts": shape(dict.fromkeys(PHASES, COUNT), open=False),
            "messages": listof(ref("Message")),
        },
        about="Counts are of what the other filters let through, before the phase was looked at.",
    ),
    "TaskMetrics": shape(
        {
            "name": TEXT,
            "namespace": TEXT,
            "generated_at": TIME,
            "totals": shape({"messages": COUNT, **_COUNTS}, open=False),
            "per_agent": listof(shape({"agent": TEXT, "inbound": COUNT, "outbound": COUNT, **_COUNTS}, open=False)),
            "per_edge": listof(shape({"from_agent": TEXT, "to_agent": TEXT, "messages": COUNT, **_COUNTS}, open=False)),
            "filters": shape({"phase_filtered": YES_NO}),
        }
    ),
    "Logs": shape(
        {"name": TEXT, "logs": listof(TEXT)},
        optional={"cursor": TEXT},
        about="A line each. `cursor` is where the next answer goes on.",
    ),
    "TaskRuns": shape({"name": TEXT, "runs": listof(ref("RunRow"))}),
    "Run": _RUN,
    "RunList": shape({"items": listof(ref("Run"))}, optional={"continue": TEXT}),
    "Trace": shape(
        {
            "run_id": TEXT,
            "agent": TEXT,
            "namespace": TEXT,
            "input": TEXT,
            "created_at": NUMBER,
            "last_at": NUMBER,
            "attempts": COUNT,
            "worker": TEXT,
            "before": listof(ref("Mark")),
            "steps": listof(ref("StepTrace")),
            "waited": NUMBER,
            "idle": NUMBER,
            "usage": ref("Usage"),
            "events": COUNT,
        },
        optional={name: maybe(ANYTHING) for name in ("fork", "waiting", "short", "ended")}
        | {"waiting_since": MAYBE_NUMBER},
        about="A run step by step, made from its journal and nothing else.",
    ),
    "StepTrace": _STEP,
    "RunTrace": shape({"run": TEXT, "phase": TEXT, "trace": ref("Trace")}),
    "RunResults": shape({"run": TEXT, "items": listof(ref("CallResult"))}),
    "TaskTrace": shape(
        {
            "name": TEXT,
            "phase": TEXT,
            "runs": listof(
                shape(
                    {
                        "message": shape({"id": TEXT, "from": TEXT, "to": TEXT}),
                        "phase": TEXT,
                        "trace": ref("Trace"),
                    }
                )
            ),
        }
    ),
}
