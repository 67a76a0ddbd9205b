"""Shared state of the limits on tools: token buckets, windows, places, and circuits of failing tools.

Written by:  engine/limiting/, for every process that calls tools on this store.
Invariants:  the tokens in a bucket and those that processes have leased from it are together never more than the bucket
             holds, and those of a window, used or leased, never more than its requests: so in any span of its length no
             more calls are made than the limit says. A lease counts at its end until it is known what was used of it.
             The counters are those of models (model_use), under keys of their own. A place belongs to a process and has
             an end; when the process dies, so does its place. At most one process at a time probes an open circuit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from foliot.resources.rates import fits_at, slot_at
from foliot.store.base import Database
from foliot.store.transaction import Row, Tx, many, one, rows, run

# A hair: what floating point loses when a bucket is filled in many small steps.
_HAIR: Final = 1e-9


class ToolRate(NamedTuple):
    """Never more than `requests` in any `per` seconds; the bucket, which spreads them, holds `size`."""

    requests: int
    per: float
    size: int

    @property
    def per_second(self) -> float:
        """The tokens that flow in."""
        return self.requests / self.per


class LeaseRequest(NamedTuple):
    """The request of a process for one tool, with the `unused` tokens of its last lease.

    `number` names its new place.
    """

    key: str
    holder: str
    rate: ToolRate | None = None
    tokens: int = 0
    unused: int = 0
    most: int | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class ToolLease:
    """`tokens` may be used until the lease ends. `wait` is about how many seconds it is to the one after them.

    `placed`: there was a place, or none is needed. Without a place no tokens are given.
    """

    tokens: int = 0
    wait: float = 0.0
    placed: bool = True


@dataclass(frozen=True, slots=True)
class Trouble:
    """A tool that fails: `failures` in a row, and since when it is left alone, if it is."""

    failures: int
    opened_at: float | None


class SqlLimits:
    """The shared limits of tools, on either database."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def ask(self, wish: LeaseRequest, *, now: float, lease_until: float, place_until: float) -> ToolLease:
        """Take what there is of what is wished for, at once."""
        return await self._db.write(_ask, wish, now, lease_until, place_until)

    async def leave(self, key: str, holder: str, numbers: Sequence[int]) -> None:
        """Give places back."""
        await self._db.write(_leave, key, holder, numbers)

    async def renew(self, holder: str, places: Iterable[tuple[str, int]], *, until: float) -> None:
        """Keep the places of a living process."""
        renewed = [{"key": key, "holder": holder, "number": number, "until": until} for key, number in places]
        await self._db.write(many, "tool_place_renew", renewed)

    async def holders(self, key: str) -> list[str]:
        return [row["holder"] for row in await self._db.read("tool_place_holders", key=key)]

    async def forget(self, holders: Iterable[str]) -> None:
        """Frees the places of processes that have died."""
        await self._db.write(many, "tool_place_forget", [{"holder": holder} for holder in holders])

    # --- circuits ------------------------------------------------------------------------------------------------

    async def troubles(self) -> dict[str, Trouble]:
        """All tools that fail, by key."""
        return {row["key"]: _trouble(row) for row in await self._db.read("tool_circuit_all")}

    async def failed(self, key: str, *, most: int, now: float) -> Trouble:
        """One more failure in a row; at `most` the tool is left alone from `now` on."""
        return await self._db.write(_failed, key, most, now)

    async def well(self, key: str) -> None:
        """The tool answers."""
        await self._db.write(run, "tool_circuit_well", key=key)

    async def probe(self, key: str, holder: str, opened_at: float, *, now: float, until: float) -> bool:
        """Whether this process may try the tool: nobody else does, and the circuit is still as it was seen."""
        return bool(
            await self._db.write(
                run, "tool_circuit_probe", key=key, holder=holder, opened_at=opened_at, now=now, until=until
            )
        )

    async def unprobe(self, key: str, holder: str) -> None:
        """The try was broken off and says nothing."""
        await self._db.write(run, "tool_circuit_unprobe", key=key, holder=holder)


# --- transactions ------------------------------------------------------------------------------------------------


