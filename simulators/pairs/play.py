"""Plays two acts at once, in every order of their statements up to a bound.

A schedule says whose statement comes next. It is explored as a tree without keeping states: each play begins with the
seeded state, follows a prefix, and then lets whoever is on stage go on as far as possible; every place where the other
could have come instead becomes a prefix of its own. A *switch* is counted when somebody who could go on must wait:
nearly all races need one or two of them.

What is right is not written down for each pair. Transactions are meant to be atomic, so whatever the order of their
statements, results and final state must be those of some order of whole transactions; those orders are played first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from foliot.errors import FoliotError
from foliot.store.postgres.driver import connect
from simulators.pairs.seats import COMMIT, Gate, Seat
from simulators.pairs.stage import Snapshot, Stage
from simulators.pairs.tables import Footprint, together

LOOK_AGAIN: Final = 0.003
LONGEST: Final = 20.0
# Orders of whole transactions are few; what reads very often before it writes is cut off here.
MOST_SERIAL: Final = 60

Performed = Callable[[Seat, str], Awaitable[Any]]


@dataclass(frozen=True)
class Choice:
    """One turn: who was let through, and whether it would have made a difference to let the other one through."""

    player: int
    free: bool
    step: str


@dataclass
class Played:
    """One play. `results` are what the acts gave, in a form that can be compared."""

    results: tuple[str, str]
    after: Snapshot
    choices: list[Choice]
    problems: list[str]
    touched: Footprint
    bodies: tuple[frozenset[str], frozenset[str]]

    @property
    def schedule(self) -> str:
        """The schedule in words, such as `A run_get, A signal_add, B run_release …`."""
        return ", ".join(f"{'AB'[each.player]} {each.step}" for each in self.choices)

    @property
    def outcome(self) -> tuple[Any, ...]:
        return (self.results, self.after.text)


@dataclass
class Finding:
    kind: str
    text: str
    schedule: str


@dataclass
class PairReport:
    """The result of one pair.

    `serial` and `plays` count the orders of transactions, and of statements, that were tried.
    """

    names: tuple[str, str]
    serial: int = 0
    plays: int = 0
    waits: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    cut_off: bool = False

    @property
    def kinds(self) -> list[str]:
        return sorted({each.kind for each in self.findings})


class Theatre:
    """Two connections for the players, one for whoever looks on."""

    def __init__(self, stage: Stage, gates: tuple[Any, Any], onlooker: Any) -> None:
        """Use `open`."""
        self._stage = stage
        self._connections = gates
        self._onlooker = onlooker
        self._footprints: dict[str, Footprint] = {}

    @classmethod
    async def open(cls, stage: Stage) -> Theatre:
        found: list[Any] = []
        for _ in range(3):
            connection = await connect(stage.url, within=30.0)
            await connection.execute("SET deadlock_timeout = '10ms'")
            found.append((connection, await connection.fetchval("SELECT pg_backend_pid()")))
        return cls(stage, (found[0], found[1]), found[2][0])

    async def close(self) -> None:
        for connection, _ in self._connections:
            await connection.close()
        await self._onlooker.close()

    async def solo(self, act: Performed) -> Played:
        """One act alone, beside one that does nothing."""
        return await self.play((act, _nothing), (0,), frozenset())

    async def play(
        self,
        acts: tuple[Performed, Performed],
        prefix: Sequence[int],
        tables: frozenset[str],
        *,
        whole: bool = False,
        known: tuple[Footprint, Footprint] | None = None,
    ) -> Played:
        """One play. `whole`: nobody is interrupted within a transaction. `known` is what each is known to touch."""
        await self._stage.reset()
        bell = asyncio.Event()
        gates = tuple(
            Gate("AB"[number], connection, pid, bell) for number, (connection, pid) in enumerate(self._connections)
        )
        seats = tuple(Seat(self._stage.url, gate) for gate in gates)
        players = tuple(
            asyncio.create_task(_perform(act, seat, gate.label, bell))
            for act, seat, gate in zip(acts, seats, gates, strict=True)
        )
        choices: list[Choice] = []
        problems: list[str] = []
        try:
            async with asyncio.timeout(LONGEST):
                await self._direct(gates, players, bell, prefix, choices, whole=whole, known=known)
        except TimeoutError:
            problems.append("the play did not come to an end")
        finally:
            for player in players:
                player.cancel()
        results = await asyncio.gather(*players, return_exceptions=True)
        for gate in gates:
            if gate.deadlocks:
                problems.append(f"deadlock, met by {gate.label}")
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, (FoliotError, asyncio.CancelledError)):
                problems.append(f"unexpected {type(result).__name__}: {result}")
        touched = together(query for gate in gates for query in gate.queries if query != COMMIT)
        self._stage.touched(touched.written)
        if problems and any(gate.in_transaction for gate in gates):
            await self._calm(gates)
        after = await self._stage.look(tables)
        return Played(
            (self._stage.told(results[0]), self._stage.told(results[1])),
            after,
            choices,
            [*problems, *after.problems],
            touched,
            (frozenset(seats[0].bodies), frozenset(seats[1].bodies)),
        )

    async def _calm(self, gates: Sequence[Gate]) -> None:
        for gate in gates:
            await gate.connection.execute("ROLLBACK")

    async def _direct(
        self,
        gates: Sequence[Gate],
        players: Sequence[asyncio.Task[Any]],
        bell: asyncio.Event,
        prefix: Sequence[int],
        choices: list[Choice],
        *,
        whole: bool,
        known: tuple[Footprint, Footprint] | None,
    ) -> None:
        current = prefix[0] if prefix else 0
        while True:
            await self._settle(gates, players, bell)
            ready = [number for number, gate in enumerate(gates) if gate.waits]
            if not ready:
                if all(player.done() for player in players):
                    return
                bell.clear()
                await bell.wait()  # both wait for a lock: the server will choose one of them
                continue
            number = len(choices)
            if number < len(prefix) and prefix[number] in ready:
                chosen = prefix[number]
            else:
                chosen = current if current in ready else ready[0]
            if whole:
                busy = [each for each in ready if not gates[each].between]
                chosen = busy[0] if busy else chosen
            free = len(ready) == 2 and (not whole or all(gate.between for gate in gates))
            if free and known is not None and number:
                # Who does something that does not concern the other may as well do it first.
                free = gates[chosen].touches(whole=whole).meets(known[1 - chosen])
            choices.append(Choice(chosen, free, gates[chosen].step))
            ends = gates[chosen].step == COMMIT
            gates[chosen].let_through()
            if ends:
                for gate in gates:
                    gate.blocked = False  # it may go on now, or not: look again
            current = chosen

    async def _settle(self, gates: Sequence[Gate], players: Sequence[asyncio.Task[Any]], bell: asyncio.Event) -> None:
        """Wait until each player is at its gate, at its end, or waits for a lock of the other."""
        while True:
            bell.clear()
            moving = [
                number
                for number, gate in enumerate(gates)
                if not gate.waits and not players[number].done() and not gate.blocked
            ]
            if not moving:
                return
            try:
                await asyncio.wait_for(bell.wait(), LOOK_AGAIN)
            except TimeoutError:
                for number in moving:
                    gate, other = gates[number], gates[1 - number]
                    if gate.executing and other.pid in await self._blockers(gate.pid):
                        gate.blocked = gate.executing

    async def _blockers(self, pid: int) -> list[int]:
        return await self._onlooker.fetchval("SELECT pg_blocking_pids($1)", pid)

    async def explore(
        self, names: tuple[str, str], acts: tuple[Performed, Performed], *, switches: int, most: int
    ) -> PairReport:
        """Every schedule with at most `switches` switches, but no more than `most` of them."""
        tables: frozenset[str] = frozenset()
        for name, act in zip(names, acts, strict=True):
            tables |= (await self.footprint(name, act)).written
        while True:
            report, touched = await self._explore(names, acts, tables, switches=switches, most=most)
            if touched <= tables:
                return report
            tables |= touched  # together they do what neither does alone: look at that too

    async def _explore(
        self,
        names: tuple[str, str],
        acts: tuple[Performed, Performed],
        tables: frozenset[str],
        *,
        switches: int,
        most: int,
    ) -> tuple[PairReport, frozenset[str]]:
        report = PairReport(names)
        known = (await self.footprint(names[0], acts[0]), await self.footprint(names[1], acts[1]))
        touched: frozenset[str] = frozenset()
        right: dict[tuple[Any, ...], Played] = {}
        serial_problems: set[str] = set()
        for played in await self._tree(acts, tables, known, switches=None, most=MOST_SERIAL, whole=True):
            right.setdefault(played.outcome, played)
            touched |= played.touched.written
            report.serial += 1
            for problem in played.problems:
                if problem not in serial_problems:
                    serial_problems.add(problem)
                    report.findings.append(Finding("serial", problem, played.schedule))
        plays = await self._tree(acts, tables, known, switches=switches, most=most, whole=False)
        report.plays = len(plays)
        report.cut_off = len(plays) >= most
        for played in plays:
            touched |= played.touched.written
            for problem in played.problems:
                if problem not in serial_problems:
                    report.findings.append(Finding(_kind(problem), problem, played.schedule))
            if played.outcome not in right and not any("deadlock" in problem for problem in played.problems):
                nearest = min(right.values(), key=lambda each: _distance(played, each))
                text = played.after.difference(nearest.after, played.results, nearest.results)
                report.findings.append(Finding("anomaly", text, played.schedule))
        return report, touched

    async def footprint(self, name: str, act: Performed) -> Footprint:
        """Returns the tables that an act touches when it is alone."""
        if name not in self._footprints:
            self._footprints[name] = (await self.solo(act)).touched
        return self._footprints[name]

    async def _tree(
        self,
        acts: tuple[Performed, Performed],
        tables: frozenset[str],
        known: tuple[Footprint, Footprint],
        *,
        switches: int | None,
        most: int,
        whole: bool,
    ) -> list[Played]:
        waiting: list[tuple[int, ...]] = [(1,), (0,)]
        found: list[Played] = []
        while waiting and len(found) < most:
            prefix = waiting.pop()
            played = await self.play(acts, prefix, tables, whole=whole, known=known)
            found.append(played)
            order = [choice.player for choice in played.choices]
            # Nearest to the end first, so that what is popped next differs early: a bound cuts off what is alike.
            for number in range(len(order) - 1, len(prefix) - 1, -1):
                if not played.choices[number].free:
                    continue
                branch = (*order[:number], 1 - order[number])
                if switches is None or _switches(branch, played.choices) <= switches:
                    waiting.insert(0, branch)
        return found


def _distance(one: Played, other: Played) -> int:
    results = sum(here != there for here, there in zip(one.results, other.results, strict=True))
    return results + one.after.distance(other.after)


def _switches(branch: Sequence[int], choices: Sequence[Choice]) -> int:
    """How often somebody who could have gone on had to wait."""
    return sum(1 for number in range(1, len(branch)) if branch[number] != branch[number - 1] and choices[number].free)


def _kind(problem: str) -> str:
    return problem.partition(",")[0].partition(":")[0]


async def _perform(act: Performed, seat: Seat, label: str, bell: asyncio.Event) -> Any:
    try:
        return await act(seat, label.lower())
    finally:
        bell.set()


async def _nothing(seat: Seat, label: str) -> None:
    """The other one, when somebody plays alone."""
