"""`foliot why`: the story of a run in plain words."""

from __future__ import annotations

import time

import click
import msgspec

from foliot.cli.connect import run
from foliot.cli.output import as_json, output_option
from foliot.cli.runtimes import find_run, interrupted, opened, run_argument
from foliot.engine.story.amounts import safe
from foliot.engine.story.explain import Explanation, Holder, Standing, explain
from foliot.engine.story.tracing import trace_of
from foliot.store.runs import RunInfo


@click.command()
@run_argument(required=False)
@output_option("text", "json", default="text", help="text or json.")
def why(run_id: str | None, output: str) -> int:
    """Say why a run waits, why it failed, what it cost and what happened on the way.

    Everything is read from the run's journal; nothing is guessed. RUN is an id or the beginning of one; the newest
    run when left out.
    """
    return run(_why(run_id, output))


async def _why(word: str | None, output: str) -> int:
    async with opened() as runtime:
        info = await find_run(runtime, word)
        _, state = await runtime.runs.load(info.id)
        trace = trace_of(info.id, await runtime.runs.facts(info.id))
    now = time.time()
    explanation = explain(trace, Standing(info.phase, _holder(info, now)), state.spec, now)
    if output == "json":
        click.echo(as_json({"run": info.id, "phase": info.phase, **msgspec.to_builtins(explanation)}))
    else:
        click.echo(_text(info, explanation))
    return 0


def _holder(info: RunInfo, now: float) -> Holder:
    if info.worker is None:
        return "nobody"
    return "gone" if interrupted(info, now) else "alive"


def _text(info: RunInfo, told: Explanation) -> str:
    head = f"{click.style(info.agent, bold=True)}  {click.style(info.id, dim=True)}\n{told.headline}"
    chain = "\n".join(f"  {'  ' * depth}{'← ' if depth else ''}{safe(line)}" for depth, line in enumerate(told.chain))
    parts = [f"{head}\n{chain}" if chain else head]
    parts.append(_section("What it cost", told.cost))
    parts.append(_section("Where the time went", [told.time] if told.time else []))
    parts.append(_section("On the way", told.way))
    if told.next:
        width = max(len(hint.command) for hint in told.next)
        rows = [f"{click.style(hint.command.ljust(width), fg='cyan')}  {hint.effect}" for hint in told.next]
        parts.append(_section("What you can do", rows))
    return "\n\n".join(part for part in parts if part)


def _section(title: str, lines: list[str]) -> str:
    if not lines:
        return ""
    return "\n".join([click.style(title, bold=True), *(f"  {line}" for line in lines)])
