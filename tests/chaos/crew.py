"""A worker that is killed: does tasks on a shared store, with tools that leave traces on disk.

    python crew.py <store> <nats url or -> <effects folder> <name> [<seconds its clock is off>] [<its largest file>]

Prints `ready` when it is about to work.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
import time
from pathlib import Path

from foliot import Runtime
from foliot.settings.settings import Settings, load_settings
from foliot.store.queue.placement import Offer
from tests.chaos.book import Pen
from tests.chaos.child import tools

LEASE_SECONDS = 3.0
PAYMENTS = ("charge", "bill", "refund")
AGENTS = ("plan", "left", "right", "close")
# What every agent does before it answers: a repeatable write and three payments side by side, one of them on a thread
# and one that is sometimes too slow. Each for its own purpose: the same payment of another agent of the task would be
# held while the first may have been made.
SCRIPT = [
    {
        "match": {"agent": agent},
        "turns": [
            {
                "call": [
                    {"charge": {"amount": number}},
                    {"save": {"version": 1}},
                    {"bill": {"amount": number}},
                    {"refund": {"to": agent}},
                ]
            },
            {"say": "{agent} is done"},
        ],
        "loop": True,
        "after": "2ms",
    }
    for number, agent in enumerate(AGENTS)
]
SYSTEM = {
    "plan": {"edges": [{"to": "left"}, {"to": "right"}]},
    "left": {"edges": [{"to": "close"}]},
    "right": {"edges": [{"to": "close"}]},
    "close": {"join": {"mode": "wait_for_all"}},
}


def settings_for(store: str, nats: str) -> Settings:
    return load_settings({"store": store, **({} if nats == "-" else {"nats": nats})})


async def work(store: str, nats: str, effects: Path, name: str, skew: float) -> None:
    def epoch_of(run_id: str) -> int:
        driver = runtime.inside.runs.local(run_id)
        return -1 if driver is None else driver.lease.epoch

    runtime = Runtime(
        settings=settings_for(store, nats),
        tools=tools(Pen(effects, name, epoch_of)),
        lease_seconds=LEASE_SECONDS,
        **({} if store.startswith("postgresql") else {"clock": lambda: time.time() + skew}),
    )
    async with runtime:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await runtime.inside.tasking.worker(Offer(name, runtime.inside.runs.worker, capacity=8)).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)
    if len(sys.argv) > 6:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[6]), resource.RLIM_INFINITY))
    skew = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
    if sys.argv[1].startswith("postgresql"):
        # The clock of the machine is wrong, for everybody in the process. What lasts goes by the database's.
        right, time.time = time.time, lambda: right() + skew
    asyncio.run(work(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4], skew))
