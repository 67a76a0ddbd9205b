"""The shapes of answers about tasks and runs. Most are types of the rooms below, and are derived from those."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo

from foliot.client.wire import BatchWire, FactWire, StoryWire, TakenWire
from foliot.engine.approval.questions import OpenQuestion
from foliot.engine.explain.trace import CallTrace, Mark, StepTrace, Trace
from foliot.engine.explain.why import Explanation
from foliot.kernel.inbox import Outcome
from foliot.kernel.run.events import Fork
from foliot.runtime.answers import (
    Budgets,
    Called,
    Fates,
    Fired,
    PolicyAnswer,
    Replayed,
    RuleDefaults,
    RunContent,
    RunStanding,
    Sent,
    Toolset,
)
from foliot.server.openapi.schema import (
    ANYTHING,
    COUNT,
    MAYBE_TEXT,
    SCHEMAS,
    TEXT,
    TEXTS,
    TIME,
    YES_NO,
    Schema,
    listof,
    ref,
    shape,
)
from foliot.server.tasks.messages import KNOWN, PHASES
from foliot.sessions.base import Found, TurnView
from foliot.sessions.chat_events import ChatEvent
from foliot.store.channel_links import ChannelLink
from foliot.store.channels import ChannelDelivery
from foliot.store.folders import UserFolder
from foliot.store.ledger.doubts import Doubt, DoubtPage
from foliot.store.sessions.base import Input, Said, Session
from foliot.store.triggers import Slot, WebhookDelivery
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
    CallTrace,
    Mark,
    Fork,
    CallResult,
    ResultPage,
    RunContent,
    Replayed,
    Budgets,
    RuleDefaults,
    PolicyAnswer,
    Fates,
    Called,
    Fired,
    Sent,
    Slot,
    WebhookDelivery,
    ChannelDelivery,
    ChannelLink,
    Session,
    UserFolder,
    TurnView,
    Found,
    Input,
)


class Partly(NamedTuple):
    """A type that is shown with all its fields, of which `written` have schemas of their own and `left_out` are not."""

    form: type[Struct]
    written: Mapping[str, Schema]
    left_out: tuple[str, ...] = ()


PARTLY: Final[Mapping[str, Partly]] = {
    # A union of two types that no member tells apart cannot be derived.
    "StepTrace": Partly(StepTrace, {"items": listof({"anyOf": [ref("CallTrace"), ref("Mark")]})}),
    "Trace": Partly(Trace, {"steps": listof(ref("StepTrace"))}),
    "RunState": Partly(RunStanding, {"run": ref("Run")}, left_out=("info",)),
    # A body has the name of the type.
    "SessionSaid": Partly(Said, {}, left_out=("act",)),
    "Toolset": Partly(Toolset, {"tools": listof(ref("ToolFacts")), "capabilities": ANYTHING}),
}


CHAT_EVENTS: Final[tuple[type[Struct], ...]] = get_args(ChatEvent)


def derived(*forms: type[Struct]) -> dict[str, Any]:
    """The schemas of types that answers are made from, and of these forms of bodies."""
    fields = {name: _derivable(part) for name, part in PARTLY.items()}
    types = [each.type for own in fields.values() for each in own]
    found, shapes = msgspec.json.schema_components(
        [*types, *TYPES, *CHAT_EVENTS, *forms], ref_template=SCHEMAS + "{name}"
    )
    schemas = iter(found)
    for name, part in PARTLY.items():
        members = dict(part.written) | {each.encode_name: next(schemas) for each in fields[name]}
        shapes[name] = shape(members, about=inspect.cleandoc(part.form.__doc__ or ""))
    return msgspec.json.decode(msgspec.json.encode(shapes), type=dict[str, Any])  # defaults may be tuples


def _derivable(part: Partly) -> list[FieldInfo]:
    passed = {*part.written, *part.left_out}
    return [each for each in msgspec.structs.fields(part.form) if each.encode_name not in passed]


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
SHAPES: Final[dict[str, Schema]] = {
    "ChatEvent": {
        "description": "What happens in a turn of a session; `type` says which. Each turn has one `end`.",
        "oneOf": [ref(each.__name__) for each in CHAT_EVENTS],
    },
    "TaskMessage": _MESSAGE,
    "TaskMessages": shape(
        {
            "name": TEXT,
            "namespace": TEXT,
            "total": COUNT,
            "filtered_from": COUNT,
            "lifecycle_counts": shape(dict.fromkeys(PHASES, COUNT), open=False),
            "messages": listof(ref("TaskMessage")),
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
    "SaidToRun": {
        "allOf": [
            ref("Run"),
            shape(
                {
                    "input": shape(
                        {
                            "outcome": {"enum": [*get_args(Outcome)]},
                            "arrival": COUNT,
                            "again": YES_NO,
                            "answered": TEXT,
                        }
                    )
                }
            ),
        ],
        "description": "The run that hears what was said, and what became of that.",
    },
    "RunList": shape({"items": listof(ref("Run"))}, optional={"continue": TEXT}),
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
