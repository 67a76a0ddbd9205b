"""Taking runs from the queue: which ones a worker with free places gets, and the leases for them.

The order is: the most urgent first; among equals the namespace that has least at work, and in it the line that has
least at work (so neither a namespace nor an agent nor a lane can crowd out another by queueing much); then who is due
longest. What may not be taken now (another worker is needed, a limit is reached, its class is open) stands in no one's
way: runs that are alike form a line, and a line that is refused is stepped over whole, however long it is. Nor does a
namespace get all places of a worker (shares.py): those that it holds it may hold for long.

A look from the top reads at most `LOOKED_AT` lines, and no more than `EACH` of one namespace, so that one with very
many lines hides no other. If that was not all of them, a look that goes on elsewhere (`Claims.cursor`) follows at once
while there are free places, and so on in turns until it has gone round: no line is starved, and what is urgent waits
for one other look at most.

Lines are read outside the transaction, as a hint. What decides is the transaction: it finds the runs again and locks
them with the row of each run, passing over what others have locked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush
from itertools import groupby

import msgspec
from msgspec import Struct

from foliot.store.base import Database
from foliot.store.journal.base import TERMINAL, Lease, StoreSetBack
from foliot.store.queue import queue
from foliot.store.queue.limits import COOL_DOWN, hold_limit, may_probe, probing, room_left
from foliot.store.queue.placement import Offer, fits, lacked_by, starts_programs
from foliot.store.queue.shares import NOTHING, AtWork, NamespaceShares
from foliot.store.transaction import Row, Tx, many, one, rows

LOOKED_AT = 128
EACH = 8
# Sorts before every line, and is not "", which begins at the top.
_BEGINNING = " "


class Claims(Struct, frozen=True):
    """The result of one look at the queue.

    `next_due` is when the next run that is known becomes due. `refused` counts lines of which no more was taken
    although something is due, by reason: `placement`, `limit`, `breaker`, `share` (its namespace has its share of the
    places of this worker), or `taken` (others were faster, or are at it). `recovered` are the ids of runs whose holder
    let its lease run out. `more`: there may be more, look again as soon as there is a place, at `cursor` too: where
    this look did not look, or did not come to an end. `programs` are the ids of those taken whose tools start programs
    on the machine of the worker; `namespaces` has the namespace of each run that was taken.
    `shared`: several namespaces share the worker.
    """

    leases: list[Lease]
    next_due: float | None = None
    refused: dict[str, int] = {}
    recovered: tuple[str, ...] = ()
    more: bool = False
    cursor: str = ""
    programs: frozenset[str] = frozenset()
    namespaces: dict[str, str] = {}
    shared: bool = False


class QueueLine(Struct, frozen=True):
    """Runs that are alike, and how many of them are held.

    `ready_at` is when the first that nobody holds is due, `next_at` when the first is that is not due yet;
    `lapses_at` is when the first lease ends.
    """

    line: str
    namespace: str
    agent: str
    lane: str
    class_key: str
    requirements: str
    max_running: int
    ready_at: float | None
    next_at: float | None
    lapses_at: float | None
    running: int

    def is_due(self, now: float, leased: float) -> bool:
        return (self.ready_at is not None and self.ready_at <= now) or self.has_lapsed(leased)

    def has_lapsed(self, leased: float) -> bool:
        """`leased` is the time by the clock of leases."""
        return self.lapses_at is not None and self.lapses_at < leased

    def since(self) -> float:
        """How long something of it has been due."""
        return min(at for at in (self.ready_at, self.lapses_at) if at is not None)


class ClaimBounds(Struct, frozen=True):
    """Limits by (scope, name), and when which class was opened, as they were before the transaction.

    `shared`: something is declared in more than one namespace.
    """

    limited: frozenset[tuple[str, str]]
    opened: dict[str, float]
    incarnation: str = ""
    shared: bool = False

    def of(self, line: QueueLine) -> Iterable[tuple[str, str, str, int | None]]:
        """Yields the limits of a line: scope, namespace, name, and the maximum where it came with the run."""
        if ("namespace", line.namespace) in self.limited:
            yield "namespace", line.namespace, "", None
        for scope, name in (("agent", line.agent), ("lane", line.lane)):
            if (scope, f"{line.namespace}/{name}") in self.limited:
                yield scope, line.namespace, name, None
        if line.max_running:
            yield "definition", line.namespace, line.agent, line.max_running


async def claim(
    db: Database,
    offer: Offer,
    *,
    want: int,
    now: float,
    until: float,
    after: str = "",
    lacking: Set[str] = frozenset(),
    leased: float | None = None,
    incarnation: str = "",
    programs: int | None = None,
    at_work: AtWork | None = None,
    shared: bool = False,
    keep_free: bool = False,
) -> Claims:
    """Take up to `want` runs that are due, each under a new epoch with a lease until `until`.

    `leased` is the time by the clock of leases, which `until` is of too; by default it is `now`.
    `after` is the cursor of an earlier look; without it the look is from the top. Runs that this worker gave back for
    want of something in `lacking` are left to others. `programs` is how many of them may be runs whose tools start
    programs here, by default any number. `at_work` is what this worker has already: then no namespace gets more
    than its share of the places, if there are several, or had been at an earlier look (`shared`), or with `keep_free`
    in any case. An idle look is one query and writes nothing.
    Raises `Unavailable`, and `StoreSetBack` when the store is not of the `incarnation` that is given.
    """
    leased = now if leased is None else leased
    each = LOOKED_AT if after else EACH
    found = await db.read("queue_lines", after=after, now=now, count=LOOKED_AT, each=each)
    cursor = _cursor([row["line"] for row in found if row["waits"]], from_top=not after)
    lines = list({row["line"]: _line(row) for row in found}.values())
    due = [line for line in lines if line.is_due(now, leased)]
    lapsed = [line for line in due if line.has_lapsed(leased)]
    fitting = [line for line in due if _suits(offer, line.requirements, lacking)]
    refused = Counter({"placement": len(due) - len(fitting)})
    bounds = ClaimBounds(frozenset(), {})
    taken = TakenRuns([], (), {})
    if want > 0 and (fitting or lapsed):
        bounds = await read_bounds(db)
        if incarnation and bounds.incarnation != incarnation:
            raise StoreSetBack("it is another store than before, such as one that was put back from a backup")
        busy = Counter[str]()
        for line in lines:
            busy[line.namespace] += line.running
        here = at_work or NOTHING
        shared = at_work is not None and (shared or bounds.shared or len({*busy, *here.runs}) > 1)
        shares = NamespaceShares(want, programs, here, shared=shared, keep_free=keep_free)
        taken = await db.write(take, offer, want, now, until, fitting, lapsed, busy, bounds, leased, shares)
        refused.update(taken.refused)
    return Claims(
        leases=taken.leases,
        next_due=_next_due(lines, bounds, now, leased),
        refused={reason: count for reason, count in refused.items() if count},
        recovered=taken.recovered,
        more=len(taken.leases) >= want or bool(cursor),
        cursor=after if after and len(taken.leases) >= want else cursor,
        programs=taken.programs,
        namespaces=taken.namespaces,
        shared=shared,
    )


async def read_bounds(db: Database) -> ClaimBounds:
    return _bounds(await db.read("bound_list"))


async def recall(db: Database, offer: Offer, *, until: float) -> list[tuple[Lease, str]]:
    """Returns the leases of a claim with this `until` whose answer was lost, each with the namespace of its run.

    None if it was never stored. To be asked before anything of it is renewed. Raises `Unavailable`.
    """
    found = await db.read("queue_claimed", identity=offer.identity, until=until)
    return [
        (
            Lease(
                row["run_id"],
                row["run"],
                row["epoch"],
                offer.identity,
                until,
                queued=True,
                released=row["left_seq"] > 0,
                name=offer.name,
            ),
            row["namespace"],
        )
        for row in found
    ]


def _suits(offer: Offer, requirements: str, lacking: Set[str]) -> bool:
    return fits(offer, requirements) and not (lacking and lacked_by(offer, requirements) in lacking)


async def waiting_for_others(
    db: Database,
    offer: Offer,
    run_ids: Sequence[str],
    *,
    now: float,
    lacking: Set[str] = frozenset(),
    full: Set[str] = frozenset(),
) -> set[str]:
    """Returns the due and free ones among these runs that this worker may not take.

    `full` are the namespaces that have their share of its places.
    """
    if not run_ids:
        return set()
    found = await db.read("queue_due", run_ids=msgspec.json.encode(run_ids).decode(), now=now)
    return {
        row["run_id"] for row in found if row["namespace"] in full or not _suits(offer, row["requirements"], lacking)
    }


class TakenRuns(Struct, frozen=True):
    leases: list[Lease]
    recovered: tuple[str, ...]
    refused: dict[str, int]
    programs: frozenset[str] = frozenset()
    namespaces: dict[str, str] = {}


def take(
    offer: Offer,
    want: int,
    now: float,
    until: float,
    lines: Sequence[QueueLine],
    lapsed: Sequence[QueueLine],
    at_work: Mapping[str, int],
    bounds: ClaimBounds,
    leased: float | None = None,
    shares: NamespaceShares | None = None,
) -> Tx[TakenRuns]:
    """The transaction of a claim: from these lines, in fair order, within the bounds.

    `now` says what is due, `leased` (by default the same) which leases have ended.
    `lapsed` are lines with leases that have ended, whoever may take what was held: they are set right first.
    `at_work` is what each namespace has at work anywhere, `shares` what each may take of the places of this worker.
    """
    leased = now if leased is None else leased
    recovered: set[str] = set()
    if lapsed:
        yield from _hold_bounds(lines, bounds)
    for line in lapsed:
        recovered.update((yield from _recover(line, now, leased)))
    # A body may be begun again after a conflict: what it counts down is its own.
    gate = yield from _open_gate(lines, bounds, now, (shares or NamespaceShares(want)).copy())
    busy = Counter(at_work)
    chosen: list[Row] = []
    for _, level in groupby(lines, key=lambda line: line.line[: queue.URGENCY]):
        if len(chosen) < want:
            chosen += yield from _take_level(list(level), want - len(chosen), now, leased, busy, gate)
    leases = [
        Lease(
            row["run_id"],
            row["run"],
            row["epoch"] + 1,
            offer.identity,
            until,
            queued=True,
            released=row["left_seq"] > 0,
            name=offer.name,
        )
        for row in chosen
    ]
    fields = [
        {
            "key": lease.key,
            "epoch": lease.epoch,
            "worker": lease.worker,
            "until": until,
            "now": now,
            "left_seq": row["left_seq"],
        }
        for lease, row in zip(leases, chosen, strict=True)
    ]
    yield from many("queue_claim", fields)
    yield from many("queue_hold", [{"run": lease.key, "until": until} for lease in leases])
    mine = {lease.run_id for lease in leases}
    return TakenRuns(
        leases, tuple(sorted(recovered & mine)), dict(gate.refused), frozenset(gate.programs), gate.namespaces
    )


def _take_level(
    lines: Sequence[QueueLine], want: int, now: float, leased: float, busy: Counter[str], gate: ClaimGate
) -> Tx[list[Row]]:
    """Up to `want` runs from lines that are equally urgent.

    Places are shared out as if every line had enough runs; what a line cannot use is shared out again among the rest.
    """
    pending = {line.line: line for line in lines}
    picked = Counter({line.line: line.running for line in lines})
    chosen: dict[int, Row] = {}
    while pending and len(chosen) < want:
        for name, count in share_out(pending.values(), want - len(chosen), busy, picked):
            line = pending[name]
            allowed = min(count, gate.room(line))
            before = picked[name] - line.running  # stand at its head until the end of this transaction
            found = (yield from rows("queue_take", line=name, now=now, count=before + allowed)) if allowed else []
            fresh = [row for row in found if row["run"] not in chosen]
            good = yield from _without_strays(fresh, leased)
            if good:
                yield from gate.passed(line, good)
            if not allowed or not (fresh or before):
                gate.refuse(line)
            if not allowed or len(fresh) < allowed:
                del pending[name]
            chosen.update((row["run"], row) for row in good)
            busy[line.namespace] += len(good)
            picked[name] += len(good)
    return list(chosen.values())


def share_out(
    lines: Iterable[QueueLine], want: int, busy: Mapping[str, int], picked: Mapping[str, int]
) -> list[tuple[str, int]]:
    """How many places each line gets if every line had enough runs: one by one to whoever has least at work.

    `busy` is what each namespace has at work, `picked` what each line has.
    """
    spaces: dict[str, list[tuple[int, float, str]]] = {}
    for line in lines:
        spaces.setdefault(line.namespace, []).append((picked[line.line], line.since(), line.line))
    turns: list[tuple[int, float, str]] = []
    for space, waiting in spaces.items():
        heapify(waiting)
        turns.append((busy.get(space, 0), waiting[0][1], space))
    heapify(turns)
    shares = Counter[str]()
    for _ in range(want):
        load, _, space = heappop(turns)
        waiting = spaces[space]
        running, since, name = heappop(waiting)
        shares[name] += 1
        heappush(waiting, (running + 1, since, name))
        heappush(turns, (load + 1, waiting[0][1], space))
    return list(shares.items())


class ClaimGate:
    """How much may still be taken of each line in this transaction."""

    def __init__(
        self,
        keys: Mapping[str, list[tuple[str, str, str]]],
        rooms: dict[tuple[str, str, str], int],
        shut: dict[str, bool],
        shares: NamespaceShares,
    ) -> None:
        """`keys` are the limits of each line, `rooms` what is left of each; `shut`: open classes, True for a probe."""
        self._keys = keys
        self._rooms = rooms
        self._classes = shut
        self._shares = shares
        self.programs: set[str] = set()
        self.namespaces: dict[str, str] = {}
        self.refused = Counter[str]()

    def room(self, line: QueueLine) -> int:
        room = min((self._rooms[key] for key in self._keys[line.line]), default=2**31 - 1)
        room = min(room, self._shares.left(line.namespace))
        if starts_programs(line.requirements):
            room = min(room, self._shares.programs_left(line.namespace))
        probe = self._classes.get(line.class_key)
        return room if probe is None else min(room, int(probe))

    def refuse(self, line: QueueLine) -> None:
        """Counts why no more of this line is taken."""
        if self.room(line):
            self.refused["taken"] += 1
        elif self._classes.get(line.class_key) is False:
            self.refused["breaker"] += 1
        else:
            self.refused["limit" if self._shares.left(line.namespace) else "share"] += 1

    def passed(self, line: QueueLine, taken: Sequence[Row]) -> Tx[None]:
        for key in self._keys[line.line]:
            self._rooms[key] -= len(taken)
        run_ids = [row["run_id"] for row in taken]
        programs = starts_programs(line.requirements)
        self._shares.took(line.namespace, len(taken), programs=programs)
        self.namespaces.update(dict.fromkeys(run_ids, line.namespace))
        if programs:
            self.programs.update(run_ids)
        if line.class_key in self._classes:
            self._classes[line.class_key] = False
            yield from probing(line.class_key, taken[0]["run"])


def _hold_bounds(lines: Sequence[QueueLine], bounds: ClaimBounds) -> Tx[None]:
    """Lock what limits these lines ahead of the runs that are set right: whoever ends a run does so too."""
    wanted = {limit[:3]: limit[3] for line in lines for limit in bounds.of(line)}
    for scope, namespace, name in sorted(wanted):
        yield from hold_limit(scope, namespace, name, wanted[scope, namespace, name])
    for class_key in sorted({line.class_key for line in lines} & bounds.opened.keys()):
        yield from one("class_lock", key=class_key)


def _open_gate(lines: Sequence[QueueLine], bounds: ClaimBounds, now: float, shares: NamespaceShares) -> Tx[ClaimGate]:
    """Lock what limits these lines, in an order that all workers keep, and count."""
    limits = {line.line: list(bounds.of(line)) for line in lines}
    wanted = {limit[:3]: limit[3] for each in limits.values() for limit in each}
    rooms: dict[tuple[str, str, str], int] = {}
    for key in sorted(wanted):
        rooms[key] = yield from room_left(*key, wanted[key])
    shut: dict[str, bool] = {}
    for class_key in sorted({line.class_key for line in lines} & bounds.opened.keys()):
        may = yield from may_probe(class_key, now)
        if may is not None:
            shut[class_key] = may
    return ClaimGate({name: [limit[:3] for limit in each] for name, each in limits.items()}, rooms, shut, shares)


def _recover(line: QueueLine, now: float, leased: float) -> Tx[list[str]]:
    """Free the runs of a line whose holders let their leases run out; the ids of those that can be taken now.

    They keep their places in the line. One that keeps killing its worker comes behind what waits, after a few times.
    """
    freed: list[str] = []
    for row in (yield from rows("queue_lapsed", line=line.line, now=leased, count=LOOKED_AT)):
        if not (yield from _set_right(row, leased)):
            yield from queue.take_back(row["run"], row["due_at"] - leased + now)
            freed.append(row["run_id"])
    return freed


def _without_strays(found: Sequence[Row], leased: float) -> Tx[list[Row]]:
    good: list[Row] = []
    for row in found:
        if not (yield from _set_right(row, leased)):
            good.append(row)
    return good


def _set_right(row: Row, leased: float) -> Tx[bool]:
    """Make the queue agree with a run that somebody took or ended without it; True if that was so."""
    if row["phase"] in TERMINAL:
        yield from queue.remove(row["run"])
        return True
    if row["lease_until"] is not None and row["lease_until"] >= leased:
        yield from many("queue_hold", [{"run": row["run"], "until": row["lease_until"]}])
        return True
    return False


def _cursor(names: Sequence[str], *, from_top: bool) -> str:
    """Returns the cursor at which the next look finds the lines that this one did not see; "" when it saw all."""
    if not from_top:
        return names[-1] if len(names) == LOOKED_AT else ""
    most = max(Counter(name[: queue.SPACE] for name in names).values(), default=0)
    return _BEGINNING if len(names) == LOOKED_AT or most >= EACH else ""


def _next_due(lines: Iterable[QueueLine], bounds: ClaimBounds, now: float, leased: float) -> float | None:
    """Returns when something will be due: a pause or a timer is over, a lease ends, an open class may be tried."""
    times = [line.next_at for line in lines if line.next_at is not None]
    times += [line.lapses_at - leased + now for line in lines if line.lapses_at is not None]
    classes = {line.class_key for line in lines}
    times += [opened + COOL_DOWN for key, opened in bounds.opened.items() if key in classes]
    return min((at for at in times if at > now), default=None)


def _line(row: Row) -> QueueLine:
    return QueueLine(
        line=row["line"],
        namespace=row["namespace"],
        agent=row["agent"],
        lane=row["lane"],
        class_key=row["class"],
        requirements=row["requirements"],
        max_running=row["max_running"],
        ready_at=row["ready_at"],
        next_at=row["next_at"],
        lapses_at=row["lapses_at"],
        running=row["running"],
    )


def _bounds(found: Iterable[Row]) -> ClaimBounds:
    limited: set[tuple[str, str]] = set()
    opened: dict[str, float] = {}
    incarnation = ""
    shared = False
    for row in found:
        if row["scope"] == "store":
            incarnation = row["name"]
        elif row["scope"] == "shared":
            shared = True
        elif row["scope"] == "class":
            opened[row["name"]] = row["opened_at"]
        else:
            limited.add((row["scope"], row["name"]))
    return ClaimBounds(frozenset(limited), opened, incarnation, shared)
