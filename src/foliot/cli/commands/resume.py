"""`foliot resume`, `cancel` and `decide`: what a person does with a run that exists."""

from __future__ import annotations

import asyncio
import time
from typing import cast

import click

from foliot.cli.commands.run import going_on
from foliot.cli.connect import namespace, run
from foliot.cli.errors import tell
from foliot.cli.far_runs import rest_there, resume_there
from foliot.cli.going_on import go_on_elsewhere_or_here, not_from_here
from foliot.cli.live import WAITS, Look, finish, leave, watch_run
from foliot.cli.runtimes import Reach, is_undriven, reached, run_argument, run_of, whoami
from foliot.cli.runview.plain import MARKS
from foliot.cli.terminal import out
from foliot.client.work import Settled
from foliot.engine.story.amounts import counted
from foliot.errors import Conflict, Denied, FoliotError, UsageError
from foliot.printable import one_line
from foliot.results import RunFailedError, RunResult
from foliot.store.runs import TERMINAL, Held, RunInfo


@click.command()
@run_argument(required=False)
@click.option("-A", "--all-namespaces", is_flag=True, help="Without RUN: look in every namespace.")
@click.option("--json", "as_json", is_flag=True, help="With RUN: one JSON line per event on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Only the answer.")
def resume(run_id: str | None, all_namespaces: bool, as_json: bool, quiet: bool) -> int:
    """Go on with a run that was interrupted; without RUN, with every one that nobody drives.

    \b
    foliot resume                            every run of the namespace whose process is gone
    foliot resume -A                         those of all namespaces
    foliot resume 01k3                       this one; of one that has ended, its answer

    Finished steps and finished calls are not repeated. A call that was cut off goes by the effect of its tool: `read`
    and `idempotent` run again, `once` asks you. Start it where the tools can be imported.

    Exit code: 0 succeeded, 1 failed, 8 waits for a person, 130 Ctrl-C.
    """
    if run_id is None:
        return run(_resume_all(None if all_namespaces else namespace()))
    return run(_resume_one(run_id, Look(as_json=as_json, quiet=quiet)))


async def _resume_one(word: str, look: Look) -> int:
    async with reached() as reach:
        run_id = (await run_of(reach.work, word)).id
        code = await _go_on(reach, run_id, look)
    return leave(code)


async def _go_on(reach: Reach, run_id: str, look: Look) -> int:
    opening = await going_on(reach.work, run_id)
    if reach.remote is not None:
        return await resume_there(reach.remote, opening, look)
    runtime, view = reach.here(), look.view()
    watched = await watch_run(
        runtime, view, opening, lambda: runtime.resume(run_id, stream=not look.quiet, check=False)
    )
    return await finish(reach.work, view, watched)


async def _resume_all(space: str | None) -> int:
    async with reached() as reach:
        found = await reach.work.interrupted(space)
        if not found:
            where = "any namespace" if space is None else f"namespace {space}"
            out(f"No interrupted runs in {where}.{await _elsewhere(reach, space)}", err=True)
            return 0
        if len(found) == 1:
            code = await _go_on(reach, found[0].id, Look())
        else:
            out(f"Taking up {counted(len(found), 'interrupted run')}.", err=True)
            codes = await asyncio.gather(*(_one_of_many(reach, info) for info in found))
            code = 1 if 1 in codes else max(codes)
    return leave(code)


async def _elsewhere(reach: Reach, space: str | None) -> str:
    """Say that other namespaces have some, to whoever may know."""
    try:
        found = [] if space is None else await reach.work.interrupted(None)
    except Denied:
        return ""
    spaces = ", ".join(sorted({info.namespace for info in found}))
    return f" There are {len(found)} in {spaces}: `foliot resume -A` takes up all." if found else ""


async def _one_of_many(reach: Reach, info: RunInfo) -> int:
    """One line at the end of each: several live views at once would be no view at all."""
    out(f"  {info.id}  {info.agent}", err=True)
    try:
        if reach.remote is not None:
            result = await rest_there(reach.remote, info.id)
        else:
            result = await reach.here().resume(info.id, check=False)
    except Held:
        out(f"  {info.id}  somebody else took it up", err=True)
        return 0
    except FoliotError as error:
        return tell(error) and 1
    out(_line(result))
    return {"succeeded": 0, "waiting": WAITS}.get(result.phase, 1)


