"""`foliot fork`: what if? The same run from a step on, with something changed, beside the original."""

from __future__ import annotations

import time
from pathlib import Path

import click

from foliot.cli.connect import connected, run
from foliot.cli.errors import INTERRUPTED
from foliot.cli.far_runs import fork_there
from foliot.cli.live import Look, finish, leave, watch_run
from foliot.cli.runtimes import Reach, reached, run_argument, run_of, whoami
from foliot.cli.runview.base import Opening
from foliot.cli.terminal import out, paint
from foliot.client.run_standing import ForkOrder
from foliot.client.work import Work
from foliot.engine.ids import new_run_id
from foliot.engine.story.amounts import counted, money
from foliot.errors import InvalidInput, UsageError
from foliot.kernel.identity import acting
from foliot.printable import one_line, visible
from foliot.results import RunFailedError
from foliot.store.runs import TERMINAL

SHOWN = 400


@click.command()
@run_argument()
@click.option("--at", required=True, type=click.IntRange(min=1), metavar="STEP", help="The first step that is new.")
@click.option("--prompt", metavar="TEXT|@FILE", help="Other instructions for the agent.")
@click.option("--model", metavar="REF", help="Another ModelEndpoint, or provider:model.")
@click.option("--input", "said", metavar="TEXT", help="Something else to say: at step 1 instead of the input.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per event on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Only the answer.")
def fork(
    run_id: str, at: int, prompt: str | None, model: str | None, said: str | None, as_json: bool, quiet: bool
) -> int:
    """Run again from a step on, with another prompt, model or input, and compare with the original.

    \b
    foliot fork 01k… --at 3 --model other-endpoint
    foliot fork 01k… --at 1 --prompt @shorter.txt

    What came before STEP is shared and not done again; from STEP on the model is asked and tools are really called.
    The original run stays as it is.
    """
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


async def _fork(
    word: str, at: int, prompt: str | None, model: str | None, said: str | None, *, as_json: bool, quiet: bool
) -> int:
    look = Look(as_json=as_json, quiet=quiet)
    async with reached() as reach:
        info = await run_of(reach.work, word)
        if model is not None and ":" not in model:
            await _check_endpoint(model, info.namespace)
        order = ForkOrder(at, new_run_id(time.time()), prompt, model, said)
        changed = [name for name, value in (("prompt", prompt), ("model", model), ("input", said)) if value is not None]
        how = f"with another {' and '.join(changed)}" if changed else "with nothing changed"
        opening = Opening(order.new_id, info.agent, said or "", forked=f"fork of {info.id} at step {at}, {how}")
        failed: RunFailedError | None = None
        try:
            code = await _watched(reach, opening, info.id, order, look)
        except RunFailedError as error:
            code, failed = error.exit_code, error
        if code != INTERRUPTED and not as_json and not quiet:
            await _compare(reach.work, info.id, order.new_id)
    if failed is not None:
        raise failed
    return leave(code)


async def _watched(reach: Reach, opening: Opening, original: str, order: ForkOrder, look: Look) -> int:
    if reach.remote is not None:
        return await fork_there(reach.remote, opening, original, order, look)
    runtime, view = reach.here(), look.view()
    watched = await watch_run(
        runtime,
        view,
        opening,
        lambda: runtime.fork(
            original,
            at=order.at,
            prompt=order.prompt,
            model=order.model,
            input=order.input,
            new_id=order.new_id,
            identity=acting("", whoami(), "cli"),
            stream=not look.quiet,
            check=False,
        ),
    )
    return await finish(reach.work, view, watched)


async def _check_endpoint(ref: str, namespace: str) -> None:
    """Raises `NotFound` with near names, before anything runs."""
    space, _, name = ref.rpartition("/")
    async with connected() as client:
        await client.get("ModelEndpoint", name, namespace=space or namespace)


async def _compare(work: Work, original: str, fork: str) -> None:
    """Both runs, one under the other: how they ended, what they took, what they said. On stderr, as all but answers."""
    said: list[str] = []
    out("\n" + paint("Side by side", bold=True), err=True)
    for label, run_id in (("original", original), ("fork", fork)):
        result = (await work.standing(run_id)).result
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
