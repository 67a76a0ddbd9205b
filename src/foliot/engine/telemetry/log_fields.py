"""What every line of the log should say of where it comes from: the run, its task, the request.

Set once where work begins; whatever is logged below it, in tasks that it starts too, carries the fields.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_NONE: Final[Mapping[str, str]] = {}
_fields: ContextVar[Mapping[str, str]] = ContextVar("foliot_log_fields", default=_NONE)


def log_fields() -> Mapping[str, str]:
    """The fields of the work that is under way here."""
    return _fields.get()


@contextmanager
def logged_with(**fields: str) -> Generator[None]:
    """While this lasts, lines carry these fields besides those around them; empty ones are left out."""
    token = _fields.set({**_fields.get(), **{name: value for name, value in fields.items() if value}})
    try:
        yield
    finally:
        _fields.reset(token)
