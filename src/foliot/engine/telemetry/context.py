"""The trace that whoever asks for work is already in: what is begun for them goes on in it.

Set where a request comes in, read where a run or a task begins that is not told under which trace.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

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


def log_fields() -> Mapping[str, str]:
    """The fields of the work that is under way here."""
    return _fields.get()


@contextmanager
def logged_with(**fields: str) -> Generator[None]:
    """Adds these fields to log lines meanwhile; empty ones are left out."""
    token = _fields.set({**_fields.get(), **{name: value for name, value in fields.items() if value}})
    try:
        yield
    finally:
        _fields.reset(token)
