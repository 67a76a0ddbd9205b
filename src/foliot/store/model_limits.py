"""The lines at models that may only be asked so often, in the store: one for each key and model, for all processes.

Written by:  engine/limiting/models.py.
Invariants:  every turn is taken under the lock of its line, by what has begun in it and by who stands in front, so at
             no time have more begun within the window than the limit of whoever took the last turn. A place is kept for
             whoever does not come when it is time (it may be busy elsewhere), but no room; after a day it is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from foliot.resources.rates import GRACE, Ahead, Bound, Limits, Line, Used, averaged, earliest
from foliot.store.base import Database
from foliot.store.transaction import Row, Tx, many, one, rows, run

_KEPT: Final = 86_400.0
_BEHIND_ALL: Final = 2**62
# Whoever is told to come at once is told so only when it would have come later than this.
_SOON: Final = 1.0


class Taken(NamedTuple):
    """`due` is when the turn comes; it was taken when that is not after `now`. `slot` is when it is counted."""

    now: float
    due: float
    ahead: int = 0
    bound: Bound = ""
    slot: float = 0.0


class SqlModelLimits:
    """On either database."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def take(
        self, key: str, asker: str, limits: Limits, tokens: int, *, queue: bool, clock: Callable[[], float], kept: float
    ) -> Taken:
        """Take a turn, or with `queue` a place. A call counts as under way for `kept` seconds if its process dies.

        The `clock` is read when the line is locked: who waited for that begins then, and not when it asked.
        """
        return await self._db.write(_take, key, asker, limits, tokens, queue, clock, kept)

    async def settle(
        self, key: str, asker: str, limits: Limits, *, slot: float, more: int, seconds: float, now: float
    ) -> str:
        """End a call that took `more` tokens than expected. Who stands in front and may come at once; "" for nobody."""
        return await self._db.write(_settle, key, asker, limits, slot, more, seconds, now)

    async def pause(self, key: str, until: float) -> None:
        await self._db.write(_pause, key, until)

    async def leave(self, asker: str) -> None:
        await self._db.write(run, "model_place_leave", asker=asker)

    async def renew(self, calls: Iterable[tuple[str, str]], *, until: float) -> None:
        """Keep the calls of a living process."""
        await self._db.write(
            many, "model_call_renew", [{"key": key, "asker": asker, "until": until} for key, asker in calls]
        )


# --- transactions ------------------------------------------------------------------------------------------------


def _take(
    key: str, asker: str, limits: Limits, tokens: int, queue: bool, clock: Callable[[], float], kept: float
) -> Tx[Taken]:
    head = yield from _turn(key, limits.per)
    now = clock()
    window = max(head["window_size"], limits.per)
    if limits.counted:
        yield from run("model_use_sweep", key=key, before=now - window)
    mine = yield from one("model_place_mine", key=key, asker=asker)
    number = _BEHIND_ALL if mine is None else mine["number"]
    line = yield from _line(key, head, limits, number, tokens, now)
    due, bound = earliest(limits, line, tokens, now)
    if due <= now:
        if mine is not None:
            yield from run("model_place_remove", key=key, number=number)
        slot = limits.slot(now)
        if limits.counted:
            yield from run("model_use_add", key=key, at=slot, tokens=tokens)
        if limits.concurrency is not None:
            yield from run("model_call_begin", key=key, asker=asker, until=now + kept)
        return Taken(now, now, slot=slot)
    if queue and mine is not None:
        yield from run("model_place_due", key=key, number=number, due=due)
    elif queue:
        yield from run("model_place_sweep", key=key, before=now - _KEPT)
        number = head["last"] + 1
        yield from run("model_line_set", key=key, last=number, window_size=window)
        yield from run("model_place_add", key=key, number=number, asker=asker, tokens=limits.wanted(tokens), due=due)
    return Taken(now, due, line.ahead.requests, bound)


def _turn(key: str, window: float) -> Tx[Row]:
    head = yield from one("model_line_turn", key=key)
    if head is None:
        yield from run("model_line_open", key=key, paused_until=0.0, window_size=window)
        head = yield from one("model_line_turn", key=key)
        assert head is not None, "it was opened, by this or by another process"
    return head


def _line(key: str, head: Row, limits: Limits, number: int, tokens: int, now: float) -> Tx[Line]:
    ahead = yield from one("model_place_ahead", key=key, number=number, since=now - GRACE)
    assert ahead is not None, "a count has one row"
    front = Ahead(ahead["requests"], int(ahead["tokens"]))
    used: list[Used] = []
    if limits.counted:
        # The sum tells most of the time that there is room, without reading a thousand rows.
        total = yield from one("model_use_sum", key=key)
        assert total is not None, "a sum has one row"
        used = [Used(now, int(total["requests"]), int(total["tokens"]))]
        if earliest(limits, Line(used, front), tokens, now)[0] > now:
            used = [
                Used(row["at"], row["requests"], row["tokens"]) for row in (yield from rows("model_use_list", key=key))
            ]
    active = 0
    if limits.concurrency is not None:
        calls = yield from one("model_call_count", key=key, now=now)
        active = calls["active"] if calls is not None else 0
    return Line(used, front, active, head["seconds"], head["paused_until"])


def _settle(key: str, asker: str, limits: Limits, slot: float, more: int, seconds: float, now: float) -> Tx[str]:
    head = yield from _turn(key, limits.per)
    if more:
        yield from run("model_use_more", key=key, at=slot, more=more)
    if limits.concurrency is not None:
        yield from run("model_call_end", key=key, asker=asker, now=now)
        yield from run("model_line_seconds", key=key, seconds=averaged(head["seconds"], seconds))
    first = yield from one("model_place_first", key=key, since=now - GRACE)
    if first is None or first["due"] <= now + _SOON:
        return ""
    line = yield from _line(key, head, limits, first["number"], first["tokens"], now)
    if earliest(limits, line, first["tokens"], now)[0] > now:
        return ""
    yield from run("model_place_due", key=key, number=first["number"], due=now)
    return first["asker"]


def _pause(key: str, until: float) -> Tx[None]:
    yield from _turn(key, 60.0)
    yield from run("model_line_pause", key=key, until=until)
