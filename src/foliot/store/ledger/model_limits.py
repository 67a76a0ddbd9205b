"""The lines at models that may only be asked so often, in the store: one for each key and model, for all processes.

Written by:  engine/limits/shared.py.
Invariants:  every turn is taken under the lock of its line, by what has begun in it and by who stands in front, so at
             no time have more begun within a window than any limit allows that an endpoint of this key and model
             declares. A place is kept for whoever does not come when it is time (it may be busy elsewhere), but no
             room; after a day it is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from foliot.resources.rates import (
    GRACE,
    NO_LIMITS,
    Bound,
    Counted,
    Declarer,
    QueueAhead,
    RateLimits,
    RateLine,
    TurnDue,
    UsedSlot,
    averaged,
    donor_of,
    latest,
    most_wanted,
)
from foliot.store.base import Database
from foliot.store.transaction import Row, Tx, many, one, rows, run

_KEPT: Final = 86_400.0
_BEHIND_ALL: Final = 2**62
# Whoever is told to come at once is told so only when it would have come later than this.
_SOON: Final = 1.0
# So many who stand first are told that somebody in front of them has left.
_TOLD: Final = 8


class TakenTurn(NamedTuple):
    """`due` is when the turn comes, by `limits`; it was taken when that is not after `now`, and `counted` there."""

    now: float
    due: float
    ahead: int = 0
    bound: Bound = ""
    limits: RateLimits = NO_LIMITS
    counted: Counted = Counted()


class SqlModelLimits:
    """The shared limits of models, on either database."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def take(
        self,
        key: str,
        asker: str,
        limits: RateLimits,
        tokens: int,
        *,
        queue: bool,
        clock: Callable[[], float],
        kept: float,
        by: Declarer | None = None,
    ) -> TakenTurn:
        """Take a turn, or with `queue` a place. A call counts as under way for `kept` seconds if its process dies.

        The `clock` is read when the line is locked: who waited for that begins then, and not when it asked. `by` is the
        endpoint that declares `limits`: they hold from now on for all who ask with this key.
        """
        return await self._db.write(_take, key, asker, limits, tokens, queue, clock, kept, by)

    async def settle(self, key: str, asker: str, counted: Counted, *, more: int, seconds: float, now: float) -> str:
        """End a call that took `more` tokens than expected. Who stands in front and may come at once; "" for nobody."""
        return await self._db.write(_settle, key, asker, counted, more, seconds, now)

    async def held(self, now: float) -> frozenset[str]:
        """Return the lines that somebody declared a limit for, or whose provider wants a pause."""
        return frozenset(row["key"] for row in await self._db.read("model_line_held", now=now))

    async def pause(self, key: str, until: float) -> None:
        await self._db.write(_pause, key, until)

    async def leave(self, asker: str, *, now: float) -> list[str]:
        """Give up all places of somebody. Return who stands first in these lines: their turn comes earlier now."""
        return await self._db.write(_leave, asker, now)

    async def renew(self, calls: Iterable[tuple[str, str]], *, until: float) -> None:
        """Keep the calls of a living process."""
        await self._db.write(
            many, "model_call_renew", [{"key": key, "asker": asker, "until": until} for key, asker in calls]
        )

    async def declarers(self, namespace: str) -> list[tuple[str, str]]:
        """Return the endpoints of a namespace whose limits are noted, each with its version then."""
        found = await self._db.read("model_limit_versions", namespace=namespace)
        return [(row["endpoint"], row["version"]) for row in found]

    async def forget(self, endpoint: str, version: str) -> None:
        """Drop what an endpoint of this version declared."""
        await self._db.write(run, "model_limit_forget", endpoint=endpoint, version=version)


# --- transactions ------------------------------------------------------------------------------------------------


def _take(
    key: str,
    asker: str,
    limits: RateLimits,
    tokens: int,
    queue: bool,
    clock: Callable[[], float],
    kept: float,
    by: Declarer | None,
) -> Tx[TakenTurn]:
    head = yield from _turn(key, limits.per)
    now = clock()
    every = yield from _declared(key, limits, by)
    for window in _windows(every):
        yield from run("model_use_sweep", key=_counter(key, window), before=now - window)
    mine = yield from one("model_place_mine", key=key, asker=asker)
    number = _BEHIND_ALL if mine is None else mine["number"]
    due, ahead = yield from _due(key, head, every, number, tokens, now)
    if due.at <= now:
        if mine is not None:
            yield from run("model_place_remove", key=key, number=number)
        slots = tuple((window, RateLimits(per=window).slot(now)) for window in _windows(every))
        for window, slot in slots:
            yield from run("model_use_add", key=_counter(key, window), at=slot, tokens=tokens)
        calls = any(each.concurrency is not None for each in every)
        if calls:
            yield from run("model_call_begin", key=key, asker=asker, until=now + kept)
        counted = Counted(slots, any(each.tokens is not None for each in every), calls)
        return TakenTurn(now, now, counted=counted)
    if queue and mine is not None:
        yield from run("model_place_due", key=key, number=number, due=due.at)
    elif queue:
        yield from run("model_place_sweep", key=key, before=now - _KEPT)
        number = head["last"] + 1
        yield from run("model_line_set", key=key, last=number, window_size=max(head["window_size"], limits.per))
        wanted = most_wanted(every, tokens)
        yield from run("model_place_add", key=key, number=number, asker=asker, tokens=wanted, due=due.at)
    return TakenTurn(now, due.at, ahead.requests, due.bound, due.limits)


