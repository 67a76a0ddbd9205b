"""The trace that whoever asks for work is already in: what is begun for them goes on in it.

Set where a request comes in, read where a run or a task begins that is not told under which trace.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from foliot.kernel.run.state import State
from foliot.kernel.traces import read_context

_trace: ContextVar[str] = ContextVar("foliot_callers_trace", default="")


def callers_trace() -> str:
    """The `traceparent` of the request that is under way here; empty without one."""
    return _trace.get()


@contextmanager
def asked_within(traceparent: str) -> Generator[None]:
    """Makes work that begins meanwhile a part of this trace. A text that is no `traceparent` counts as none."""
    token = _trace.set(str(read_context(traceparent) or "") if traceparent else "")
    try:
        yield
    finally:
        _trace.reset(token)


# --- log fields ------------------------------------------------------------------------------------------------------

# What every line of the log should say of where it comes from: the run, its task, the request.
#
# Set once where work begins; whatever is logged below it, in tasks that it starts too, carries the fields.

_NONE: Final[Mapping[str, str]] = {}
_fields: ContextVar[Mapping[str, str]] = ContextVar("foliot_log_fields", default=_NONE)


_run: ContextVar[State | None] = ContextVar("foliot_logged_run", default=None)


def log_fields() -> Mapping[str, str]:
    """The fields of the work that is under way here; empty ones are left out."""
    fields, state = _fields.get(), _run.get()
    if state is None:
        return fields
    task = state.created.task if state.created is not None else ""
    said = {"namespace": state.spec.namespace, "agent": state.spec.agent, "run": state.run_id, "task": task}
    return {**fields, **{name: value for name, value in said.items() if value}}


def log_run(state: State | None) -> State | None:
    """Adds the fields of a run to log lines from here on; returns the run of before, to be set again afterwards.

    No context manager, and the fields are made when a line is logged: both would be there for every run that is driven.
    """
    before = _run.get()
    _run.set(state)
    return before


class RequestContext:
    """`with RequestContext(id, traceparent)` adds a request to log lines, and makes what begins a part of its trace.

    A class, since this stands around every request: a generator would cost as much as what it does.
    """

    __slots__ = ("_logged", "_request", "_trace", "_traced")

    def __init__(self, request: str, traceparent: str = "") -> None:
        self._request = request
        self._trace = str(read_context(traceparent) or "") if traceparent else ""

    def __enter__(self) -> None:
        self._logged = _fields.set({**_fields.get(), "request": self._request})
        self._traced = _trace.set(self._trace)

    def __exit__(self, *_: object) -> None:
        _trace.reset(self._traced)
        _fields.reset(self._logged)
