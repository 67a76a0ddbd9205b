"""Runs that this process drives for somebody who watches them from afar."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from contextlib import nullcontext
from typing import Any

from foliot.client.run_state import ForkOrder, RunOrder
from foliot.client.task_resources import DeclaredWork
from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.kernel.identity import Identity
from foliot.resources.names import check_labels
from foliot.resources.references import is_name
from foliot.runtime.results import RunResult
from foliot.runtime.runtime import Runtime
from foliot.server.context import Services
from foliot.store.journal.base import TASK_LABEL, TERMINAL, Beside, Held, RunInfo


async def begin_run(services: Services, order: RunOrder, identity: Identity, also: Beside) -> RunInfo:
    """Begin the run as `identity`, or go on with the one of this id, as whoever began it; durable on return.

    What `also` writes is stored with a new one.

    Raises `NotFound` (the agent), `Conflict` when the id belongs to other work, `InvalidInput`.
    """
    check_labels(order.labels)
    if not is_name(order.agent):
        raise InvalidInput(f"{order.agent[:80]!r} does not name an agent", hint="give its name without the namespace")
    if not order.input.strip():
        raise InvalidInput("the input is empty: there is nothing to do")
    runtime = services.runtime
    try:
        info = await runtime.runs.journal.get(order.run_id)
    except NotFound:
        drive = runtime.run(
            f"{order.namespace}/{order.agent}",
            order.input,
            run_id=order.run_id,
            labels=order.labels,
            identity=identity,
            stream=True,
            check=False,
            also=also,
        )
        return await _driven(services, order.run_id, drive)
    if (info.namespace, info.agent) != (order.namespace, order.agent):
        raise _taken(order.run_id)
    await runtime.is_begun(order.run_id, order.agent, order.input)
    return await resume_run(services, info)


async def resume_run(services: Services, info: RunInfo) -> RunInfo:
    """Have a run go on that nobody drives; others stay as they are. Raises what keeps it from going on here."""
    runtime = services.runtime
    if info.phase in TERMINAL or runtime.runs.local(info.id) is not None:
        return info
    if TASK_LABEL in info.labels:
        await runtime.tasking.ring(info)
        return info
    if info.phase == "running" and not runtime.runs.is_left_alone(info):
        return info
    return await _driven(services, info.id, runtime.resume(info.id, stream=True, check=False))


async def fork_run(services: Services, info: RunInfo, order: ForkOrder, identity: Identity, also: Beside) -> RunInfo:
    """Begin a run as `identity` that shares the past of another. Asking again with the same new id finds it.

    Raises `Conflict`.

    What `also` writes is stored with a new one.
    """
    journal = services.runtime.runs.journal
    try:
        known = await journal.get(order.new_id)
    except NotFound:
        drive = services.runtime.fork(
            info.id,
            at=order.at,
            prompt=order.prompt,
            model=order.model,
            input=order.input,
            new_id=order.new_id,
            identity=identity,
            stream=True,
            check=False,
            also=also,
        )
        return await _driven(services, order.new_id, drive)
    if (known.namespace, known.parent) != (info.namespace, info.id):
        raise _taken(order.new_id)
    return known


def _taken(id: str) -> Conflict:
    """Builds the same error whoever owns the work."""
    return Conflict(f"the id {id!r} belongs to other work", hint="choose another id")


async def _driven(services: Services, run_id: str, drive: Coroutine[Any, Any, RunResult]) -> RunInfo:
    """Return when the first event is durable. Whoever asked may leave: the run goes on."""
    runtime = services.runtime
    with runtime.watch(run_id) as reader:
        task = services.drives.keep(drive)
        task.add_done_callback(lambda _: reader.close())
        first = await anext(aiter(reader), None)
    if first is None:
        with contextlib.suppress(Held):  # somebody else was faster
            await task
    return await runtime.runs.journal.get(run_id)


# --- work ------------------------------------------------------------------------------------------------------------

# The work that Task resources stand for, on the runtime of this server.


def declared_work(runtime: Runtime) -> DeclaredWork:
    """Returns the declared work of the runtime, which is open already, and stays so."""
    return DeclaredWork(runtime.tasking.database, lambda: nullcontext(runtime.tasking.tasks))
