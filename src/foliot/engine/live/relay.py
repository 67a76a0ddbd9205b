"""Pieces of runs between processes: from the one that drives a run to those where somebody reads along.

Whoever reads a run says so to all, again and again; a process that drives one of these runs sends it what the model
writes and what tools print, gathered for a moment. Nobody reads, nothing is sent: a piece then costs one look into a
dict. What goes this way is for show and may be lost; events are read from the journal.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from foliot.bus.live import LiveBus, Subscription
from foliot.common.cancellation import stop_tasks
from foliot.engine.live.hub import Output, Reader, RunHub, Streamed
from foliot.kernel.messages import Delta, ReasoningDelta, TextDelta

# Where wishes are said. No namespace can have this name.
WISHES: Final = ".wishes"
SAID_AGAIN: Final = 5.0
WISH_LASTS: Final = 15.0
MOST_WISHES: Final = 10_000
# Pieces that come within this time travel together: nobody reads faster.
GATHERED: Final = 0.03
# What one message may hold fits into a few notices of PostgreSQL.
LARGEST: Final = 24_000
LONGEST: Final = LARGEST // 4 - 100  # in characters, which have four bytes at most
_RUNS_AT_ONCE: Final = 500


class _Wish(Struct, array_like=True):
    """`runs` are what the process of this name wants to see; with `asks` it wants to hear what others want."""

    reader: str
    runs: list[str] = []
    asks: bool = False


class _Text(Struct, array_like=True, tag="t"):
    step: int
    delta: Delta


class _Print(Struct, array_like=True, tag="p"):
    call_id: str
    text: str


_Item: TypeAlias = _Text | _Print
_Prose: Final = (TextDelta, ReasoningDelta)
_wish: Final = msgspec.msgpack.Decoder(_Wish)
_items: Final = msgspec.msgpack.Decoder(list[_Item])
_encode: Final = msgspec.msgpack.Encoder().encode


class Relay:
    """Carries pieces of the runs of one `RunHub`. `opening` opens the bus, when it is first needed."""

    def __init__(
        self,
        hub: RunHub,
        opening: Callable[[], Awaitable[LiveBus]],
        *,
        clock: Callable[[], float] = time.monotonic,
        gathered: float = GATHERED,
    ) -> None:
        self._hub = hub
        self._opening = opening
        self._clock = clock
        self._gathered = gathered
        self._name = secrets.token_hex(8)
        self._bus: LiveBus | None = None
        self._work: asyncio.Task[None] | None = None
        # What others want: by run, by reader, until when. The hub looks into it with every piece.
        self._wishes: dict[str, dict[str, float]] = {}
        self._outbox: dict[str, list[_Item]] = {}
        self._timer: asyncio.TimerHandle | None = None
        # What is wanted here: by run, how many readers.
        self._read: dict[str, int] = {}
        self._heard: dict[str, Subscription] = {}
        self._pumps: set[asyncio.Task[None]] = set()
        self._new: set[str] = set()
        self._changed = asyncio.Event()

    def start(self) -> None:
        """Listen to what others want to see of the runs here. Once is enough."""
        if self._work is None:
            self._hub.carry_to(self, self._wishes)
            self._work = asyncio.create_task(self._run())

    @contextmanager
    def read(self, run_id: str) -> Generator[Reader]:
        """Reads a run live, also when another process drives it."""
        with self._hub.read(run_id) as reader, self.reading(run_id):
            yield reader

    @contextmanager
    def reading(self, run_id: str) -> Generator[None]:
        """Let the readers of this run here see what it does elsewhere, for as long as the block takes."""
        self.start()
        self._read[run_id] = self._read.get(run_id, 0) + 1
        if self._read[run_id] == 1:
            self._new.add(run_id)
            self._attach()
        try:
            yield
        finally:
            self._read[run_id] -= 1
            if not self._read[run_id]:
                del self._read[run_id]
                self._new.discard(run_id)
                if (subscription := self._heard.pop(run_id, None)) is not None:
                    subscription.close()

    async def close(self) -> None:
        """Stops the relay. Pieces that were gathered are still sent."""
        self._hub.carry_to(None, {})
        if self._timer is not None:
            self._timer.cancel()
        self._send_all()
        for subscription in self._heard.values():
            subscription.close()
        await stop_tasks(self._work, *self._pumps)
        if self._bus is not None:
            await self._bus.close()

    # --- what is driven here ---------------------------------------------------------------------------------------

    def streamed(self, run_id: str, step: int, delta: Delta) -> None:
        """Carries a piece of an answer that another process reads. Called by the hub."""
        self._put(run_id, [_Text(step, delta)])

    def output(self, run_id: str, call_id: str, text: str) -> None:
        """Carries a piece of tool output that another process reads. Called by the hub."""
        self._put(run_id, [_Print(call_id, part) for part in _parts(text)])

    def flush(self, run_id: str) -> None:
        """Sends the gathered pieces before an event that was recorded. Called by the hub."""
        if items := self._outbox.pop(run_id, None):
            self._send(run_id, items)

    def _put(self, run_id: str, items: Sequence[_Item]) -> None:
        self._outbox.setdefault(run_id, []).extend(items)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._gathered, self._send_all)

    def _send_all(self) -> None:
        self._timer = None
        outbox, self._outbox = self._outbox, {}
        for run_id, items in outbox.items():
            self._send(run_id, items)

    def _send(self, run_id: str, items: Sequence[_Item]) -> None:
        readers = self._wishes.get(run_id, {})
        now = self._clock()
        for reader in [name for name, until in readers.items() if until < now]:
            del readers[reader]
        if not readers:
            self._wishes.pop(run_id, None)
        elif self._bus is not None:
            for message in _packed(items):
                for reader in readers:
                    self._bus.publish(reader, run_id, message)

    # --- what is wanted here, and by others ------------------------------------------------------------------------

    async def _run(self) -> None:
        self._bus = bus = await self._opening()
        with bus.subscribe(WISHES) as heard:
            hearing = asyncio.create_task(self._hear(heard))
            heard.when_heard(self._ask)
            try:
                self._ask()
                self._attach()
                while True:
                    self._say_wishes(self._read)
                    await self._until_time_to_say_it_again()
            finally:
                await stop_tasks(hearing)

    def _ask(self) -> None:
        """Announces this process and asks for announcements: a late listener has missed the earlier ones."""
        self._say(_Wish(self._name, asks=True))
        self._changed.set()

    async def _until_time_to_say_it_again(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SAID_AGAIN):
                await self._changed.wait()
        self._changed.clear()

    def _attach(self) -> None:
        """Hear of the runs that are new here, then ask for them."""
        if self._bus is None:
            return
        for run_id in self._new:
            self._heard[run_id] = subscription = self._bus.subscribe(self._name, run_id)
            pump = asyncio.create_task(self._pump(run_id, subscription))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)
        self._say_wishes(self._new)
        self._new.clear()

    async def _pump(self, run_id: str, subscription: Subscription) -> None:
        missed = 0
        async for piece in subscription:
            with suppress(msgspec.MsgspecError, RecursionError):
                for item in _items.decode(piece.data):
                    self._hub.show(_shown(run_id, item))
            if subscription.missed > missed:
                self._hub.missed(run_id, subscription.missed - missed)
                missed = subscription.missed

    def _say_wishes(self, wanted: Iterable[str]) -> None:
        runs = list(wanted)
        for start in range(0, len(runs), _RUNS_AT_ONCE):
            self._say(_Wish(self._name, runs[start : start + _RUNS_AT_ONCE]))

    def _say(self, wish: _Wish) -> None:
        if self._bus is not None:
            self._bus.publish(WISHES, "all", _encode(wish))

    async def _hear(self, heard: Subscription) -> None:
        async for piece in heard:
            try:
                wish = _wish.decode(piece.data)
            except (msgspec.MsgspecError, RecursionError):
                continue  # not ours
            if wish.reader == self._name:
                continue
            if wish.asks and self._read:
                self._changed.set()
            self._note(wish)

    def _note(self, wish: _Wish) -> None:
        now = self._clock()
        if len(self._wishes) + len(wish.runs) > MOST_WISHES:
            for run_id in [name for name, readers in self._wishes.items() if max(readers.values()) < now]:
                del self._wishes[run_id]
        for run_id in wish.runs:
            if run_id in self._wishes or len(self._wishes) < MOST_WISHES:
                self._wishes.setdefault(run_id, {})[wish.reader] = now + WISH_LASTS


def _packed(items: Sequence[_Item]) -> list[bytes]:
    """Packs items into as few messages as possible, with pieces of one text joined."""
    messages: list[bytes] = []
    some: list[_Item] = []
    size = 0
    for item in _joined(items):
        more = len(_encode(item))
        if some and size + more > LARGEST:
            messages.append(_encode(some))
            some, size = [], 0
        some.append(item)
        size += more
    if some:
        messages.append(_encode(some))
    return messages


def _joined(items: Sequence[_Item]) -> list[_Item]:
    """Pieces of one text that follow each other, as one; but none longer than fits."""
    joined: list[_Item] = []
    for (step, kind), alike in groupby(items, key=_kind):
        if kind is not TextDelta and kind is not ReasoningDelta:
            joined += alike
            continue
        text = "".join(each.delta.text for each in alike if isinstance(each, _Text) and isinstance(each.delta, _Prose))
        made = TextDelta if kind is TextDelta else ReasoningDelta
        joined += [_Text(step, made(part)) for part in _parts(text)]
    return joined


def _kind(item: _Item) -> tuple[int, type]:
    return (item.step, type(item.delta)) if isinstance(item, _Text) else (0, _Print)


def _parts(text: str) -> list[str]:
    return [text[start : start + LONGEST] for start in range(0, len(text), LONGEST)]


def _shown(run_id: str, item: _Item) -> Streamed | Output:
    if isinstance(item, _Text):
        return Streamed(run_id, item.step, item.delta)
    return Output(run_id, item.call_id, item.text)
