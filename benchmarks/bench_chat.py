"""Many sessions with a live turn each in one process: `python benchmarks/bench_chat.py [--sessions 1000] [--turns 3]`.

Every session has a reader. All say something at once; no model answers before all turns are at work, so that every
session really has a live turn and a reader at the same moment. Then they answer in pieces, and each reader reads to
the end. Measured: how long it takes to have all turns at work, turns and events in a second, the memory that a session
with a live turn and a reader takes, and whether anything went wrong. The store is SQLite in a temporary folder, or the
URL in `--store`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import tempfile
import time
from pathlib import Path

from verdict import Verdict

from foliot import Agent, Runtime, ScriptedModel
from foliot.kernel.identity import Identity
from foliot.kernel.messages import ModelRequest
from foliot.sessions.chat_events import EndEvent, TextEvent
from foliot.store.sessions.base import Place, Session

VERDICT = Verdict()

SAID = "What do you think of this, and of that, and of everything else?"
ANSWER = "I think that it is so, " * 10
PIECE = 16
# Memory of one session with a live turn and a reader, in KiB.
MEMORY_AIM = 100.0


class Rounds:
    """A model that answers when all of a round have asked."""

    def __init__(self, sessions: int) -> None:
        self.sessions = sessions
        self.asked = 0
        self.full = asyncio.Event()

    def begin(self) -> None:
        self.asked, self.full = 0, asyncio.Event()

    async def answer(self, request: ModelRequest) -> dict[str, object]:
        self.asked += 1
        if self.asked == self.sessions:
            self.full.set()
        await self.full.wait()
        return {"say": ANSWER, "chunk": PIECE}


class Counts:
    """Everything that readers saw."""

    events = 0
    pieces = 0
    answered = 0
    wrong = 0


async def read(runtime: Runtime, session: Session, counts: Counts) -> None:
    ends, written = 0, ""
    async for event in runtime.inside.chat.chat(session.id, SAID, identity=Identity(session.place.user)):
        counts.events += 1
        if isinstance(event, TextEvent) and event.piece:
            counts.pieces += 1
            written += event.text
        elif isinstance(event, EndEvent):
            ends += 1
            counts.answered += event.status == "answered" and event.text == ANSWER == written
    counts.wrong += ends != 1


def memory() -> float:
    """The memory of this process in KiB."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1024


async def measure(store: str, sessions: int, turns: int) -> None:
    rounds, counts, first = Rounds(sessions), Counts(), 0.0
    async with Runtime(store) as runtime:
        runtime.inside.know(Agent("helper", model=ScriptedModel(rounds.answer)))
        made = [
            await runtime.inside.sessions.create(Place("default", "helper", f"user-{n}", "bench"), identity=None)
            for n in range(sessions)
        ]
        gc.collect()
        print(f"{sessions} sessions, {turns} turns each, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        for number in range(1, turns + 1):
            rounds.begin()
            idle, cpu, began = memory(), time.process_time(), time.perf_counter()
            seen = counts.events
            reading = [asyncio.create_task(read(runtime, session, counts)) for session in made]
            await rounds.full.wait()
            live, at_work = memory(), time.perf_counter()
            await asyncio.gather(*reading)
            done = time.perf_counter()
            print(
                f"  turn {number}: all at work after {at_work - began:5.2f} s, done after {done - began:5.2f} s, "
                f"{sessions / (done - began):6.0f} turns/s, {(counts.events - seen) / (done - at_work):7.0f} events/s, "
                f"{(live - idle) / sessions:5.1f} KiB a live session, {time.process_time() - cpu:5.2f} s of CPU"
            )
            if number == 1:
                first = (live - idle) / sessions
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    errors = sessions * turns - counts.answered + counts.wrong
    print(f"  {counts.events} events, {counts.pieces} of them pieces; {errors} turns went wrong; peak {peak:.0f} MiB")
    VERDICT.hold("turns that went wrong", errors, most=0)
    VERDICT.hold("a session with a live turn", first, "KiB", most=MEMORY_AIM)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--store", default="")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = given.store or str(Path(folder, "foliot.db"))
        asyncio.run(measure(store, given.sessions, given.turns))
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
