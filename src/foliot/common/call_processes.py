"""Whether a process that is started here belongs to the tool call that is made here, and ends with it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

# What gives the call its list of processes, for whoever starts one; None where no call is made.
NOTING: Final[ContextVar[Callable[[], Any] | None]] = ContextVar("foliot_processes", default=None)


@contextmanager
def outlives_call() -> Generator[None]:
    """Start processes here that are to go on when the call is over: a browser or a server that later calls use too.

    Who starts it sees to its end.
    """
    token = NOTING.set(None)
    try:
        yield
    finally:
        NOTING.reset(token)
