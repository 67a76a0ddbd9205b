"""Names of traces and spans, derived from what is durable anyway.

The span of a run is named after the run, that of a call after the call. So whoever sends a request for a call knows the
span that will stand for it long before there is one; and a trace that is made from the journal after three crashes has
the same names as one that is made without any, each of them once.

The context of a run is kept in its first event, in the form of the W3C's `traceparent`. It names the span above the
run; with a span of zeros there is none. Without a context the run is not traced.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, NamedTuple

NO_SPAN: Final = "0" * 16
_FORM: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


class TraceContext(NamedTuple):
    """A trace, and the span in it under which something happens."""

    trace: str
    span: str = NO_SPAN

    def __str__(self) -> str:
        return f"00-{self.trace}-{self.span}-01"


def read_context(text: str) -> TraceContext | None:
    """Parses a `traceparent`; returns None for a text that is none, such as an empty one."""
    found = _FORM.fullmatch(text)
    return None if found is None else TraceContext(found[1], found[2])


def new_trace(name: str) -> TraceContext:
    """The context of something that nobody above it traces."""
    return TraceContext(_named(16, "trace", name))


def run_span(run_id: str) -> str:
    return _named(8, "run", run_id)


def step_span(run_id: str, seq: int) -> str:
    """Returns the span id of one question to the model, by the number of the event that began it."""
    return _named(8, "step", run_id, str(seq))


def call_span(run_id: str, call_id: str) -> str:
    return _named(8, "call", run_id, call_id)


def wait_span(run_id: str, seq: int) -> str:
    return _named(8, "wait", run_id, str(seq))


def task_span(task: str, trace: str) -> str:
    return _named(8, "task", task, trace)


def message_span(run_id: str) -> str:
    """Returns the span id of the message that a run answers: one message activates exactly one run."""
    return _named(8, "message", run_id)


def under_call(context: str, run_id: str, call_id: str) -> str:
    """The context of what a call begins; nothing when its run is not traced."""
    found = read_context(context)
    return "" if found is None else str(TraceContext(found.trace, call_span(run_id, call_id)))


def under_message(context: str, run_id: str) -> str:
    """The context of the run of a message, by that of its task; nothing when the task is not traced."""
    found = read_context(context)
    return "" if found is None else str(TraceContext(found.trace, message_span(run_id)))


def _named(size: int, *parts: str) -> str:
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=size, person=b"foliot").hexdigest()
