"""`foliot fork`: what if? The same run from a step on, with something changed, beside the original."""

from __future__ import annotations

from pathlib import Path

import click

from foliot.cli.connect import connected, run
from foliot.cli.live import choose_view, finish, leave, watch_run
from foliot.cli.runtimes import find_run, opened, run_argument
from foliot.cli.runview.base import Opening
from foliot.client.local_work import LocalWork
from foliot.engine.story.amounts import counted, money, one_line, safe
from foliot.errors import InvalidInput, UsageError
from foliot.results import RunFailedError, RunResult
from foliot.runtime import Runtime

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


async def _fork(
    word: str, at: int, prompt: str | None, model: str | None, said: str | None, *, as_json: bool, quiet: bool
) -> int:
    view = choose_view(json=as_json, quiet=quiet)
    async with opened() as runtime:
        info = await find_run(runtime, word)
        if model is not None and ":" not in model:
            await _check_endpoint(model, info.namespace)
        new_id = runtime.new_run_id()
        changed = [name for name, value in (("prompt", prompt), ("model", model), ("input", said)) if value is not None]
        how = f"with another {' and '.join(changed)}" if changed else "with nothing changed"
        opening = Opening(new_id, info.agent, said or "", forked=f"fork of {info.id} at step {at}, {how}")
        watched = await watch_run(
            runtime,
            view,
            opening,
            lambda: runtime.fork(
                info.id, at=at, prompt=prompt, model=model, input=said, new_id=new_id, stream=not quiet, check=False
            ),
        )
        failed: RunFailedError | None = None
        try:
            code = await finish(LocalWork(runtime), view, watched)
        except RunFailedError as error:
            code, failed = error.exit_code, error
        if watched.result is not None and not as_json and not quiet:
            await _compare(runtime, info.id, watched.result)
    if failed is not None:
        raise failed
    return leave(code)


async def _check_endpoint(ref: str, namespace: str) -> None:
    """Raises `NotFound` with near names, before anything runs."""
    space, _, name = ref.rpartition("/")
    async with connected() as client:
        await client.get("ModelEndpoint", name, namespace=space or namespace)


async def _compare(runtime: Runtime, original: str, fork: RunResult) -> None:
    """Both runs, one under the other: how they ended, what they took, what they said. On stderr, as all but answers."""
    _, state = await runtime.runs.load(original)
    usage = state.spent.usage()
    before = getattr(state.ended, "output", "") or getattr(state.ended, "message", "") or "(not ended)"
    after = fork.output or fork.error or f"({fork.phase})"
    click.echo("\n" + click.style("Side by side", bold=True), err=True)
    rows = [
        ("original", original, state.spent.steps, usage.total_tokens, usage.cost_usd, before),
        ("fork", fork.run_id, fork.steps, fork.usage.total_tokens, fork.usage.cost_usd, after),
    ]
    for label, run_id, steps, tokens, cost, said in rows:
        took = f"{counted(steps, 'step')} · {counted(tokens, 'token')}{f' · {money(cost)}' if cost else ''}"
        click.echo(f"  {click.style(label.ljust(8), fg='cyan')}  {run_id}  {took}", err=True)
        click.echo(f"            {one_line(safe(said), SHOWN)}", err=True)
    if before == after:
        click.echo("  Both say the same.", err=True)
