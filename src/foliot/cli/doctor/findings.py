"""A finding: what was looked at, how it is, and what to do about it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from foliot.errors import FoliotError

Level: TypeAlias = Literal["ok", "note", "warning", "error"]
LEVELS: Final[tuple[Level, ...]] = ("ok", "note", "warning", "error")


class Finding(Struct, frozen=True):
    """`check` is for programs and never changes; `message` and `hint` are for people."""

    area: str
    check: str
    level: Level
    message: str
    hint: str = ""


Findings: TypeAlias = AsyncIterator[Finding]


async def guarded(area: str, check: str, looking: Callable[[], Findings]) -> Findings:
    """Runs a check; one that fails becomes a finding itself, and the other checks continue."""
    try:
        async for finding in looking():
            yield finding
    except FoliotError as error:
        yield Finding(area, check, "error", error.message, error.hint or "")
    except OSError as error:
        yield Finding(area, check, "error", f"{error.filename or area}: {error.strerror}", "see that it can be read")


def listed(names: list[str], *, most: int = 5) -> str:
    """Some of them by name, the rest as a number."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
