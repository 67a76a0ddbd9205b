"""`foliot resume`, `cancel` and `settle`: what a person does with a run that exists."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import click
import msgspec

from foliot.cli.errors import INTERRUPTED, tell
from foliot.cli.reach import namespace, run
from foliot.cli.runtimes import reached, run_argument, run_of, whoami
from foliot.cli.show.output import as_json, json_option, output_option
from foliot.cli.show.run import MARKS, Opening, PlainView
from foliot.cli.terminal import emit, out, paint
from foliot.cli.watch.run import WAITS, Client, WatchOptions, leave, rested, resumed, resumed_after_decision, stay
from foliot.common.text import counted, one_line, visible, visible_json
from foliot.engine.driver.ids import new_run_id
from foliot.engine.explain.amounts import money
from foliot.engine.live.hub import Recorded
from foliot.errors import Conflict, Denied, FoliotError, InvalidInput, UsageError
from foliot.kernel.inbox import MODES
from foliot.kernel.run.events import Fork, RunCreated
from foliot.runtime.answers import Replayed
from foliot.runtime.groups.groups import Groups
from foliot.runtime.groups.work import Settled
from foliot.runtime.results import RunFailedError, RunResult
from foliot.store.journal.base import TERMINAL, RunHeld, RunInfo


@click.command()
@run_argument(required=False)
@click.option("-A", "--all-namespaces", is_flag=True, help="Without RUN: look in every namespace.")
@json_option("text, or with RUN json: one JSON line per event on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Only the answer.")
def resume(run_id: str | None, all_namespaces: bool, as_json: bool, quiet: bool) -> int:
    """Resume an interrupted run; without RUN, every run that no process drives.

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
    return run(_resume_one(run_id, WatchOptions(as_json=as_json, quiet=quiet)))


async def _resume_one(word: str, look: WatchOptions) -> int:
    async with reached() as client:
        code = await resumed(client, (await run_of(client, word)).id, look)
    return leave(code)


async def _resume_all(space: str | None) -> int:
    async with reached() as client:
        found = await client.runs.interrupted(namespace=space)
        if not found:
            where = "any namespace" if space is None else f"namespace {space}"
            out(f"No interrupted runs in {where}.{await _elsewhere(client, space)}", err=True)
            return 0
        if len(found) == 1:
            code = await resumed(client, found[0].id, WatchOptions())
        else:
            out(f"Taking up {counted(len(found), 'interrupted run')}.", err=True)
            codes = await asyncio.gather(*(_one_of_many(client, info) for info in found))
            code = 1 if 1 in codes else max(codes)
    return leave(code)


async def _elsewhere(client: Client, space: str | None) -> str:
    """Say that other namespaces have some, to whoever may know."""
    try:
        found = [] if space is None else await client.runs.interrupted(namespace=None)
    except Denied:
        return ""
    spaces = ", ".join(sorted({info.namespace for info in found}))
    return f" There are {len(found)} in {spaces}: `foliot resume -A` takes up all." if found else ""


async def _one_of_many(client: Client, info: RunInfo) -> int:
    """One line at the end of each: several live views at once would be no view at all."""
    out(f"  {info.id}  {info.agent}", err=True)
    try:
        result = await rested(client, info.id)
    except RunHeld:
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
    async with reached() as client:
        info = await run_of(client, word)
        if info.phase in TERMINAL:
            raise Conflict(f"Run {info.id} has ended already ({info.phase}).")
        info = await client.runs.cancel(info.id, by=whoami(), reason=reason)
    if info.phase in TERMINAL:
        out(f"{info.id} {info.phase}")
    else:
        out(f"{info.id} was asked to stop; the process that drives it does so at the next moment.")
    return 0


