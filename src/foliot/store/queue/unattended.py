"""Runs that could go on, and that nobody drives.

A run of a task is in the queue, and one that a run delegated to is its parent's to go on with. All others depend on the
process that began them: a server, `foliot run`. When that is gone, they are found here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from foliot.store.base import Database, Row

PAGE: Final = 500


class Unattended(Struct, frozen=True):
    """`last_seq` is the number of its last event. `dead`: the process that drove it has certainly died."""

    run_id: str
    phase: str
    last_seq: int
    dead: bool = False


async def unattended(db: Database, *, now: float, is_gone: Callable[[str | None], bool]) -> list[Unattended]:
    """Lists unattended runs, oldest first. `is_gone` says whether a worker has certainly died.

    A run that waits is among them when its time has come, or when somebody has told it something.
    """
    found: list[Unattended] = []
    after = 0
    while rows := await db.read("run_unattended", after=after, count=PAGE):
        found += (
            Unattended(row["id"], row["phase"], row["last_seq"], row["phase"] == "running" and is_gone(row["worker"]))
            for row in rows
            if _is_due(row, now, is_gone)
        )
        after = rows[-1]["key"]
    return found


def _is_due(row: Row, now: float, is_gone: Callable[[str | None], bool]) -> bool:
    match row["phase"]:
        case "pending":
            return True
        case "running":
            over = row["lease_until"] is not None and row["lease_until"] < now
            return over or is_gone(row["worker"])
        case _:
            return row["signals"] > 0 or _is_over(row["summary"], now)


def _is_over(summary: str, now: float) -> bool:
    waiting: dict[str, Any] = msgspec.json.decode(summary, type=dict[str, Any]).get("waiting") or {}
    until = waiting.get("until")
    return isinstance(until, int | float) and until <= now
