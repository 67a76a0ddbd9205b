"""The places of a worker: how many runs it may have under way at a time.

A number that somebody gave is an exact bound. Without one the places follow the load. A run that waits for its model, a
timer, a person or a tool on the network costs this machine some memory and no time, so there may be many of those; and
many of them are cheaper for each, because they share commits. What bounds them is how late the event loop is, since
everything else in the process waits as long, memory, and open files. Limits of models, agents and lanes hold as ever.

A model that never answers takes places and no time. So there may be very many of them, and no namespace gets all
(store/queue/shares.py): places are added as soon as one is short of them, and a late loop leaves some beside the runs
of the namespace that has most.

A run whose tools start programs on this machine is another matter: of those there are `PROGRAMS` at most, however
prompt the loop.

Measured with tasks of three agents whose model answers at once (benchmarks/bench_http_tasks.py), by the CPU of
`foliot up` for a task: 8 places 5.9 ms, 64 places 3.6 ms, 256 places 3.3 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

PROGRAMS: Final = 8
# The bounds while places follow the load, and where they begin.
FEWEST: Final = 8
FIRST: Final = 64
MOST: Final = 1024
# So many are left beside the runs of the namespace that has most, however late the loop: what it has may never end.
OTHERS: Final = 4
# Seconds between two looks at the load.
LOOK_EVERY: Final = 0.25
# How late the loop may be, in seconds, for places to be added; and from where on some are taken away.
PROMPT: Final = 0.05
LATE: Final = 0.1
# The share of the memory that must be left for places to be added.
SPARE: Final = 0.125


class Places:
    """The bound of one worker. No clock, and no I/O but for what it is given: told how late the loop is, it adjusts."""

    def __init__(
        self,
        capacity: int | None = None,
        *,
        memory: Callable[[], float] | None = None,
        files: Callable[[], int] | None = None,
    ) -> None:
        """`capacity` is an exact bound; without it places follow the load.

        `memory` says which share of it is left, `files` how many files this process may have open.
        """
        self.follows_load = capacity is None
        self.limit = FIRST if capacity is None else capacity
        self._memory = memory or memory_left
        self._files = files or open_files

    def free(self, at_work: int) -> int:
        """How many more runs may be taken."""
        return max(0, self.limit - at_work)

    def programs(self, at_work: int) -> int | None:
        """How many of those may be runs that start programs here, beside these; None for any number."""
        return max(0, PROGRAMS - at_work) if self.follows_load else None

    def adjust(self, at_work: int, late: float, *, largest: int = 0, short: bool = False) -> bool:
        """Follow the load: the loop was so many seconds late. Whether there are more places than before.

        Places are added in small steps, and only while all are taken or, with `short`, a namespace has its share of
        them and wants more: so the effect of a step is seen before the next. `largest` is how many runs the namespace
        has at work that has most.
        """
        before = self.limit
        if not self.follows_load:
            return False
        if late > LATE:
            self.limit = min(self.limit, max(FEWEST, largest + OTHERS, self.limit * 3 // 4))
        elif late <= PROMPT and (short or at_work >= self.limit) and self.limit < (most := self._most()):
            # What is at work already does not make the loop late, whatever the bound has become meanwhile.
            counted = max(self.limit, min(at_work, most))
            if self._memory() >= SPARE:
                self.limit = min(most, counted + max(FEWEST, counted // 4))
        return self.limit > before

    def _most(self) -> int:
        """A run that waits for its model has a connection, and the rest of the process needs files too."""
        return max(FIRST, min(MOST, self._files() // 2))


def open_files() -> int:
    """Returns how many files this process may have open; very many where nobody can say."""
    try:
        import resource
    except ImportError:  # not a Unix
        return 2**31 - 1
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 - 1 if soft == resource.RLIM_INFINITY else soft


def memory_left(group: Path = Path("/sys/fs/cgroup"), machine: Path = Path("/proc/meminfo")) -> float:
    """Returns the share of the memory that is left to this process; 1 where nobody can say.

    In a container that is what its own bound leaves, which the machine's figures know nothing of. Pages of files that
    nobody has used lately count as left: the system takes them back before it refuses anybody memory.
    """
    shares = [1.0]
    try:
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in machine.read_text().splitlines()}
        shares.append(sizes["MemAvailable"] / sizes["MemTotal"])
    except (OSError, ValueError, KeyError, IndexError, ZeroDivisionError):
        pass
    try:
        most = int((group / "memory.max").read_text())
        taken = int((group / "memory.current").read_text()) - _idle_file_pages(group)
        shares.append(1.0 - max(0, taken) / most)
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no bound
        pass
    return min(shares)


def _idle_file_pages(group: Path) -> int:
    try:
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(stat["inactive_file"])
    except (OSError, ValueError, KeyError):
        return 0