@click.command()
@run_argument()
@click.argument("text")
@click.option("--mode", default="steer", metavar="MODE", help=f"{', '.join(MODES[:-1])} or {MODES[-1]}.")
@click.option("--key", metavar="KEY", help="Said again with the same key, it is one input with one outcome.")
def say(run_id: str, text: str, mode: str, key: str | None) -> int:
    """Say something to a run. One that has ended is restarted: another run goes on after it, and its answer is printed.

    \b
    steer          heard before the next question to the model
    followup       answered when the run would end, each in a turn of its own (also: queue)
    collect        answered when the run would end, all together
    steer-backlog  heard as by steer, and answered as a followup
    interrupt      ends what is under way, and is heard at once

    \b
    foliot say 01k3 "Also look at the second invoice"
    foliot say 01k3 "Stop that" --mode interrupt
    """
    return run(_say(run_id, text, mode, key))


async def _say(word: str, text: str, mode: str, key: str | None) -> int:
    async with reached() as client:
        info = await run_of(client, word)
        said = await client.runs.say(info.id, text, mode=mode, by=whoami(), key=key)
        answers = f", the answer to {said.answered}" if said.answered else ""
        out(f"{said.run.id} {said.outcome}{answers}{' (said before)' if said.again else ''}")
        if said.outcome != "restarted":
            return 0
        result = await rested(client, said.run.id)
    if result.phase == "waiting":
        return WAITS
    if result.phase == "succeeded":
        emit(result.output)
        return 0
    raise RunFailedError(result)


@click.command()
@run_argument()
@click.argument("call", metavar="CALL")
@click.argument(
    "decision", type=click.Choice(["happened", "run", "fail", "not_happened"]), metavar="happened|run|fail|not_happened"
)
@click.option("--result", metavar="TEXT", help="With `happened`: what the call returned, for the model to read.")
@click.option("--reason", default="", metavar="TEXT", help="Why; it is recorded with the run.")
@click.option("--attempt", type=click.IntRange(min=0), metavar="N", help="The attempt that is meant.")
@click.option("-q", "--quiet", is_flag=True, help="Only the answer.")
def settle(
    run_id: str, call: str, decision: str, result: str | None, reason: str, attempt: int | None, quiet: bool
) -> int:
    """Settle a call of unknown outcome: say what became of it, and resume the run.

    \b
    happened   it took effect (--result: what it returned)
    run        it did not; run it now
    fail       nobody can know: end the run

    Of a run that has ended say `happened` or `not_happened`: the run stays as it is, and the same call of another run
    of its task or of its family goes by it. `foliot runs --unknown` lists such calls.

    \b
    foliot settle 01k3 pay_refund happened --result "receipt R-17"

    CALL is the id of the call, or the name of its tool. `foliot why RUN` shows both. Once `run` had a call made again,
    say which attempt is meant; so the same word, sent again, settles nothing else.

    Exit code: as `foliot resume`; 0 when the run goes on elsewhere, 8 when it cannot go on from here.
    """
    if result is not None and decision != "happened":
        raise UsageError(f"--result says what a call returned that happened; it does not go with `{decision}`.")
    said = cast("Settled", decision)
    return run(_settle(run_id, call, said, result, reason, attempt, quiet=quiet))


async def _settle(
    word: str, call: str, decision: Settled, result: str | None, reason: str, attempt: int | None, *, quiet: bool
) -> int:
    async with reached() as client:
        info = await run_of(client, word)
        said: dict[str, Any] = {"attempt": attempt, "result": result, "by": whoami(), "reason": reason}
        await client.runs.settle(info.id, call, decision, **said)
        if info.phase in TERMINAL:
            out(f"{info.id} {info.phase}: kept that {call} {decision.replace('_', ' ')}.")
            return 0
        if not quiet:
            out(f"Decided: {decision}.", err=True)
        code = await resumed_after_decision(client, info.id, quiet=quiet)
    return leave(code)


# --- fork ------------------------------------------------------------------------------------------------------------

# `foliot fork`: what if? The same run from a step on, with something changed, beside the original.

SHOWN = 400