def _turn(key: str, window: float) -> Tx[Row]:
    head = yield from one("model_line_turn", key=key)
    if head is None:
        yield from run("model_line_open", key=key, paused_until=0.0, window_size=window)
        head = yield from one("model_line_turn", key=key)
        assert head is not None, "it was opened, by this or by another process"
    return head


def _declared(key: str, limits: RateLimits = NO_LIMITS, by: Declarer | None = None) -> Tx[list[RateLimits]]:
    """Every limit of the line, with that of whoever asks now; it is noted where it was not, or has changed."""
    found = yield from rows("model_limit_list", key=key)
    every = [_limits(row) for row in found if by is None or row["endpoint"] != by.endpoint]
    if not limits.none:
        every.append(limits)
    if by is not None:
        noted = next(((_limits(row), row["version"]) for row in found if row["endpoint"] == by.endpoint), None)
        if limits.none and noted is not None:
            yield from run("model_limit_drop", endpoint=by.endpoint, model=by.model)
        elif not limits.none and noted != (limits, by.version):
            amounts = {name: getattr(limits, name) for name in ("requests", "tokens", "per", "concurrency", "burst")}
            yield from run("model_limit_put", **by._asdict(), key=key, **amounts)
            known = _windows([_limits(row) for row in found])
            if known and limits.counted and limits.per not in known:
                donor = donor_of(limits.per, known)
                yield from run("model_use_copy", key=_counter(key, donor), new=_counter(key, limits.per))
    return list(dict.fromkeys(every))


def _limits(row: Row) -> RateLimits:
    return RateLimits(row["requests"], row["tokens"], row["per"], row["concurrency"], row["burst"])


def _windows(every: Sequence[RateLimits]) -> list[float]:
    """The lengths of the windows within which it has to be known what began."""
    return list(dict.fromkeys(each.per for each in every if each.counted))


def _counter(key: str, window: float) -> str:
    return f"{key} in {window:g} s"


def _due(
    key: str, head: Row, every: Sequence[RateLimits], number: int, tokens: int, now: float
) -> Tx[tuple[TurnDue, QueueAhead]]:
    ahead = yield from one("model_place_ahead", key=key, number=number, since=now - GRACE)
    assert ahead is not None, "a count has one row"
    front = QueueAhead(ahead["requests"], int(ahead["tokens"]))
    active = 0
    if any(each.concurrency is not None for each in every):
        calls = yield from one("model_call_count", key=key, now=now)
        active = calls["active"] if calls is not None else 0
    line = RateLine((), front, active, head["seconds"], head["paused_until"])
    used: dict[float, Sequence[UsedSlot]] = {}
    for window in _windows(every):
        # The sum tells most of the time that there is room, without reading a thousand rows.
        counter = _counter(key, window)
        total = yield from one("model_use_sum", key=counter)
        assert total is not None, "a sum has one row"
        used[window] = [UsedSlot(now, int(total["requests"]), int(total["tokens"]))]
        these = [each for each in every if each.per == window]
        if latest(these, RateLine((), front), used, tokens, now).at > now:
            found = yield from rows("model_use_list", key=counter)
            used[window] = [UsedSlot(row["at"], row["requests"], row["tokens"]) for row in found]
    return latest(every, line, used, tokens, now), front


def _settle(key: str, asker: str, counted: Counted, more: int, seconds: float, now: float) -> Tx[str]:
    head = yield from _turn(key, 60.0)
    if more:
        for window, slot in counted.slots:
            yield from run("model_use_more", key=_counter(key, window), at=slot, more=more)
    if counted.calls:
        yield from run("model_call_end", key=key, asker=asker, now=now)
        yield from run("model_line_seconds", key=key, seconds=averaged(head["seconds"], seconds))
    first = yield from one("model_place_first", key=key, since=now - GRACE)
    if first is None or first["due"] <= now + _SOON:
        return ""
    every = yield from _declared(key)
    due, _ = yield from _due(key, head, every, first["number"], first["tokens"], now)
    if due.at > now:
        return ""
    yield from run("model_place_due", key=key, number=first["number"], due=now)
    return first["asker"]


def _leave(asker: str, now: float) -> Tx[list[str]]:
    lines = yield from rows("model_place_lines", asker=asker)
    if not lines:
        return []
    yield from run("model_place_leave", asker=asker)
    first: list[str] = []
    for line in lines:
        found = yield from rows("model_place_next", key=line["key"], since=now - GRACE, count=_TOLD)
        first += [row["asker"] for row in found]
    return first


def _pause(key: str, until: float) -> Tx[None]:
    yield from _turn(key, 60.0)
    yield from run("model_line_pause", key=key, until=until)
