"""Workers killed, networks broken, servers restarted, clocks moved, disks full: every task ends once, nothing is paid
twice.

Each payment is written down by the process that made it, with its attempt and the epoch of its lease, and held against
the journal: who made it, and why. Small in `make test`; `FOLIOT_CHAOS=1` does 5,000 tasks and prints its table.
`FOLIOT_CHAOS_SEED` chooses again.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal as signals
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

import pytest

from foliot import Runtime
from foliot.engine.driver.journal import signal
from foliot.errors import FoliotError
from foliot.kernel.backoff import RetryPolicy
from foliot.kernel.graph.events import TaskSucceeded
from foliot.kernel.messages import Text, ToolResult
from foliot.kernel.run.events import ToolFinished, ToolStarted, UnknownDecided
from foliot.resources.validate import validate_document
from foliot.store.base import Put
from foliot.store.tasks import ENDED
from foliot.tools.base import Invocation
from foliot.work.tasks.base import Command
from simulators.proxy import Proxy
from tests.chaos.book import Mark, by_key, explain, read_marks
from tests.chaos.child import tools
from tests.chaos.crew import AGENTS, LEASE_SECONDS, PAYMENTS, SCRIPT, SYSTEM, settings_for

LARGE = bool(os.environ.get("FOLIOT_CHAOS"))
TASKS = 5_000 if LARGE else 40
SMALL = 500 if LARGE else 20
FAULTS = 150 if LARGE else 10
CREW = Path(__file__).with_name("crew.py")
# How long a person looks before saying what became of a call.
PATIENCE = 2.0
ROOT = CREW.parents[2]


def _unshare() -> tuple[str, ...]:
    """The command that starts another in a PID namespace of its own; empty where that is not allowed."""
    command = ("unshare", *(() if os.geteuid() == 0 else ("-Ur",)), "-pf", "--kill-child")
    allowed = shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if allowed else ()


UNSHARE = _unshare()
ALL_DONE_WITHIN = 1_500.0 if LARGE else 150.0


def _nothing(kind: str, call: Invocation) -> None:
    raise AssertionError("whoever hands in tasks does none")


class Crew:
    """The parent: hands in tasks, starts workers and kills them, answers for what nobody saw, and keeps count."""

    def __init__(self, folder: Path, store: str, nats: str, seed: int, tasks: int) -> None:
        self.folder = folder
        self.store = store
        self.nats = nats
        self.effects = folder / "effects"
        self.effects.mkdir()
        self.chance = Random(seed)
        self.tasks = tasks
        self.seen: Counter[str] = Counter()
        self.doubled: list[str] = []
        self.workers: dict[str, asyncio.subprocess.Process] = {}
        # Workers in a PID namespace of their own: a signal reaches only what stands before it.
        self.apart: set[str] = set()
        self.proxies: dict[str, Proxy] = {}
        self.asked: set[tuple[str, str, int]] = set()
        self.runtime = Runtime(settings=settings_for(store, nats), tools=tools(_nothing))

    async def declare(self) -> None:
        endpoint = {"provider": "scripted", "default_model": "scripted", "script": SCRIPT}
        documents = [
            {"kind": "ModelEndpoint", "metadata": {"name": "script"}, "spec": endpoint},
            *(
                {
                    "kind": "Agent",
                    "metadata": {"name": name},
                    "spec": {"model_ref": "script", "prompt": "", "tools": ["save", *PAYMENTS]},
                }
                for name in AGENTS
            ),
            {"kind": "AgentSystem", "metadata": {"name": "crew"}, "spec": {"agents": list(AGENTS), "graph": SYSTEM}},
        ]
        declared = [validate_document(document)[0] for document in documents]
        resources = self.runtime.inside._open().resources
        assert resources is not None
        await resources.write([Put(document) for document in declared if document is not None])

    async def hand_in(self) -> None:
        """All tasks, each under its key, as often as it takes to hear that it was accepted."""
        left = list(range(self.tasks))
        while left:
            batch, left = left[:50], left[50:]
            results = await asyncio.gather(*(self._hand_in(number) for number in batch), return_exceptions=True)
            for number, result in zip(batch, results, strict=True):
                if isinstance(result, FoliotError):
                    self.seen["tasks handed in again"] += 1
                    left.append(number)
                elif isinstance(result, BaseException):
                    raise result

    async def _hand_in(self, number: int) -> None:
        retry = RetryPolicy(max_attempts=20, backoff=0.05, max_backoff=1.0)
        command = Command("system", "crew", name=f"t{number}", message="go", idempotency_key=f"k{number}", retry=retry)
        await self.runtime.inside.tasking.tasks.accept(command)

    async def start(self, name: str, *, skew: float = 0.0, largest: int | None = None, apart: bool = False) -> None:
        """A worker, on a network of its own if there are some; `apart` in a PID namespace of its own."""
        extra = [str(skew)] if largest is None else [str(skew), str(largest)]
        proxy = self.proxies.get(name[:2])
        child = await asyncio.create_subprocess_exec(
            *(UNSHARE if apart else ()),
            sys.executable,
            str(CREW),
            self.store if proxy is None else proxy.url,
            self.nats,
            str(self.effects),
            name,
            *extra,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.workers[name] = child
        self.seen["lives"] += 1
        if apart:
            self.apart.add(name)
            self.seen["lives in a PID namespace"] += 1
        else:
            self.apart.discard(name)

    async def kill(self, name: str) -> None:
        child = self.workers.pop(name)
        with suppress(ProcessLookupError):
            child.kill()
        await child.communicate()
        self.seen["kills"] += 1

    async def close(self) -> None:
        for name in list(self.workers):
            await self.kill(name)

    # --- what a person would do

    async def answer_questions(self) -> None:
        """Say of every call that a crash cut off whether it left a trace.

        Not at once: a worker that was paused in the middle of it goes on with the call when it wakes up, and nothing
        but the tool itself could stop that. Whoever says "run" of such a call is wrong, and pays twice.
        """
        with suppress(FoliotError):
            waiting = await self.runtime.inside.runs.journal.list(phases=("waiting",), limit=200)
            patient = [info.id for info in waiting if time.time() - info.updated_at >= PATIENCE]
            # Read once, after they have waited: the books of 5,000 tasks are long.
            paid = {mark.key for mark in read_marks(self.effects)} if patient else set[str]()
            for run_id in patient:
                await self._answer(run_id, paid)

    async def _answer(self, run_id: str, paid: set[str]) -> None:
        _, state = await self.runtime.inside.runs.load(run_id)
        waiting = state.waiting
        if waiting is None or waiting.reason != "unknown_effect":
            return
        for call_id in waiting.calls:
            happened, call = f"{run_id}/{call_id}" in paid, state.call(call_id)
            name = call.name if call is not None else "charge"
            question = run_id, call_id, call.attempts if call is not None else 0
            if question in self.asked:  # the answer may not have been taken yet
                continue
            result = ToolResult(call_id, name, (Text("paid"),)) if happened else None
            decided = UnknownDecided(call_id, "happened" if happened else "run", "chaos", result=result)
            await self.runtime.inside.runs.journal.signal(signal(run_id, decided, time.time()))
            self.asked.add(question)
            self.seen[f"questions answered: {decided.decision}"] += 1

    async def left(self) -> int:
        """How many tasks have not ended; all of them while nobody can say."""
        try:
            rows = await self.runtime.inside.tasking.database.read("task_phases")
        except FoliotError:
            return self.tasks
        done = sum(row["tasks"] for row in rows if row["phase"] in ENDED)
        return self.tasks - done

    async def finish(self) -> float:
        """Until all tasks have ended; how long that took after the last fault."""
        began = time.monotonic()
        while await self.left():
            if time.monotonic() - began > ALL_DONE_WITHIN:
                raise AssertionError(f"{await self.left()} tasks are not done: {self.seen}\n{await self._stuck()}")
            for name, child in list(self.workers.items()):
                if child.returncode is not None:
                    await self.kill(name)
                    await self.start(name)
            await self.answer_questions()
            await asyncio.sleep(0.25)
        return time.monotonic() - began

    async def _stuck(self) -> str:
        """What the store says of runs that have not ended."""
        told: list[str] = []
        for info in await self.runtime.inside.runs.journal.list(phases=("pending", "running", "waiting"), limit=20):
            facts = await self.runtime.inside.runs.facts(info.id)
            last = "; ".join(f"{at - time.time():.1f} {event}"[:300] for at, event in facts[-4:])
            told.append(f"{info.id} {info.phase} {info.worker} {(info.lease_until or 0) - time.time():.1f}: {last}")
        return "\n".join(told)

    async def verify(self) -> None:
        """Every task succeeded once, in one piece, and every payment was made once, unless a person said "run"."""
        marks = read_marks(self.effects)
        runs = self.tasks * len(AGENTS)
        for kind in PAYMENTS:
            made = by_key(marks, kind)
            keys = list(made)
            for start in range(0, len(keys), 50):
                await asyncio.gather(*(self._verify_payment(made[key]) for key in keys[start : start + 50]))
            self.seen["payments"] += len(made)
            self.seen["payments lost"] += runs - len(made)
        lost = await self._not_made({mark.key for mark in marks}) if self.seen["payments lost"] else []
        for number in range(self.tasks):
            records = await self.runtime.inside.tasking.tasks.events("default", f"t{number}")
            ends = [record.event for record in records if record.event.__struct_config__.tag.startswith("task.")]
            assert [type(end) for end in ends[1:]] == [TaskSucceeded], f"t{number}: {ends[1:]}"
            assert ends[1].output == "close is done"
        assert self.seen["payments lost"] == 0, "\n".join(lost) or "some were never begun"
        assert len(by_key(marks, "save")) == runs

    async def _not_made(self, paid: set[str]) -> list[str]:
        """What the journals say of payments that nobody made, but those that the model was told are not made.

        A tool that failed five times in a row is left alone for a while: then a call is refused, and not lost.
        """
        told: list[str] = []
        before: str | None = None
        while page := await self.runtime.inside.runs.journal.list(limit=200, before=before):
            for info in page:
                facts = await self.runtime.inside.runs.facts(info.id)
                ends = {fact.result.call_id: fact for _, fact in facts if isinstance(fact, ToolFinished)}
                for _, fact in facts:
                    if not (isinstance(fact, ToolStarted) and fact.name in PAYMENTS) or fact.key in paid:
                        continue
                    end = ends.pop(fact.call_id, None)  # a call that was started twice is one
                    if end is not None and end.result.error is not None and end.result.error.before_effect:
                        self.seen[f"payments refused: {end.result.error.reason}"] += 1
                        self.seen["payments lost"] -= 1
                    else:
                        told.append(f"{fact.key}: " + "; ".join(f"{at:.3f} {event}"[:400] for at, event in facts))
            before = page[-1].id
        return told

    async def _verify_payment(self, made: list[Mark]) -> None:
        """One for the first attempt and one for each that a person ordered, by whoever held the run then."""
        facts = await self.runtime.inside.runs.facts(made[0].run_id)
        explained = [explain(mark, facts) for mark in made]
        account = f"{made[0].key} was paid {len(made)} times: " + "; ".join(map(str, explained))
        attempts = {mark.attempt for mark in made}
        assert len(attempts) == len(made), f"an attempt was made twice: {account}"
        assert all(each.in_order for each in explained), account
        for each in explained:
            self.seen[f"payments: {each.why}"] += 1
        if len(made) > 1:
            self.seen["a person was wrong"] += 1
            self.doubled.append(account)

    def report(self, name: str, seed: int, seconds: float, recovery: float) -> None:
        sys.stdout.write(
            f"\n{name}, seed {seed}: {self.tasks} tasks, {self.tasks * len(AGENTS)} runs in {seconds:.0f} s; "
            f"done {recovery:.1f} s after the last fault\n"
            f"  {self.seen['payments']} payments: {self.seen['payments lost']} lost, {len(self.doubled)} doubled, "
            f"{len(self.asked)} asked about, 0 stuck\n"
        )
        for what, count in sorted(self.seen.items()):
            sys.stdout.write(f"  {what:<32}{count:>7}\n")
        for account in self.doubled:
            sys.stdout.write(f"  {account}\n")


async def play(crew: Crew, name: str, seed: int, faults: list[Callable[[], object]], count: int) -> None:
    began = time.monotonic()
    async with crew.runtime:
        await crew.declare()
        try:
            for number in range(3):
                await crew.start(f"w{number}")
            handing_in = asyncio.create_task(crew.hand_in())
            for _ in range(count):
                await asyncio.sleep(crew.chance.uniform(0.1, 0.5))
                fault = crew.chance.choice(faults)()
                if asyncio.iscoroutine(fault):
                    await fault
                await crew.answer_questions()
            await handing_in
            recovery = await crew.finish()
            await crew.verify()
        finally:
            for proxy in crew.proxies.values():
                proxy.pass_through()
            await crew.close()
        crew.report(name, seed, time.monotonic() - began, recovery)


def kill_someone(crew: Crew):
    async def fault() -> None:
        name = crew.chance.choice(list(crew.workers))
        await crew.kill(name)
        apart = bool(UNSHARE) and crew.chance.random() < 0.3
        await crew.start(name if crew.chance.random() < 0.7 else f"{name}x", apart=apart)

    return fault


def break_network(crew: Crew):
    """The network between one worker and the database, for less than a lease or for more."""

    async def fault() -> None:
        proxy = crew.proxies[crew.chance.choice(sorted(crew.proxies))]
        what = crew.chance.choice(("dropped", "slow", "silent", "deaf", "cut after a commit", "silent after a commit"))
        match what:
            case "dropped":
                proxy.drop()
            case "slow":
                proxy.delay(crew.chance.uniform(0.01, 0.2))
            case "silent":
                proxy.silence()
            case "deaf":
                proxy.swallow("answers")
            case _:
                proxy.cut_after(silently=what.startswith("silent"))
        await asyncio.sleep(crew.chance.choice((0.3, 1.0, LEASE_SECONDS * 1.2)))
        proxy.pass_through()
        crew.seen[f"networks: {what}"] += 1

    return fault


def move_clock(crew: Crew, *seconds: float):
    async def fault() -> None:
        name = crew.chance.choice(list(crew.workers))
        await crew.kill(name)
        await crew.start(name, skew=crew.chance.choice(seconds))
        crew.seen["clocks moved"] += 1

    return fault


def pause_someone(crew: Crew):
    async def fault() -> None:
        if not (here := [name for name in crew.workers if name not in crew.apart]):
            return
        child = crew.workers[crew.chance.choice(here)]
        with suppress(ProcessLookupError):
            child.send_signal(signals.SIGSTOP)
            await asyncio.sleep(crew.chance.choice((0.3, LEASE_SECONDS * 1.5)))
            child.send_signal(signals.SIGCONT)
            crew.seen["pauses of workers"] += 1

    return fault


def disturb(crew: Crew, what: str, service):
    async def restart() -> None:
        await asyncio.to_thread(service.kill if crew.chance.random() < 0.5 else service.stop)
        await asyncio.sleep(crew.chance.uniform(0.0, 1.0))
        await asyncio.to_thread(service.start)
        crew.seen[f"restarts of {what}"] += 1

    async def pause() -> None:
        pid = service.pid
        assert pid is not None
        os.kill(pid, signals.SIGSTOP)
        try:
            await asyncio.sleep(crew.chance.uniform(0.3, 1.5))
        finally:
            os.kill(pid, signals.SIGCONT)
        crew.seen[f"pauses of {what}"] += 1

    return [restart, pause]


def seed_of() -> int:
    return int(os.environ.get("FOLIOT_CHAOS_SEED") or (secrets.randbelow(10**6) if LARGE else 7))


@pytest.mark.timeout(3000)
async def test_workers_die_networks_break_and_servers_come_and_go(tmp_path, postgres_service, nats_service):
    seed = seed_of()
    crew = Crew(tmp_path, postgres_service.url, nats_service.url, seed, TASKS)
    faults = [
        *[kill_someone(crew)] * 6,
        pause_someone(crew),
        *[break_network(crew)] * 4,
        move_clock(crew, -300.0, -20.0, 20.0, 300.0),
        *disturb(crew, "PostgreSQL", postgres_service),
        *disturb(crew, "NATS", nats_service),
    ]
    with ExitStack() as networks:
        for name in ("w0", "w1", "w2"):
            crew.proxies[name] = networks.enter_context(Proxy(postgres_service.url))
        await play(crew, "PostgreSQL + NATS", seed, faults, FAULTS)


@pytest.mark.timeout(3000)
async def test_workers_die_on_one_file_with_disks_full_and_clocks_moved(tmp_path):
    seed = seed_of()
    crew = Crew(tmp_path, str(tmp_path / "foliot.db"), "-", seed, SMALL)

    async def full_disk() -> None:
        name = crew.chance.choice(list(crew.workers))
        await crew.kill(name)
        await crew.start(name, largest=crew.chance.choice((64, 400, 900)) * 1024)
        crew.seen["full disks"] += 1

    # One machine has one clock; this is what it may be set by under a process.
    wrong_clock = move_clock(crew, -90.0, -20.0, 15.0, 60.0)

    async def as_it_should_be() -> None:
        for name in list(crew.workers):
            await crew.kill(name)
            await crew.start(name)

    faults = [*[kill_someone(crew)] * 3, pause_someone(crew), full_disk, full_disk, wrong_clock, wrong_clock]
    try:
        await play(crew, "SQLite, full disks, moved clocks", seed, [*faults, as_it_should_be], FAULTS)
    finally:
        await crew.close()