def _line(result: RunResult) -> str:
    mark = MARKS["ok" if result.succeeded else "note" if result.phase == "waiting" else "bad"]
    said = result.output if result.succeeded else result.error or (result.waiting.message if result.waiting else "")
    return f"{mark}{result.run_id}  {result.phase}  {one_line(said, 80)}".rstrip()


@click.command()
@run_argument()
@click.option("--reason", default="", metavar="TEXT", help="Why; it is recorded with the run.")
def cancel(run_id: str, reason: str) -> int:
    """End a run, wherever it is driven. What it did is not undone.

    \b
    foliot cancel 01k3 --reason "not needed any more"
    """
    return run(_cancel(run_id, reason))


async def _cancel(word: str, reason: str) -> int:
    async with reached() as reach:
        info = await run_of(reach.work, word)
        if info.phase in TERMINAL:
            raise Conflict(f"Run {info.id} has ended already ({info.phase}).")
        info = await reach.work.cancel_run(info.id, by=whoami(), reason=reason)
        if reach.runtime is not None and is_undriven(info, time.time()):
            # Nobody would hear it: take the run up, and it ends at once.
            await reach.runtime.resume(info.id, check=False)
            info = await reach.work.find_run(info.id)
    if info.phase in TERMINAL:
        out(f"{info.id} {info.phase}")
    else:
        out(f"{info.id} was asked to stop; the process that drives it does so at the next moment.")
    return 0


@click.command()
@run_argument()
@click.argument("call", metavar="CALL")
@click.argument(
    "decision", type=click.Choice(["happened", "run", "fail", "not_happened"]), metavar="happened|run|fail|not_happened"
)
@click.option("--result", metavar="TEXT", help="With `happened`: what the call returned, for the model to read.")
@click.option("--reason", default="", metavar="TEXT", help="Why; it is recorded with the run.")
@click.option("-q", "--quiet", is_flag=True, help="Only the answer.")
def decide(run_id: str, call: str, decision: str, result: str | None, reason: str, quiet: bool) -> int:
    """Say what became of a call that may have acted, and go on with the run.

    \b
    happened   it took effect (--result: what it returned)
    run        it did not; run it now
    fail       nobody can know: end the run

    Of a run that has ended say `happened` or `not_happened`: the run stays as it is, and the same call of another run
    of its task or of its family goes by it. `foliot runs --unknown` lists such calls.

    \b
    foliot decide 01k3 pay_refund happened --result "receipt R-17"

    CALL is the id of the call, or the name of its tool. `foliot why RUN` shows both.

    Exit code: as `foliot resume`; 0 when the run goes on elsewhere, 8 when it cannot go on from here.
    """
    if result is not None and decision != "happened":
        raise UsageError(f"--result says what a call returned that happened; it does not go with `{decision}`.")
    said = cast("Settled", decision)
    return run(_decide(run_id, call, said, result, reason, quiet=quiet))


async def _decide(word: str, call: str, decision: Settled, result: str | None, reason: str, *, quiet: bool) -> int:
    async with reached() as reach:
        info = await run_of(reach.work, word)
        await reach.work.settle_call(info.id, call, decision, result=result, by=whoami(), reason=reason)
        if info.phase in TERMINAL:
            out(f"{info.id} {info.phase}: kept that {call} {decision.replace('_', ' ')}.")
            return 0
        if reach.runtime is not None:
            if not quiet:
                out(f"Decided: {decision}.", err=True)
            code = await go_on_elsewhere_or_here(reach.runtime, info.id, attended_by=None, quiet=quiet)
        else:
            code = await _go_on_there(reach, info.id, Look(quiet=quiet))
    return leave(code)


async def _go_on_there(reach: Reach, run_id: str, look: Look) -> int:
    try:
        return await _go_on(reach, run_id, look)
    except RunFailedError:
        raise  # it went on, and that is how it ended
    except FoliotError as error:
        return not_from_here(run_id, error)
