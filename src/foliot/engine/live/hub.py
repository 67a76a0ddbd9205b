"""The hub of live runs: readers and observers of the runs that this process drives.

A reader gets everything in order: events when they are durable, pieces of answers and tool output as they come. A
reader that is slow loses pieces, never events: pieces are for show, and the finished message holds them all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Container, Generator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from foliot.kernel.messages import Delta, ReasoningDelta, RestartDelta, TextDelta, ToolCallDelta
from foliot.kernel.run.events import Event, ModelResponded

MOST_PIECES = 4096


class Recorded(Struct, frozen=True):
    """An event of the journal. `seq` is where to go on after a break."""

    run_id: str
    seq: int
    at: float
    event: Event


class Streamed(Struct, frozen=True):
    """A piece of an answer. `text` is what it adds to the text: nothing for a thought, or a piece of a tool call.

    `seq` is that of the event that was read before it: where to go on after a break, as of a `Recorded`.
    """

    run_id: str
    step: int
    delta: Delta
    seq: int = 0

    @property
    def text(self) -> str:
        return self.delta.text if isinstance(self.delta, TextDelta) else ""


class Output(Struct, frozen=True):
    """A piece of what a tool prints. `seq` is as that of `Streamed`."""

    run_id: str
    call_id: str
    text: str
    seq: int = 0


Live: TypeAlias = Recorded | Streamed | Output
Observer: TypeAlias = Callable[[str, int, float, Event], None]


class Reader:
    """One reader of one run. `missed` counts the pieces that it was too slow for."""

    def __init__(self) -> None:
        self.missed = 0
        self._items: deque[Live] = deque()
        self._pieces = 0
        self._closed = False
        self._alarm = asyncio.Event()
        self._heard: Callable[[], None] | None = None

    def call(self, heard: Callable[[], None]) -> None:
        """Call this whenever something came, for who looks with `taken` and does not iterate. It must not raise."""
        self._heard = heard

    def taken(self) -> list[Live]:
        """Returns all items that are there, without waiting."""
        items, self._items = list(self._items), deque()
        self._pieces = 0
        return items

    def put(self, item: Live) -> None:
        if not isinstance(item, Recorded):
            if self._pieces >= MOST_PIECES:
                self.missed += 1
                return
            self._pieces += 1
        self._items.append(item)
        self._alarm.set()
        if self._heard is not None:
            self._heard()

    def close(self) -> None:
        """Ends the reader; items that have arrived can still be read."""
        self._closed = True
        self._alarm.set()

    async def __aiter__(self) -> AsyncIterator[Live]:
        seq = 0
        while True:
            while self._items:
                item = self._items.popleft()
                if isinstance(item, Recorded):
                    seq = item.seq
                    yield item
                else:
                    self._pieces -= 1
                    yield replace(item, seq=seq)
            if self._closed:
                return
            self._alarm.clear()
            await self._alarm.wait()


class Interleaved:
    """The pieces that a reader of one run gets, put among the events of the journal.

    What was written of a step comes before the answer that was recorded of it, or not at all.
    """

    def __init__(self, reader: Reader, after: int = 0) -> None:
        """`after` is the number of the last event that was read before."""
        self._reader = reader
        self._recorded = 0
        self._seq = after

    def among(self, records: Sequence[Recorded]) -> list[Live]:
        """Returns these events, and the pieces that came meanwhile, in the order in which to show them."""
        steps = [each.event.step for each in records if isinstance(each.event, ModelResponded)]
        recorded = max(steps, default=self._recorded)
        before: list[Live] = []
        after: list[Live] = []
        last = records[-1].seq if records else self._seq
        for item in self._reader.taken():
            match item:
                case Streamed(step=step) if recorded < step:
                    after.append(replace(item, seq=last))
                case Streamed(step=step) if step > self._recorded:
                    before.append(replace(item, seq=self._seq))
                case Output():
                    before.append(replace(item, seq=self._seq))
                case _:
                    pass  # too late, or read from the journal, where it has its number
        self._recorded, self._seq = recorded, last
        return [*before, *records, *after]


class Carrier(Protocol):
    """Brings pieces to readers in other processes; see relay.py. Must return at once and must not raise."""

    def streamed(self, run_id: str, step: int, delta: Delta) -> None: ...

    def output(self, run_id: str, call_id: str, text: str) -> None: ...

    def flush(self, run_id: str) -> None:
        """An event comes: what was gathered before it goes first."""
        ...


class RunHub:
    """The engine's `Watcher`: hands what happens to whoever reads that run. Costs next to nothing without readers."""

    def __init__(self) -> None:
        self._readers: dict[str, list[Reader]] = {}
        self._observers: tuple[Observer, ...] = ()
        self._carrier: Carrier | None = None
        self._wanted: Container[str] = frozenset[str]()

    def carry_to(self, carrier: Carrier | None, wanted: Container[str]) -> None:
        """Give this one the pieces of runs that are in `wanted`, which may change at any time."""
        self._carrier, self._wanted = carrier, wanted

    def wanted(self, run_id: str) -> bool:
        """Returns whether another process reads this run, so that its pieces should be streamed; see `Watcher`."""
        return run_id in self._wanted

    def show(self, piece: Streamed | Output) -> None:
        """A piece from elsewhere, for who reads that run here."""
        for reader in self._readers.get(piece.run_id, ()):
            reader.put(piece)

    def missed(self, run_id: str, pieces: int) -> None:
        """So many pieces from elsewhere were lost on the way."""
        for reader in self._readers.get(run_id, ()):
            reader.missed += pieces

    @contextmanager
    def read(self, run_id: str) -> Generator[Reader]:
        reader = Reader()
        self._readers.setdefault(run_id, []).append(reader)
        try:
            yield reader
        finally:
            readers = self._readers[run_id]
            readers.remove(reader)
            if not readers:
                del self._readers[run_id]

    def observe(self, heard: Observer) -> Callable[[], None]:
        """Call `heard` with every event of every run here, when it is durable; returns how to stop.

        It is called where runs are driven: it must return at once and must not raise.
        """
        self._observers = (*self._observers, heard)

        def stop() -> None:
            self._observers = tuple(each for each in self._observers if each is not heard)

        return stop

    def attends(self, run_id: str) -> bool:
        """Returns whether anyone would be notified of this run now; see `Watcher`."""
        return bool(self._observers) or self._carrier is not None or run_id in self._readers

    def recorded(self, run_id: str, seq: int, at: float, event: Event) -> None:
        for heard in self._observers:
            heard(run_id, seq, at, event)
        if self._carrier is not None and run_id in self._wanted:
            self._carrier.flush(run_id)
        for reader in self._readers.get(run_id, ()):
            reader.put(Recorded(run_id, seq, at, event))

    def streamed(self, run_id: str, step: int, delta: Delta) -> None:
        shown = _shown(delta)
        for reader in self._readers.get(run_id, ()):
            reader.put(Streamed(run_id, step, shown))
        if self._carrier is not None and run_id in self._wanted:
            self._carrier.streamed(run_id, step, shown)

    def output(self, run_id: str, call_id: str, text: str) -> None:
        shown = sayable(text)
        for reader in self._readers.get(run_id, ()):
            reader.put(Output(run_id, call_id, shown))
        if self._carrier is not None and run_id in self._wanted:
            self._carrier.output(run_id, call_id, shown)


def _shown(delta: Delta) -> Delta:
    match delta:
        case TextDelta(text=text) if not is_sayable(text):
            return TextDelta(sayable(text))
        case ReasoningDelta(text=text) if not is_sayable(text):
            return ReasoningDelta(sayable(text))
        case ToolCallDelta() if not is_sayable(delta.id + delta.name + delta.arguments):
            return ToolCallDelta(delta.index, sayable(delta.id), sayable(delta.name), sayable(delta.arguments))
        case RestartDelta(reason=reason) if not is_sayable(reason):
            return RestartDelta(sayable(reason))
        case _:
            return delta


def is_sayable(text: str) -> bool:
    """Whether this can be sent to anybody: halves of surrogate pairs are no characters, and no encoding has them."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def sayable(text: str) -> str:
    """The text as it can be shown: two halves as the character they mean, a lone one as the mark of what is lost."""
    return text if is_sayable(text) else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
