"""`foliot audit`: what was decided about every tool call and what came of it, and that nobody has changed it since."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from foliot.cli.commands.wait import moment_option, parse_moment
from foliot.cli.invocation import current
from foliot.cli.reach import connected, namespace, run
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.tables import table
from foliot.cli.terminal import confirm, out, paint
from foliot.common.hosts import shown_host
from foliot.common.text import counted, one_line, safe_json
from foliot.engine.explain.amounts import money
from foliot.errors import UsageError
from foliot.resources.syntax.yaml_text import dump_yaml
from foliot.store.audit.chain import ChainHead
from foliot.store.audit.log import AuditFilter, AuditRecord, prune_audit
from foliot.store.open import open_database

if TYPE_CHECKING:
    from foliot.engine.audit.metering import By, Total

F = TypeVar("F", bound=Callable[..., Any])
MOST_NAMED = 20
# What `-o wide` shows besides.
WIDE = ("NAMESPACE", "MOMENT", "USER", "MESSAGE")


@click.group()
def audit() -> None:
    """Show the audit log: each tool call, the rule that decided about it, and its outcome.

    Each record holds the hash of the one before: `foliot audit verify` finds what was changed.
    """


def _filters(command: F) -> F:
    for option in reversed(
        (
            click.option("--tool", default="", metavar="NAME", help="Only calls of this tool."),
            click.option("--agent", default="", metavar="NAME", help="Only calls by this agent."),
            click.option("--run", "run_id", default="", metavar="RUN", help="Only calls of this run."),
            moment_option("--since", help="Only from then on: 2h or 7d ago, 2026-01-31, or a full time."),
            moment_option("--until", help="Only from before then."),
            click.option("-A", "--all-namespaces", is_flag=True, help="Look in every namespace."),
        )
    ):
        command = option(command)
    return command


def _span(since: float | None, until: float | None) -> tuple[float, float]:
    return since or 0.0, math.inf if until is None else until


# --- verify ------------------------------------------------------------------------------------------------------


@audit.command()
@click.option(
    "--head", metavar="NUMBER:HASH", default=None, help="A head that was noted before: the log must contain it."
)
@output_option("text", "json", default="text", help="text or json.")
def verify(head: str | None, output: str) -> int:
    """Walk the whole log and say where it was changed, if it was. Exits with 1 then.

    The log is also held against the journals: finished calls without a record (of a process that was killed, and whose
    runs nobody took over yet) are named, and exit with 1 too. `foliot audit complete` makes their records up.

    Someone who can write to the whole store can also make a new log. Note the head that this prints somewhere else, and
    give it the next time.
    """
    return run(_verify(_head(head), output))


def _head(text: str | None) -> ChainHead | None:
    if text is None:
        return None
    number, _, digest = text.partition(":")
    if not number.isdecimal() or len(digest) != 64:
        raise UsageError(
            f"{text!r} is not a head", hint="as `foliot audit verify` prints it: a number, a colon, a hash"
        )
    return ChainHead(int(number), digest.lower())


async def _verify(anchor: ChainHead | None, output: str) -> int:
    async with connected() as operations:
        verified = await operations.audit.verify(anchor)
    broken = verified.broken
    if output == "json":
        found = None if broken is None else {"seq": broken.seq, "fault": broken.fault, "message": broken.message}
        told = {"records": verified.records, "head": str(verified.head), "broken": found}
        out(as_json({**told, "missing": list(verified.missing)}))
    elif broken is not None:
        out(f"{paint('broken', fg='red')} at record {broken.seq} ({broken.fault}): {broken.message}")
        if broken.seq > verified.first:
            out(f"Records {verified.first} to {broken.seq - 1} hold.")
    else:
        out(f"{counted(verified.records, 'record holds', 'records hold')}.")
        if verified.records:
            out(f"head: {verified.head}")
        if verified.first > 1:
            out(f"Records up to {verified.first - 1} were pruned.")
    if output != "json" and verified.missing:
        count = len(verified.missing)
        out(f"{counted(count, 'finished call has', 'finished calls have')} no record; `foliot audit complete` adds it:")
        for each in verified.missing[:MOST_NAMED]:
            out(f"  {one_line(each)}")
    return 0 if broken is None and not verified.missing else 1


# --- complete ----------------------------------------------------------------------------------------------------


@audit.command()
def complete() -> int:
    """Add the records of finished calls that a killed process did not write, from the journals of its runs.

    Workers and servers do so by themselves, when they take over a run and while they keep house.
    """
    return run(_complete())


async def _complete() -> int:
    from foliot.engine.audit.completion import Completion

    database = await open_database(current().store_settings().store)
    try:
        count = await Completion(database).complete(since=0.0, now=time.time())
    finally:
        await database.close()
    out(f"{counted(count, 'record')} made up")
    return 0


# --- prune -------------------------------------------------------------------------------------------------------


@audit.command()
@click.option(
    "--before", required=True, metavar="AGE|TIME", help="90d for what is older, or 2026-01-31 or a full time."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def prune(before: str, yes: bool) -> int:
    """Forget the oldest records, and write down in the log that and how far. It can still be verified afterwards.

    A log that does not hold is not cut. Export what must be kept longer first: `foliot audit export`.
    """
    if (moment := parse_moment(before)) > time.time():
        raise UsageError(f"{before!r} is in the future: that would forget every record.", hint="For example 90d.")
    return run(_prune(moment, yes))


async def _prune(before: float, yes: bool) -> int:
    from foliot.cli.runtimes import whoami

    if not yes:
        when = datetime.fromtimestamp(before, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        confirm(f"Forget all audit records from before {when}?")
    database = await open_database(current().store_settings().store)
    try:
        cut = await prune_audit(database, before=before, by=whoami(), now=time.time())
    finally:
        await database.close()
    if cut is None:
        out("No audit record is that old.", err=True)
    else:
        out(f"{counted(cut.records, 'record')} forgotten, up to {cut.last}")
    return 0


# --- list and show -----------------------------------------------------------------------------------------------


@audit.command(name="list")
@_filters
@click.option("--call", "call_id", default="", metavar="ID", help="Only this call.")
@click.option(
    "--outcome", metavar="OUTCOME", help="Only these, such as ok, failed, denied, approved, created, deleted."
)
@click.option(
    "--moment",
    default="",
    metavar="WHAT",
    help="Only these: admitted, refused, finished, decided, act, budget, egress, …",
)
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N", help="At most N.")
@output_option("table", "wide", "json", default="table", help="table, wide or json.")
def list_command(
    tool: str,
    agent: str,
    run_id: str,
    since: float | None,
    until: float | None,
    all_namespaces: bool,
    call_id: str,
    outcome: str | None,
    moment: str,
    limit: int,
    output: str,
) -> int:
    """List records, newest first.

    Each connection of a sandbox is a record of its own: --moment egress.
    """
    space = "" if all_namespaces else namespace()
    wanted = AuditFilter(space, agent, tool, run_id, call_id, moment, outcome or "", *_span(since, until))
    return run(_list(wanted, limit, output))


async def _list(wanted: AuditFilter, limit: int, output: str) -> int:
    async with connected() as operations:
        found = await operations.audit.list(wanted, limit=limit + 1)
    is_all, found = len(found) <= limit, found[:limit]
    if output == "json":
        out(as_json([_as_data(record) for record in found]))
    elif found:
        headings = ("NUMBER", "TIME", "AGENT", "ABOUT", "OUTCOME", "BY", "RUN", "CALL")
        if output == "wide":
            out(table((*headings, *WIDE), [(*_row(record), *_more(record.body)) for record in found]))
        else:
            out(table(headings, [_row(record) for record in found]))
        if not is_all:
            out(f"The newest {limit}; --limit N shows more.", err=True)
    else:
        out("No audit records found.", err=True)
    return 0


def _row(record: AuditRecord) -> tuple[str, ...]:
    body = record.body
    at = datetime.fromtimestamp(body["at"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    names = [one_line(each) or "-" for each in (body["agent"], _about(body), body["outcome"])]
    return (
        str(record.seq),
        at,
        *names,
        one_line(_by(body)) or "-",
        one_line(body["run_id"]) or "-",
        one_line(body["call_id"]),
    )


def _more(body: dict[str, Any]) -> list[str]:
    """The columns of a wide list: where, at which moment, on whose behalf, and what was said of it."""
    decision, result = body["decision"], cast("dict[str, Any]", body.get("result") or {})
    user = cast("dict[str, Any]", body.get("caller") or {}).get("user", "")
    said = decision.get("message") or decision.get("comment") or result.get("message") or ""
    return [one_line(str(each)) or "-" for each in (body["namespace"], body["moment"], user, said)]


def _about(body: dict[str, Any]) -> str:
    """Returns what a record is about: the tool, with where it connected to; else the resource."""
    if (egress := cast("dict[str, Any]", body.get("egress") or {})) and "host" in egress:
        return f"{body['tool']}: {egress['method']} {shown_host(egress['host'])}:{egress['port']}"
    return body["tool"] or _resource(body)


def _resource(body: dict[str, Any]) -> str:
    """Returns the resource or route that an act was about, for instance `AgentPolicy/strict`."""
    about = cast("dict[str, Any]", body.get("resource") or {})
    return f"{about.get('kind', '')}/{about.get('name', '')}" if about else ""


def _by(body: dict[str, Any]) -> str:
    """The person or the rule that decided, else the layer; for a failure its code."""
    decision = body["decision"]
    if (egress := cast("dict[str, Any]", body.get("egress") or {})) and "bytes_out" in egress:
        reason = f"{decision['message']}, " if decision.get("message") else ""
        return f"{reason}{egress['bytes_out']:,} bytes out, {egress['bytes_in']:,} in"
    if "by" in decision:
        actor = body.get("caller", {}).get("by")
        return f"{decision['by']} (by {actor})" if actor else decision["by"]
    asked = ", ".join(ask["rule"] or ask["layer"] for ask in decision["asks"])
    return decision.get("rule") or decision.get("layer") or body.get("result", {}).get("code", "") or asked


@audit.command()
@click.argument("number", type=click.IntRange(min=1))
@output_option("yaml", "json", default="yaml", help="yaml or json.")
def show(number: int, output: str) -> int:
    """Show the whole of record NUMBER."""
    return run(_show(number, output))


async def _show(number: int, output: str) -> int:
    async with connected() as operations:
        record = await operations.audit.get(number)
    data = _as_data(record)
    out(as_json(data) if output == "json" else dump_yaml(data).rstrip("\n"))
    return 0


def _as_data(record: AuditRecord) -> dict[str, Any]:
    time_of_day = datetime.fromtimestamp(record.body["at"], UTC).isoformat()
    return {"seq": record.seq, "time": time_of_day, **record.body, "hash": record.hash}


# --- export --------------------------------------------------------------------------------------------------------


@audit.command()
@click.option(
    "--out",
    "file",
    type=click.File("w", encoding="utf-8", lazy=True),
    default="-",
    metavar="FILE",
    help="The file to write to.",
)
def export(file: Any) -> int:
    """Print every record that is kept, of all namespaces, oldest first: one JSON object a line.

    \b
    foliot audit export > audit.jsonl
    foliot audit export --out audit.jsonl && foliot audit prune --before 90d
    """
    return run(_export(file))


async def _export(file: Any) -> int:
    async with connected() as operations:
        async for record in operations.audit.export():
            out(safe_json(_as_data(record), indent=None), file=file)
    return 0


# --- summary -----------------------------------------------------------------------------------------------------


@audit.command()
@_filters
@click.option(
    "--by",
    type=click.Choice(("tool", "agent", "day", "run")),
    default="tool",
    show_default=True,
    metavar="WHAT",
    help="tool, agent, day or run.",
)
@output_option("table", "json", default="table", help="table or json.")
def summary(
    tool: str,
    agent: str,
    run_id: str,
    since: float | None,
    until: float | None,
    all_namespaces: bool,
    by: str,
    output: str,
) -> int:
    """Add up calls: how many ran, failed or were refused, the time and bytes they took, and what their runs cost."""
    wanted = AuditFilter("" if all_namespaces else namespace(), agent, tool, run_id, "", "", "", *_span(since, until))
    return run(_summary(wanted, cast("By", by), output))


async def _summary(wanted: AuditFilter, by: By, output: str) -> int:
    async with connected() as operations:
        found = await operations.audit.totals(wanted, by=by)
    if output == "json":
        out(as_json([asdict(each) for each in found]))
    elif found:
        headings = (
            by.upper(),
            "CALLS",
            "FAILED",
            "REFUSED",
            "ASKED",
            "ATTEMPTS",
            "SECONDS",
            "IN",
            "OUT",
            "TOKENS",
            "COST",
        )
        out(table(headings, [_sums(each) for each in found]))
    else:
        out("No audit records found.", err=True)
    return 0


def _sums(total: Total) -> tuple[str, ...]:
    counts = (total.calls, total.failed, total.refused, total.asked, total.attempts)
    sizes = (f"{total.bytes_in:,} B", f"{total.bytes_out:,} B")
    spent = (f"{total.tokens:,}", money(total.cost_usd))
    return (one_line(total.name) or "-", *map(str, counts), f"{total.seconds:.3f}", *sizes, *spent)