@click.command()
@run_argument()
@click.option("--at", required=True, type=click.IntRange(min=1), metavar="STEP", help="The first step that is new.")
@click.option("--prompt", metavar="TEXT|@FILE", help="Other instructions for the agent.")
@click.option("--model", metavar="REF", help="Another ModelEndpoint, or provider:model.")
@click.option(
    "--input", "said", metavar="TEXT", help="A further user message at that step; at step 1 it replaces the input."
)
@click.option("--dry-run", is_flag=True, help="Only say what the original has done from that step on.")
@json_option("text, or json: one JSON line per event on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Only the answer.")
def fork(
    run_id: str,
    at: int,
    prompt: str | None,
    model: str | None,
    said: str | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Run again from a step on, with another prompt, model or input, and compare with the original.

    \b
    foliot fork 01k… --at 3 --model other-endpoint
    foliot fork 01k… --at 1 --prompt @shorter.txt

    What came before STEP is shared and not done again; from STEP on the model is asked and tools are really called.
    The original run stays as it is. Calls that it has made from STEP on, and that did more than read, are named first:
    the fork may make them again. --dry-run says only that.
    """
    if dry_run:
        return run(_dry_run(run_id, at, as_json=as_json))
    if said is not None and not said.strip():
        raise UsageError("The input is empty.", hint="Leave --input out to keep the original one.")
    return run(_fork(run_id, at, _text(prompt), model, said, as_json=as_json, quiet=quiet))


def _text(given: str | None) -> str | None:
    """The text, or what is in the file that `@` names."""
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidInput(f"{given[1:]} is not UTF-8 text.") from None
    except OSError as error:
        raise UsageError(f"The prompt {given[1:]} cannot be read: {error.strerror}.") from None


async def _dry_run(word: str, at: int, *, as_json: bool) -> int:
    async with reached() as client:
        point = await client.runs.fork_point((await run_of(client, word)).id, at=at)
    if as_json:
        effects = [msgspec.to_builtins(effect) for effect in point.effects]
        whole = {"run_id": point.run_id, "seq": point.seq, "effects": effects}
        out(visible_json(msgspec.json.encode(whole).decode()))
    else:
        out("\n".join(_ahead(point, at)) or f"Run {point.run_id} has changed nothing from step {at} on.")
    return 0


def _ahead(point: Fork, at: int) -> list[str]:
    """Lists the effects that a fork may have a second time."""
    if not point.effects:
        return []
    many = counted(len(point.effects), "call")
    lines = [f"From step {at} on the original has made {many} that did more than read; a fork may repeat them:"]
    for effect in point.effects:
        call = one_line(f"{effect.tool} {effect.arguments}", SHOWN)
        lines.append(f"  step {effect.step}: {call} ({effect.effect}) → {one_line(effect.words, SHOWN)}")
    return lines


async def _fork(
    word: str, at: int, prompt: str | None, model: str | None, said: str | None, *, as_json: bool, quiet: bool
) -> int:
    look = WatchOptions(as_json=as_json, quiet=quiet)
    async with reached() as client:
        info = await run_of(client, word)
        if model is not None and ":" not in model:
            await _check_endpoint(client, model, info.namespace)
        changed = [name for name, value in (("prompt", prompt), ("model", model), ("input", said)) if value is not None]
        how = f"with another {' and '.join(changed)}" if changed else "with nothing changed"
        new_id = new_run_id(time.time())
        opening = Opening(new_id, info.agent, said or "", forked=f"fork of {info.id} at step {at}, {how}")
        for line in () if quiet else _ahead(await client.runs.fork_point(info.id, at=at), at):
            out(line, err=True)
        failed: RunFailedError | None = None
        try:
            code = await stay(
                client,
                opening,
                lambda: client.runs.fork(info.id, at=at, prompt=prompt, model=model, input=said, new_id=new_id),
                look,
            )
        except RunFailedError as error:
            code, failed = error.exit_code, error
        if code != INTERRUPTED and not as_json and not quiet:
            await _compare(client, info.id, new_id)
    if failed is not None:
        raise failed
    return leave(code)


async def _check_endpoint(client: Client, ref: str, namespace: str) -> None:
    """Raises `NotFound` with near names, before anything runs."""
    space, _, name = ref.rpartition("/")
    await client.resources.get("ModelEndpoint", name, namespace=space or namespace)


async def _compare(work: Groups, original: str, fork: str) -> None:
    """Prints both runs, one under the other: how they ended, what they took, what they answered.

    On stderr, as all but answers.
    """
    said: list[str] = []
    out("\n" + paint("Side by side", bold=True), err=True)
    for label, run_id in (("original", original), ("fork", fork)):
        result = (await work.runs.get(run_id)).result
        usage = result.usage
        cost = f" · {money(usage.cost_usd)}" if usage.cost_usd else ""
        took = f"{counted(result.steps, 'step')} · {counted(usage.total_tokens, 'token')}{cost}"
        said.append(
            result.output or result.error or (f"({result.phase})" if result.phase in TERMINAL else "(not ended)")
        )
        out(f"  {paint(label.ljust(8), fg='cyan')}  {run_id}  {took}", err=True)
        out(f"            {one_line(visible(said[-1]), SHOWN)}", err=True)
    if said[0] == said[1]:
        out("  Both say the same.", err=True)


# --- replay ----------------------------------------------------------------------------------------------------------

# `foliot replay`: decide a whole run again, offline, and compare.


@click.command()
@run_argument(required=False)
@click.option("--show", is_flag=True, help="Also play the run again as lines, as `foliot run` would have shown it.")
@output_option("text", "json", default="text", help="text or json.")
def replay(run_id: str | None, show: bool, output: str) -> int:
    """Verify a run offline: every decision is made again from its journal, and must come out byte for byte the same.

    \b
    foliot replay                            the newest run
    foliot replay 01k3 --show                and what was seen when it ran

    RUN is an id or the beginning of one. No model is asked and no tool is called. Exit code 1 when something differs.
    """
    return run(_replay(run_id, show, output))


async def _replay(word: str | None, show: bool, output: str) -> int:
    async with reached() as client:
        info = await run_of(client, word)
        if show:
            await _play(client, info)
        found = await client.runs.replay(info.id)
    if output == "json":
        out(as_json(_data(info, found)))
    else:
        out(_verdict(info, found))
    return 0 if found.difference is None else 1


async def _play(work: Groups, info: RunInfo) -> None:
    view = PlainView()
    facts = await work.runs.events(info.id)
    created = facts[0][1] if facts else None
    said = "\n".join(message.text for message in created.input) if isinstance(created, RunCreated) else ""
    view.begin(Opening(info.id, info.agent, said))
    for seq, (at, event) in enumerate(facts, 1):
        view.show(Recorded(info.id, seq, at, event))
    output = (await work.runs.get(info.id)).result.output
    if output:
        out(visible(output), err=True)


def _verdict(info: RunInfo, found: Replayed) -> str:
    if found.difference is None:
        end = "" if found.ended else " so far"
        return (
            f"{paint('✓', fg='green')} {info.id}: all {found.events} events{end} follow from each other; "
            f"{found.decided} decisions were made again and are the same, byte for byte."
        )
    different = found.difference
    return "\n".join(
        [
            f"{paint('✗', fg='red')} {info.id}: event {different.seq} is not what this version would record.",
            f"  recorded: {one_line(different.recorded, 400)}",
            f"  replayed: {one_line(different.replayed, 400)}",
            f"  {found.events} events before it are the same.",
        ]
    )


def _data(info: RunInfo, found: Replayed) -> dict[str, object]:
    different = found.difference
    return {
        "run": info.id,
        "same": different is None,
        "events": found.events,
        "decided": found.decided,
        "difference": None
        if different is None
        else {"seq": different.seq, "recorded": different.recorded, "replayed": different.replayed},
    }