def _ask(wish: LeaseRequest, now: float, lease_until: float, place_until: float) -> Tx[ToolLease]:
    bucket = yield from one("tool_bucket_turn", key=wish.key)
    if bucket is None:
        full = float(wish.rate.size) if wish.rate is not None else 0.0
        yield from run("tool_bucket_open", key=wish.key, tokens=full, at=now)
        bucket = yield from one("tool_bucket_turn", key=wish.key)
        assert bucket is not None, "it was opened, by this or by another process"
    if wish.most is not None:
        yield from run("tool_place_sweep", key=wish.key, now=now)
        taken = yield from one("tool_place_count", key=wish.key)
        if taken is not None and taken["taken"] >= wish.most:
            return ToolLease(placed=False)
    grant = ToolLease() if wish.rate is None else (yield from _lease(wish, wish.rate, bucket, now, lease_until))
    if wish.most is None:
        return grant
    if wish.rate is not None and not grant.tokens:
        return ToolLease(0, grant.wait, placed=False)
    yield from run("tool_place_add", key=wish.key, holder=wish.holder, number=wish.number, until=place_until)
    return grant


def _lease(wish: LeaseRequest, rate: ToolRate, bucket: Row, now: float, until: float) -> Tx[ToolLease]:
    others = yield from one("tool_lease_others", key=wish.key, holder=wish.holder, now=now)
    mine = yield from one("tool_lease_mine", key=wish.key, holder=wish.holder)
    elapsed = max(0.0, now - bucket["at"])  # a clock that is behind the others' brings nothing
    back = min(wish.unused, mine["tokens"]) if mine is not None else 0
    room = rate.size - (others["tokens"] if others is not None else 0)
    level = max(0.0, min(float(room), bucket["tokens"] + back + elapsed * rate.per_second))
    window = yield from _window(wish, rate, mine, back, now)
    room = rate.requests - sum(tokens for _, tokens in window)
    granted = max(0, min(wish.tokens, room, math.floor(level + _HAIR)))
    level = max(0.0, level - granted)
    if granted:
        slot = slot_at(rate.per, until)
        yield from run("model_use_add", key=_window_key(wish.key), at=slot, tokens=granted)
        window.append((slot, granted))
    yield from run("tool_lease_sweep", key=wish.key, now=now)
    yield from run("tool_lease_set", key=wish.key, holder=wish.holder, tokens=granted, until=until)
    yield from run("tool_bucket_set", key=wish.key, tokens=level, at=max(now, bucket["at"]))
    free_at = fits_at(rate.requests, rate.per, window, 1, now)
    return ToolLease(granted, max(0.0, (1.0 - level) / rate.per_second, free_at - now))


def _window(wish: LeaseRequest, rate: ToolRate, mine: Row | None, back: int, now: float) -> Tx[list[tuple[float, int]]]:
    """The tokens in the window by when they count, after this process has said what it used of its last lease."""
    key = _window_key(wish.key)
    yield from run("model_use_sweep", key=key, before=now - rate.per)
    if mine is not None and mine["tokens"]:
        yield from run("model_use_more", key=key, at=slot_at(rate.per, mine["until"]), more=-mine["tokens"])
        if used := mine["tokens"] - back:
            yield from run("model_use_add", key=key, at=slot_at(rate.per, min(now, mine["until"])), tokens=used)
    found = yield from rows("model_use_list", key=key)
    return [(row["at"], row["tokens"]) for row in found]


def _window_key(key: str) -> str:
    return f"tool {key}"


def _leave(key: str, holder: str, numbers: Sequence[int]) -> Tx[None]:
    left: list[dict[str, Any]] = [{"key": key, "holder": holder, "number": number} for number in numbers]
    yield from many("tool_place_remove", left)


def _failed(key: str, most: int, now: float) -> Tx[Trouble]:
    row = yield from one("tool_circuit_fail", key=key, most=most, now=now)
    assert row is not None, "an upsert returns its row"
    return _trouble(row)


def _trouble(row: Row) -> Trouble:
    return Trouble(row["failures"], row["opened_at"])
