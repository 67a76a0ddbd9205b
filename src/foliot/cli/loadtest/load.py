"""Making the load: tasks, the faults among them, and waiting until all have ended."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from foliot.errors import FoliotError, InvalidInput, NotFound, Unavailable
from foliot.kernel.backoff import RetryPolicy
from foliot.runtime.runtime import Runtime
from foliot.store.base import Document
from foliot.store.queue.workers import list_workers
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import Command, Priority

# --- manifests -------------------------------------------------------------------------------------------------------

# What a load test declares for itself: a pipeline of three agents, a system too slow, one with a bad tool.

LABEL: Final = "foliot.dev/loadtest"
SYSTEM: Final = "loadtest-pipeline"
TIMEOUT_SYSTEM: Final = "loadtest-timeout-system"
TIMEOUT_AGENT: Final = "loadtest-timeout-agent"
TOOL_SYSTEM: Final = "loadtest-tool-system"
_MODEL: Final = "loadtest-model"
_TOOL: Final = "loadtest-broken-tool"
_PIPELINE: Final = ("loadtest-planner", "loadtest-researcher", "loadtest-writer")


def broken_tool() -> str:
    """Fails whenever it is called."""
    raise RuntimeError("this tool fails on purpose")


def baseline(namespace: str, *, timeout: str) -> list[Document]:
    """Everything, as documents that can be applied. `timeout` is how long the agent has that is too slow for it."""
    script: list[dict[str, Any]] = [
        {"match": {"agent": list(_PIPELINE)}, "turns": [{"say": "{agent} on {input}"}]},
        {"match": {"agent": TIMEOUT_AGENT}, "turns": [{"say": "too late", "after": "1s"}]},
        {
            "match": {"agent": "loadtest-tool-agent"},
            "turns": [{"call": _TOOL}, {"say": "Done, although the tool said: {last_result}"}],
        },
    ]
    agents = [_agent(namespace, name) for name in _PIPELINE]
    agents.append(_agent(namespace, TIMEOUT_AGENT, limits={"timeout": timeout, "max_steps": 2}))
    agents.append(_agent(namespace, "loadtest-tool-agent", tools=[_TOOL]))
    return [
        _document(
            "ModelEndpoint",
            namespace,
            _MODEL,
            {"provider": "scripted", "default_model": "scripted", "script": script},
        ),
        _document(
            "Tool",
            namespace,
            _TOOL,
            {"type": "function", "function": f"{__name__}:broken_tool", "effect": "read"},
        ),
        *agents,
        _document("AgentSystem", namespace, SYSTEM, {"agents": list(_PIPELINE)}),
        _document("AgentSystem", namespace, TIMEOUT_SYSTEM, {"agents": [TIMEOUT_AGENT]}),
        _document("AgentSystem", namespace, TOOL_SYSTEM, {"agents": ["loadtest-tool-agent"]}),
    ]


def _agent(namespace: str, name: str, **spec: Any) -> Document:
    return _document("Agent", namespace, name, {"model_ref": _MODEL, "prompt": "Answer in one line.", **spec})


def _document(kind: str, namespace: str, name: str, spec: dict[str, Any]) -> Document:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "foliot-loadtest"}},
        "spec": spec,
    }


# --- driving ---------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

Fault: TypeAlias = Literal["none", "invalid_system", "timeout_system", "expired_lease", "tool_failure"]
FAULTS: Final[tuple[Fault, ...]] = ("invalid_system", "timeout_system", "expired_lease", "tool_failure")
LEASE_OF_THE_DEAD: Final = 0.2
LOOK_EVERY: Final = 0.5


class Load(Struct, frozen=True):
    """The load to generate. Rates are shares of all tasks; `seed` decides which ones."""

    namespace: str
    tasks: int = 50
    create_concurrency: int = 10
    run_timeout: float = 300.0
    system: str = "loadtest-pipeline"
    topic_prefix: str = "loadtest-topic"
    priority: Priority = "high"
    retry_attempts: int = 3
    retry_backoff: float = 0.2
    retry_max_backoff: float = 2.0
    invalid_system: str = "missing-system-loadtest"
    expired_lease_owner: str = "worker-crashed-simulated"
    rates: dict[str, float] = {}
    seed: int = 1


class LoadOutcome(Struct):
    """One task that was asked for."""

    name: str
    fault: Fault
    created: bool = False
    refused: str = ""
    injected: bool = False


def run_name(now: float) -> str:
    """Returns a name from the start time, with a suffix that tells apart two that began in one second."""
    return f"lt-{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def share_out(load: Load) -> list[Fault]:
    """Which task gets which fault: as many as the rates say, anywhere among them. Raises `InvalidInput`."""
    faults: list[Fault] = []
    for fault in FAULTS:
        faults.extend(fault for _ in range(round(load.rates.get(fault, 0.0) * load.tasks)))
    if len(faults) > load.tasks:
        raise InvalidInput("the rates of faults add up to more than 1", hint="every task has at most one fault")
    while len(faults) < load.tasks:
        faults.append("none")
    random.Random(load.seed).shuffle(faults)
    return faults


async def wait_for_workers(runtime: Runtime, ready: int, seconds: float) -> None:
    """Raises `Unavailable` when fewer are alive by then."""
    deadline = time.monotonic() + seconds
    while True:
        next_change = runtime.inside.next_change()
        alive = [
            each for each in await list_workers(runtime.inside.tasking.database) if each.state(time.time()) == "ready"
        ]
        if len(alive) >= ready:
            return
        if time.monotonic() >= deadline:
            raise Unavailable(
                f"{len(alive)} of {ready} workers were ready after {seconds:g} s",
                hint="start `foliot worker`, or let the test bring its own with --workers 1",
            )
        await next_change()


async def create_all(runtime: Runtime, load: Load, run: str) -> list[LoadOutcome]:
    """Every task accepted, or known not to be, with the faults that are injected at birth."""
    gate = asyncio.Semaphore(load.create_concurrency)
    outcomes = [LoadOutcome(f"{run}-{number:04d}", fault) for number, fault in enumerate(share_out(load), 1)]

    async def create(number: int, outcome: LoadOutcome) -> None:
        async with gate:
            await _create(runtime, load, run, number, outcome)

    await asyncio.gather(*(create(number, outcome) for number, outcome in enumerate(outcomes, 1)))
    return outcomes


async def _create(runtime: Runtime, load: Load, run: str, number: int, outcome: LoadOutcome) -> None:
    targets: dict[Fault, str] = {
        "invalid_system": load.invalid_system,
        "timeout_system": TIMEOUT_SYSTEM,
        "tool_failure": TOOL_SYSTEM,
    }
    command = Command(
        "system",
        targets.get(outcome.fault, load.system),
        namespace=load.namespace,
        name=outcome.name,
        message=f"{load.topic_prefix} {number}",
        priority=load.priority,
        # Of an execution class of its own: the failures that are wanted must not keep the others of theirs waiting.
        lane=outcome.name if outcome.fault == "timeout_system" else "",
        labels={LABEL: run},
        by="loadtest",
        retry=RetryPolicy(load.retry_attempts, load.retry_backoff, load.retry_max_backoff, "full"),
    )
    try:
        await runtime.inside.tasking.tasks.accept(command)
    except NotFound as refused:
        outcome.refused = refused.message
        outcome.injected = outcome.fault == "invalid_system"
        return
    except FoliotError as error:
        outcome.refused = error.message
        return
    outcome.created = True
    if outcome.fault == "expired_lease":
        outcome.injected = await _abandon(runtime, load, outcome.name)
    else:
        outcome.injected = outcome.fault not in ("none", "invalid_system")


async def _abandon(runtime: Runtime, load: Load, name: str) -> bool:
    """Take the first run of a task in the name of a worker that will never come back. False: a live one was faster."""
    rows = await runtime.inside.tasking.stories.rows(load.namespace, name)
    now = time.time()
    try:
        await runtime.inside.runs.journal.claim(
            rows[0].run_id, worker=load.expired_lease_owner, now=now, until=now + LEASE_OF_THE_DEAD
        )
    except FoliotError as error:
        log.debug("the lease of %s was not abandoned: %s", name, error.message)
        return False
    return True


async def wait_for_end(
    runtime: Runtime, load: Load, outcomes: list[LoadOutcome], told: Callable[[int, int], None]
) -> set[str]:
    """Waits until every task has ended, or the time is over; returns the names of the others.

    `told` hears how many have.
    """
    open_names = {outcome.name for outcome in outcomes if outcome.created}
    total = len(open_names)
    deadline = time.monotonic() + load.run_timeout
    while open_names:
        next_change = runtime.inside.next_change()
        looked_at = sorted(open_names)[:50]
        for name in looked_at:
            if (await runtime.inside.tasking.tasks.get(load.namespace, name)).phase in ENDED:
                open_names.discard(name)
        told(total - len(open_names), total)
        if not open_names or time.monotonic() >= deadline:
            break
        if open_names.isdisjoint(looked_at):  # all of them have ended: so may the next ones
            continue
        await asyncio.sleep(0.05)
        await next_change()
    return open_names
