"""`foliot replay`: decide a whole run again, offline, and compare."""

from __future__ import annotations

import click

from foliot.cli.connect import run
from foliot.cli.output import as_json, output_option
from foliot.cli.runtimes import reached, run_argument, run_of
from foliot.cli.runview.base import Opening
from foliot.cli.runview.plain import PlainView
from foliot.cli.terminal import out, paint
from foliot.client.run_standing import Replayed
from foliot.client.work import Work
from foliot.engine.live import Recorded
from foliot.kernel.events import RunCreated
from foliot.printable import one_line, visible
from foliot.store.runs import RunInfo


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
    async with reached() as reach:
        info = await run_of(reach.work, word)
        if show:
            await _play(reach.work, info)
        found = await reach.work.replay_run(info.id)
    if output == "json":
        out(as_json(_data(info, found)))
    else:
        out(_verdict(info, found))
    return 0 if found.difference is None else 1


async def _play(work: Work, info: RunInfo) -> None:
    view = PlainView()
    facts = await work.facts(info.id)
    created = facts[0][1] if facts else None
    said = "\n".join(message.text for message in created.input) if isinstance(created, RunCreated) else ""
    view.begin(Opening(info.id, info.agent, said))
    for seq, (at, event) in enumerate(facts, 1):
        view.show(Recorded(info.id, seq, at, event))
    output = (await work.standing(info.id)).result.output
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
