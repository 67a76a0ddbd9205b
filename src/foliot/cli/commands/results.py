"""`foliot results`: what the calls of a run gave, whole, also where the model saw only a part."""

from __future__ import annotations

import click
import msgspec

from foliot.cli.connect import run
from foliot.cli.output import as_json, output_option
from foliot.cli.runtimes import reached, run_argument, run_of
from foliot.cli.terminal import emit, out
from foliot.client.work import Work
from foliot.errors import Conflict, NotFound
from foliot.printable import one_line
from foliot.tools.builtin.results import CallResult, ResultPage


@click.command()
@run_argument(required=False)
@click.argument("call", metavar="[CALL]", required=False)
@output_option("text", "json", default="text", help="text, or json with where it is from.")
def results(run_id: str | None, call: str | None, output: str) -> int:
    """Show what a call of a run gave, whole: also what was cut before the model saw it.

    \b
    foliot results 01k3                      the calls of a run, and how large their results are
    foliot results 01k3 call_2 > page.txt    one of them
    foliot results 01k3 call_2 | less

    RUN is an id or the beginning of one, the newest run when left out; CALL likewise, or the name of a tool that was
    called once.
    """
    return run(_results(run_id, call, output))


async def _results(word: str | None, call: str | None, output: str) -> int:
    async with reached() as reach:
        info = await run_of(reach.work, word)
        found = await reach.work.results(info.id)
        if call is None:
            out(as_json({"run": info.id, "items": msgspec.to_builtins(found)}) if output == "json" else _listed(found))
            return 0
        pages = await _pages(reach.work, info.id, _chosen(found, call, info.id).call)
    text = "".join(page.text for page in pages)
    if output == "json":
        about = msgspec.to_builtins(pages[0])
        out(as_json({key: value for key, value in about.items() if key not in ("offset", "next")} | {"text": text}))
    else:
        emit(text)
    return 0


async def _pages(work: Work, run_id: str, call: str) -> list[ResultPage]:
    pages = [await work.result(run_id, call)]
    while (after := pages[-1].next) is not None:
        pages.append(await work.result(run_id, call, offset=after))
    return pages


def _chosen(found: list[CallResult], word: str, run_id: str) -> CallResult:
    """The result that a word means. Raises `NotFound`, `Conflict`."""
    for alike in (
        [each for each in found if each.call == word],
        [each for each in found if word and each.call.startswith(word)],
        [each for each in found if each.tool == word],
    ):
        if len(alike) == 1:
            return alike[0]
        if alike:
            calls = ", ".join(each.call for each in alike[:5])
            raise Conflict(f"{word!r} means several calls of run {run_id}: {calls}", hint="give more of the id")
    raise NotFound(f"Run {run_id} has no result of a call {word!r}.", hint=f"`foliot results {run_id}` lists them.")


def _listed(found: list[CallResult]) -> str:
    if not found:
        return "No call has given a result yet."
    rows = [("CALL", "TOOL", "BYTES", "")]
    for each in found:
        notes = [*(["failed"] if each.failed else []), *(["cut for the model"] if each.cut else [])]
        rows.append((one_line(each.call), one_line(each.tool), str(each.bytes), ", ".join(notes)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{call:<{widths[0]}}  {tool:<{widths[1]}}  {size:>{widths[2]}}  {notes}".rstrip()
        for call, tool, size, notes in rows
    )
