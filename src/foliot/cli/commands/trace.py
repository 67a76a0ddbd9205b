"""`foliot trace`: one run as a tree."""

from __future__ import annotations

import shutil
import sys
import time

import click

from foliot.cli.connect import run
from foliot.cli.invocation import is_terminal
from foliot.cli.output import as_json, output_option
from foliot.cli.runtimes import interrupted, reached, run_argument, run_of
from foliot.cli.runview.tree import WIDTH, as_data, tree_of
from foliot.cli.terminal import out
from foliot.engine.story.tracing import trace_of


@click.command()
@run_argument(required=False)
@output_option("text", "json", default="text", help="text, or json with nothing shortened.")
@click.option("--full", is_flag=True, help="Whole texts, not one line of each.")
def trace(run_id: str | None, output: str, full: bool) -> int:
    """Show a run as a tree: steps, answers, calls with arguments, results, timings, and what went wrong on the way.

    \b
    foliot trace                             the newest run
    foliot trace 01k3 --full                 as much of its id as is unique
    foliot trace 01k3 -o json | jq '.steps[].seconds'

    RUN is an id or the beginning of one; the newest run when left out.
    """
    return run(_trace(run_id, output, full))


async def _trace(word: str | None, output: str, full: bool) -> int:
    async with reached() as reach:
        info = await run_of(reach.work, word)
        found = trace_of(info.id, await reach.work.facts(info.id))
    if output == "json":
        out(as_json(as_data(found, info.phase)))
        return 0
    width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else WIDTH
    phase = "interrupted" if interrupted(info, time.time()) else info.phase
    for line in tree_of(found, phase, full=full, width=width).lines():
        out(line)
    return 0
