"""The trace that whoever asks for work is already in: what is begun for them goes on in it.

Set where a request comes in, read where a run or a task begins that is not told under which trace.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from foliot.kernel.traces import read_context

_trace: ContextVar[str] = ContextVar("foliot_callers_trace", default="")


def callers_trace() -> str:
    """The `traceparent` of the request that is under way here; empty without one."""
    return _trace.get()


@contextmanager
def asked_within(traceparent: str) -> Generator[None]:
    """While this lasts, work that begins is part of this trace. What is no `traceparent` counts as none."""
    token = _trace.set(str(read_context(traceparent) or "") if traceparent else "")
    try:
        yield
    finally:
        _trace.reset(token)
