"""Plays one workshop to its end and judges it.

    report = simulate(1234)
    assert report.ok, report

The same seed always gives the same world. What runs is real: acceptance, graphs, queue, claims, leases, the worker, the
engine, on real SQL. Workers die at any write, question or effect, sleep through their leases, lose the database, have
clocks that are off and jump; tickets are lost, doubled and late; models are busy; people cancel and requeue.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from random import Random

from foliot.engine.driver.runs import Runs
from foliot.kernel.backoff import RetryPolicy
from foliot.store.journal.memory import MemoryJournal
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import Command
from simulators.engine.history import Acted
from simulators.engine.profiles import ANY
from simulators.engine.report import Report
from simulators.engine.virtual_loop import Stuck, VirtualLoop
from simulators.engine.world import World
from simulators.workshop.cast import SYSTEMS
from simulators.workshop.checks import effect_problems, reference, run_problems, task_problems, theft_problems
from simulators.workshop.database import Truth
from simulators.workshop.people import Caretaker
from simulators.workshop.process import Client, Desk, WorkerProcess
from simulators.workshop.profiles import ShopProfile, profile_for
from simulators.workshop.transport import Broker

PROGRAM = "simulators.workshop"
PATIENCE = 3000.0  # simulated seconds; a workshop that has not come to rest by then never will


@dataclass
class Shop:
    """One simulated workshop."""

    world: World
    profile: ShopProfile
    truth: Truth
    broker: Broker
    commands: dict[str, Command]
    expected: dict[str, str] = field(default_factory=dict[str, str])
    workers: list[WorkerProcess] = field(default_factory=list[WorkerProcess])
    caretaker: Caretaker | None = None
    births: int = 0

    def spawn(self, name: str | None = None) -> None:
        self.births += 1
        world = self.world
        worker = WorkerProcess(world, name or f"w{self.births}", self.truth, self.broker, self.profile)
        self.workers.append(worker)

        def respawn() -> None:
            again = worker.name if world.maybe(0.3) else None
            world.later(world.chance.choice((0.0, 0.5, 2.0, 5.0)), self.spawn, again)

        worker.live(worker.serve(certain=world.maybe(0.5)), respawn)

    def hand_in(self, life: int = 1) -> None:
        client = Client(self.world, f"client{life}", self.truth, self.broker, self.profile)
        self.broker.listening.remove(client.transport)

        def again() -> None:
            if not self.all_there():
                self.world.later(1.0, self.hand_in, life + 1)

        client.live(client.hand_in(list(self.commands.values())), again)

    def all_there(self) -> bool:
        return all(self.truth.read("task_identity", {"namespace": "default", "name": name}) for name in self.commands)

    def at_rest(self) -> bool:
        if any(each.backlog is not None and not each.dead for each in self.workers) or not self.all_there():
            return False
        phases = [
            self.truth.read("task_named", {"namespace": "default", "name": name})[0]["phase"] for name in self.commands
        ]
        return all(phase in ENDED and phase != "dead_lettered" for phase in phases)


def simulate(seed: int, profile: ShopProfile | str = ANY) -> Report:
    """Play the workshop of this seed. Not to be called inside a running event loop."""
    chosen = profile_for(seed, profile) if isinstance(profile, str) else profile
    chance = Random(f"{seed}/workshop")
    loop = VirtualLoop(Random(f"{seed}/schedule"), latest=PATIENCE, most_callbacks=600_000)
    world = World(loop, chance, chosen, {}, MemoryJournal(), Runs)
    commands = {f"t{n}": _command(f"t{n}", chance) for n in range(1, chance.randint(1, chosen.tasks) + 1)}
    shop = Shop(
        world, chosen, Truth(woven=chosen.woven), Broker(world, lost=chosen.lost, doubled=chosen.doubled), commands
    )
    world.lease_of = shop.truth.lease_of
    if not chosen.woven:  # what a transaction that is undone took, nobody has stolen
        shop.truth.watch_thefts(world, alive=lambda worker: worker in world.alive)
    quiet = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    found: list[str] = []
    try:
        loop.run(_play(shop), closing=lambda: setattr(world, "over", True))
    except Stuck as stuck:
        found.append(str(stuck))
    finally:
        logging.disable(quiet)
    found += [*world.history.problems, *loop.problems, *_judge(shop)]
    shop.truth.close()
    return Report(PROGRAM, seed, chosen, world.history, found, world.occasions, loop.callbacks)


def _judge(shop: Shop) -> list[str]:
    caretaker = shop.caretaker
    ordered, rerun = (caretaker.ordered, caretaker.rerun) if caretaker else (set[str](), set[str]())
    tools = {item.key: item.tool for item in shop.world.history.items if isinstance(item, Acted)}
    return [
        *task_problems(shop.truth, shop.commands, shop.expected, ordered),
        *run_problems(shop.truth, shop.commands),
        *theft_problems(shop.truth),
        *effect_problems(shop.world.acts, tools, rerun),
    ]


async def _play(shop: Shop) -> None:
    world = shop.world
    shop.expected = {name: await reference(command) for name, command in shop.commands.items()}
    desk = Desk(
        world,
        "desk",
        shop.truth,
        shop.broker,
        ShopProfile("desk", cancels=shop.profile.cancels, talks=shop.profile.talks),
    )
    shop.broker.listening.remove(desk.transport)
    shop.caretaker = Caretaker(desk, shop.truth)
    world.start(shop.caretaker.look_after())
    meddling = world.start(shop.caretaker.meddle(list(shop.commands)))
    shop.truth.about_to_rest = shop.caretaker.interrupt
    for _ in range(world.chance.randint(1, shop.profile.workers)):
        world.later(world.soon(), shop.spawn)
    shop.hand_in()
    rested = 0.0
    while rested <= shop.profile.lease_seconds:  # whoever woke up last may still try to do something
        await asyncio.sleep(1.0)
        rested = rested + 1.0 if meddling.done() and shop.at_rest() else 0.0


def _command(name: str, chance: Random) -> Command:
    target = chance.choice(list(SYSTEMS))
    return Command(
        target_kind="system",
        target=target,
        name=name,
        message=f"do {name}",
        idempotency_key=f"key-{name}",
        priority=chance.choice(("low", "normal", "high")),
        retry=RetryPolicy(max_attempts=chance.choice((1, 3)), backoff=1.0),
    )
