"""The shares of namespaces in the places of a worker.

Runs may hold their places for long: a model that never answers is enough. So a namespace may take one more place only
while it has fewer than three times as many as are free. One alone gets three quarters, and what is left serves others
at once; the next one gets three quarters of that, and so on, whoever they are and however many runs they have queued.
When two want everything, each gets the same. With three places or fewer nothing is kept free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

# So many times what is free a namespace may have.
TIMES_FREE: Final = 3


class AtWork(Struct, frozen=True):
    """The work that a worker has, by namespace: its runs, and those of them that start programs on its machine."""

    runs: Mapping[str, int] = {}
    programs: Mapping[str, int] = {}


NOTHING: Final = AtWork()


def share_left(free: int, own: int) -> int:
    """How many more of the `free` places a namespace may take that has `own` places already.

    The k-th is allowed while own + k - 1 < 3 * (free - k + 1).
    """
    return max(0, min(free, (TIMES_FREE * (free + 1) - own) // (TIMES_FREE + 1)))


class NamespaceShares:
    """How many of the free places of one worker each namespace may still take, and how many for runs with programs."""

    def __init__(
        self,
        free: int,
        programs: int | None = None,
        at_work: AtWork = NOTHING,
        *,
        shared: bool = False,
        keep_free: bool = False,
    ) -> None:
        """`shared`: there are several namespaces. `keep_free`: others may come; of programs that is never expected."""
        self._free = free
        self._programs = programs
        self._runs = Counter(at_work.runs)
        self._runs_with_programs = Counter(at_work.programs)
        self._shared = shared
        self._keep_free = shared or keep_free

    def copy(self) -> NamespaceShares:
        at_work = AtWork(self._runs, self._runs_with_programs)
        return NamespaceShares(self._free, self._programs, at_work, shared=self._shared, keep_free=self._keep_free)

    def left(self, namespace: str) -> int:
        return share_left(self._free, self._runs[namespace]) if self._keep_free else self._free

    def programs_left(self, namespace: str) -> int:
        if self._programs is None:
            return 2**31 - 1
        return share_left(self._programs, self._runs_with_programs[namespace]) if self._shared else self._programs

    def took(self, namespace: str, count: int, *, programs: bool) -> None:
        self._free -= count
        self._runs[namespace] += count
        if programs:
            self._runs_with_programs[namespace] += count
            if self._programs is not None:
                self._programs -= count
