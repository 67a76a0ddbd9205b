"""Plays one world to its end and judges it.

    report = simulate(1234)
    assert report.ok, report

The same seed always gives the same world: the same journals byte for byte, the same history. The engine is the real one
(`Runs`, `Driver`, `LeaseKeeper`, the kernel, the tool pipeline); only time, chance, the disk, the model and the tools
are simulated. `make_runs` and `journal` can be replaced, to see a broken engine or store caught.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

from foliot.engine.driver.runs import Runs
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.spec import Contract, Repairs, RunSpec
from foliot.store.journal.base import TERMINAL
from foliot.store.journal.memory import MemoryJournal
from simulators.engine.actors import RULES, SCHEMA, ProcessModels, ProcessToolbox
from simulators.engine.checks import violations
from simulators.engine.disk import ProcessJournal
from simulators.engine.people import People
from simulators.engine.process import Process
from simulators.engine.profiles import ANY, Profile, profile_for
from simulators.engine.report import Report
from simulators.engine.virtual_loop import Stuck, VirtualLoop
from simulators.engine.world import World, at_once

PROGRAM = "simulators.engine"
PATIENCE = 1500.0  # simulated seconds; a world that has not come to rest by then never will


def simulate(
    seed: int,
    profile: Profile | str = ANY,
    *,
    make_runs: Callable[..., Runs] = Runs,
    journal: MemoryJournal | None = None,
) -> Report:
    """Play the world of this seed. Not to be called inside a running event loop."""
    chosen = profile_for(seed, profile) if isinstance(profile, str) else profile
    chance = Random(f"{seed}/world")
    loop = VirtualLoop(Random(f"{seed}/schedule"), latest=PATIENCE)
    specs = {f"r{n}": random_spec(f"r{n}", chance, chosen) for n in range(1, chance.randint(1, chosen.runs) + 1)}
    world = World(loop, chance, chosen, specs, journal or MemoryJournal(), make_runs)
    quiet = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # broken gateways and lost leases are what this is about
    try:
        loop.run(_play(world), closing=lambda: _close(world))
    except Stuck as stuck:
        world.history.problems.append(str(stuck))
    finally:
        logging.disable(quiet)
    world.history.problems.extend(loop.problems)
    return Report(PROGRAM, seed, chosen, world.history, violations(world.history), world.occasions, loop.callbacks)


async def _play(world: World) -> None:
    processes: list[Process] = []
    births = 0

    def spawn(name: str | None = None) -> None:
        nonlocal births
        births += 1
        process = Process(world, name or f"w{births}")
        processes.append(process)
        runs = world.make_runs(
            journal=ProcessJournal(process),
            models=ProcessModels(process),
            tools=ProcessToolbox(process),
            clock=lambda: world.now,
            worker=process.name,
            lease_seconds=world.profile.lease_seconds,
            is_gone=process.is_gone if world.chance.random() < 0.5 else _in_doubt,
        )
        process.launch(runs, respawn)

    def respawn(gone: Process) -> None:
        # A worker that is configured with a name has it in every life; otherwise each life has its own.
        name = gone.name if world.maybe(0.3) else None
        world.later(world.chance.choice((0.0, 0.5, 2.0, 5.0)), spawn, name)

    for _ in range(world.chance.randint(1, world.profile.workers)):
        world.later(world.soon(), spawn)
    people = People(world, processes)
    world.start(people.answer())
    meddling = world.start(people.meddle())
    rested = 0.0
    while rested <= world.profile.lease_seconds:  # whoever woke up last may still try to do something
        await asyncio.sleep(1.0)
        rested = rested + 1.0 if meddling.done() and _at_rest(world, processes, people) else 0.0


def _in_doubt(worker: str | None) -> bool:
    """Answers as for another machine: nobody can know whether the worker still lives."""
    return worker is None


def _at_rest(world: World, processes: list[Process], people: People) -> bool:
    """Every run has ended, or waits for someone who will not answer; and nobody sleeps who could still wake up."""
    if any(process.backlog is not None and not process.dead for process in processes):
        return False
    for run_id in world.specs:
        if not at_once(world.journal.read(run_id, limit=1)):
            return False
        row = at_once(world.journal.get(run_id))
        waits = row.phase == "waiting" and row.summary.get("waiting", {}).get("owner") == "person" and people.silent
        if row.phase not in TERMINAL and not (waits and not at_once(world.journal.signals([run_id]))):
            return False
    return True


def _close(world: World) -> None:
    world.over = True
    for run_id in world.specs:
        if at_once(world.journal.read(run_id, limit=1)):
            world.history.rows[run_id] = at_once(world.journal.get(run_id))


def random_spec(run_id: str, chance: Random, profile: Profile) -> RunSpec:
    """A definition with limits and rules drawn by chance; the agent carries the run's name, for the model to know."""
    if not profile.limits:
        limits = Limits(max_steps=8, parallel_tools=chance.choice((1, 2, 8)))
        return RunSpec(run_id, "simulated", tools=RULES, limits=limits, repairs=Repairs(model_backoff=1.0))
    return RunSpec(
        run_id,
        "simulated",
        tools=RULES,
        limits=Limits(
            max_steps=chance.choice((2, 5, 8)),
            max_tokens=chance.choice((None, None, None, 120)),
            max_cost_usd=chance.choice((None, None, None, 0.03)),
            max_seconds=chance.choice((None, None, 1.0, 6.0, 30.0)),
            max_tool_calls=chance.choice((None, None, None, 3)),
            parallel_tools=chance.choice((1, 2, 8)),
        ),
        repairs=Repairs(
            calls=chance.choice((0, 3)), outputs=chance.choice((0, 3)), model=chance.choice((0, 3)), model_backoff=1.0
        ),
        contract=chance.choice((None, None, None, Contract(("look", "save"), ("n",), "observe"))),
        duplicates=chance.choice(("allow", "allow", "short_circuit", "deny")),
        output_schema=chance.choice((None, None, dict(SCHEMA))),
        tool_use_behavior=chance.choice(("run_llm_again", "run_llm_again", "stop_on_first_tool")),
        on_limit=chance.choice(("fail", "finish")),
        compaction=chance.choice((False, True)),
    )
