"""Measures the part of each namespace in a store, and forgets the oldest of one that holds too much.

Content that several namespaces have counts in equal parts for each of them, so all of it counts once.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from foliot.errors import NotFound
from foliot.store.base import Database
from foliot.store.journal.purge import purge_found
from foliot.store.sessions.base import SessionBusy
from foliot.store.sessions.database import SqlSessions
from foliot.store.tasks import purge_ended

# So many runs, tasks or pieces of content are measured by one question.
MEASURED_AT_ONCE: Final = 1000


async def measure_namespaces(database: Database) -> dict[str, float]:
    """Returns the bytes that each namespace holds: what it declares, its runs and tasks, and its content.

    Looks at everything once, in small questions.
    """
    held: dict[str, float] = defaultdict(float)
    pages = ("held_by_runs", 0), ("held_by_tasks", 0), ("held_by_changes", 0)
    for query, after in (*pages, ("held_by_resources", "")):
        while found := await database.read(query, after=after, count=MEASURED_AT_ONCE):
            for row in found:
                held[row["namespace"]] += row["size"]
            after = found[-1]["key"]
    last = ""
    while found := await database.read("held_content", after=last, count=MEASURED_AT_ONCE):
        owners: dict[str, list[str]] = defaultdict(list)
        for row in found:
            last = max(last, row["digest"])
            if row["namespace"]:
                owners[row["digest"]].append(row["namespace"])
        sizes = {row["digest"]: row["size"] for row in found}
        for digest, namespaces in owners.items():
            for namespace in namespaces:
                held[namespace] += sizes[digest] / len(namespaces)
    return dict(held)


def share_of_each(held: Sequence[float], room: float) -> float:
    """Returns how much each may hold so that all fit into the room: who holds less leaves the rest to the others."""
    for number, size in enumerate(sorted(held)):
        if size > (equal := room / (len(held) - number)):
            return equal
        room -= size
    return math.inf


@dataclass(slots=True)
class Oldest:
    """The oldest of a namespace that has ended. Remembers how far it has come; what it passed over stays."""

    database: Database
    namespace: str
    before: float
    tasks_after: int = 0
    runs_after: int = 0
    sessions_after: tuple[float, int] = (0.0, 0)
    # The tasks, sessions and runs that were forgotten.
    tasks: int = 0
    sessions: int = 0
    runs: int = 0

    async def forget(self, count: int) -> bool:
        """Forgets of the next `count` of each kind those that have ended. False when all were looked at."""
        of = {"namespace": self.namespace, "before": self.before, "count": count}
        if tasks := await self.database.read("oldest_tasks", after=self.tasks_after, **of):
            self.tasks_after = -tasks[-1]["key"]
            if ended := [row["key"] for row in tasks if row["ended"]]:
                gone = await self.database.write(purge_ended, ended, self.before)
                self.tasks += gone.tasks
                self.runs += gone.runs
        since, after = self.sessions_after
        if sessions := await self.database.read("oldest_sessions", since=since, after=after, **of):
            self.sessions_after = sessions[-1]["active_at"], sessions[-1]["key"]
            for row in sessions:
                if row["ended"]:
                    with contextlib.suppress(NotFound, SessionBusy):  # somebody else was faster
                        await SqlSessions(self.database).delete(row["id"])
                        self.sessions += 1
        if runs := await self.database.read("oldest_runs", after=self.runs_after, **of):
            self.runs_after = -runs[-1]["key"]
            if loose := [row for row in runs if row["ended"]]:
                self.runs += await self.database.write(purge_found, loose, self.before)
        return bool(tasks or sessions or runs)
