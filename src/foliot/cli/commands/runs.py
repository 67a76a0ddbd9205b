"""`foliot runs`: the list of runs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from foliot.cli.invocation import is_terminal
from foliot.cli.reach import namespace, run
from foliot.cli.runtimes import reached
from foliot.cli.show.output import API_VERSION, as_json, as_list, as_yaml, output_option
from foliot.cli.show.tables import fitted, since, table
from foliot.cli.terminal import out
from foliot.common.suggestions import read_phases
from foliot.common.text import one_line
from foliot.common.times import iso
from foliot.engine.explain.amounts import money
from foliot.errors import UsageError
from foliot.store.base import Document
from foliot.store.journal.base import ALL_PHASES
from foliot.store.ledger.doubts import Doubt
from foliot.work.views.run_document import interrupted, run_document

PHASES: Final = (*ALL_PHASES, "interrupted")


@click.command()
@output_option("table", "wide", "json", "yaml", "name", default="table", help="table, wide, json, yaml or name (ids).")
@click.option("-A", "--all-namespaces", is_flag=True, help="Look in every namespace.")
@click.option("--agent", metavar="NAME", help="Only runs of this agent.")
@click.option(
    "--phase",
    metavar="PHASE",
    help=f"Only runs in this phase: {', '.join(PHASES)}.",
)
@click.option("--unknown", is_flag=True, help="Instead: calls that may have acted and are not settled.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="At most N.")
@click.option("--before", metavar="RUN", help="Only runs that were stored before this one: the next page.")
def runs(
    output: str,
    all_namespaces: bool,
    agent: str | None,
    phase: str | None,
    unknown: bool,
    limit: int,
    before: str | None,
) -> int:
    """List runs, newest first.

    \b
    foliot runs --agent writer --limit 5
    foliot runs --phase waiting              who waits for somebody
    foliot runs --before RUN                 older ones
    foliot runs --unknown                    calls that may have acted, also of runs that have ended
    foliot runs -o json | jq '.items[].status'

    `interrupted` is a run that nobody drives although it has not ended: `foliot resume` takes it up. `foliot settle`
    says what became of a call that may have acted.
    """
    if phase is not None:
        (phase,) = read_phases([phase], PHASES)
    if unknown:
        if agent is not None or phase is not None or before is not None:
            raise UsageError("--unknown lists calls; it does not go with --agent, --phase and --before.")
        return run(_unknown(output, None if all_namespaces else namespace(), limit))
    if phase == "interrupted" and before is not None:
        raise UsageError("--before does not go with --phase interrupted, which lists all of them.")
    return run(_runs(output, None if all_namespaces else namespace(), agent, phase, limit, before))


async def _runs(
    output: str, space: str | None, agent: str | None, phase: str | None, limit: int, before: str | None
) -> int:
    now = time.time()
    async with reached() as client:
        if phase == "interrupted":
            due = await client.runs.interrupted(namespace=space)
            found = [each for each in reversed(due) if interrupted(each, now) and agent in (None, each.agent)]
        else:
            phases = (phase,) if phase else ()
            last = None if before is None else (await client.runs.find(before)).id
            found = await client.runs.list(namespace=space, agent=agent, phases=phases, limit=limit + 1, before=last)
        shown = [run_document(info, now) for info in found[:limit]]
    if output == "name":
        out("\n".join(document["metadata"]["name"] for document in shown), nl=bool(shown))
    elif output == "json":
        out(as_json(as_list(shown)))
    elif output == "yaml":
        out(as_yaml(shown))
    elif shown:
        out(_table(shown, wide=output == "wide", namespaced=space is None))
        if len(found) > limit:
            name = shown[-1]["metadata"]["name"]
            out(f"{limit} shown; --limit N shows more, --before {name} those before them.", err=True)
    if not shown and output in ("table", "wide"):
        where = "any namespace" if space is None else f"namespace {space}"
        which = f"{f'{phase} ' if phase else ''}runs{f' of agent {agent}' if agent else ''}"
        out(f"No {which} found in {where}.", err=True)
    return 0


async def _unknown(output: str, space: str | None, limit: int) -> int:
    async with reached() as client:
        page = await client.runs.unknown(namespace=space, limit=limit)
    found = page.calls
    shown = [_call_document(doubt) for doubt in found]
    if output == "name":
        out("\n".join(f"{doubt.run_id} {doubt.call_id}" for doubt in found), nl=bool(found))
    elif output == "json":
        out(as_json(as_list(shown)))
    elif output == "yaml":
        out(as_yaml(shown))
    elif found:
        headings = ["RUN", "CALL", "ATTEMPT", "TOOL", "AGENT", "RUN IS", "REASON", "AGE", "MAY STILL ACT"]
        out(table(headings, [_call_row(each, time.time()) for each in found]))
    else:
        where = "any namespace" if space is None else f"namespace {space}"
        out(f"No call in {where} is known to have been lost without somebody having settled it.", err=True)
    if len(found) < page.total:
        out(f"{len(found)} of {page.total} shown, the oldest; --limit {page.total} shows all.", err=True)
    return 0


def _call_document(doubt: Doubt) -> Document:
    return {
        "apiVersion": API_VERSION,
        "kind": "UnknownCall",
        "metadata": {"name": doubt.key, "namespace": doubt.namespace, "createdAt": iso(doubt.at)},
        "spec": {"run": doubt.run_id, "call": doubt.call_id, "tool": doubt.tool, "agent": doubt.agent},
        "status": {
            "reason": doubt.reason,
            "attempt": doubt.attempt,
            "runPhase": doubt.phase,
            "until": None if doubt.until is None else iso(doubt.until),
        },
    }


def _call_row(doubt: Doubt, now: float) -> list[str]:
    left = "nobody can say" if doubt.until is None else "no" if doubt.until <= now else f"until {iso(doubt.until)}"
    tool, agent = one_line(doubt.tool, 40), one_line(doubt.agent, 40)
    age = since(iso(doubt.at), now=datetime.fromtimestamp(now, UTC))
    attempt = str(doubt.attempt or "-")
    return [doubt.run_id, doubt.call_id, attempt, tool, agent, doubt.phase, doubt.reason, age, left]


def _table(documents: Sequence[Document], *, wide: bool, namespaced: bool) -> str:
    headings = ["RUN", "AGENT", "PHASE", "STEPS", "TOKENS", "COST", "AGE", "LAST"]
    if namespaced:
        headings.insert(0, "NAMESPACE")
    if wide:
        headings[-1:] = ["CALLS", "FORK OF", "LABELS", "LAST"]
    now = datetime.now(UTC)
    rows = [_row(document, now, wide=wide, namespaced=namespaced) for document in documents]
    if not wide and is_terminal():
        return table(*fitted(headings, rows, shutil.get_terminal_size().columns))
    return table(headings, rows)


def _row(document: Document, now: datetime, *, wide: bool, namespaced: bool) -> list[str]:
    metadata, spec, status = document["metadata"], document["spec"], document["status"]
    cost = status.get("cost_usd")
    cells = [
        metadata["name"],
        one_line(spec["agent"], 40),
        "interrupted" if status["interrupted"] else "waiting" if status.get("waiting") else status["phase"],
        str(status.get("steps", "-")),
        f"{status['tokens']:,}" if status.get("tokens") else "-",
        money(cost) if cost else "-",
        since(metadata["createdAt"], now=now),
    ]
    if wide:
        labels = ",".join(f"{key}={value}" for key, value in metadata["labels"].items())
        cells += [str(status.get("tool_calls", "-")), spec["parent"] or "-", one_line(labels, 60) or "-"]
    cells.append(_last(status, 200 if wide else 48) or "-")
    return [metadata["namespace"], *cells] if namespaced else cells


def _last(status: dict[str, Any], longest: int) -> str:
    """Returns the last column of a run: what it waits for, why it failed, or its answer."""
    waiting = status.get("waiting")
    if waiting:
        return f"waits: {waiting.get('reason', '')} ({waiting.get('owner', '')})"
    return one_line(str(status.get("error") or status.get("output") or status.get("reason") or ""), longest)
