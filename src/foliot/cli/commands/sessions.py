"""`foliot sessions`: conversations, listed, read, searched and put away; the same on a store and on a server."""

from __future__ import annotations

from datetime import UTC, datetime
from time import time

import click
import msgspec

from foliot.cli.chat.piped import say_and_print
from foliot.cli.commands.run import read_stdin
from foliot.cli.reach import namespace, run
from foliot.cli.runtimes import reached
from foliot.cli.show.output import as_json, json_option, output_option
from foliot.cli.show.tables import since, table
from foliot.cli.terminal import out, paint
from foliot.cli.watch.run import Client
from foliot.common.suggestions import suggestion
from foliot.common.text import lines_of, one_line
from foliot.common.times import iso
from foliot.errors import FoliotError, UsageError
from foliot.kernel.inbox import MODES, mode_of, mode_problem
from foliot.sessions.base import TurnView
from foliot.store.journal.base import TERMINAL
from foliot.store.sessions.base import Session
from foliot.work.views.run_document import interrupted

BAR = "  │ "


@click.group(invoke_without_command=True)
@output_option("table", "json", "name", default="table", help="Of the list: table, json or name (ids).")
@click.pass_context
def sessions(context: click.Context, output: str) -> int | None:
    """List, read, search and archive sessions. Without a command: list.

    \b
    foliot sessions                          the last used first
    foliot sessions history ID               what was said
    foliot sessions search "refund"
    foliot sessions say ID "And in summer?"

    `foliot chat` talks in them.
    """
    if context.invoked_subcommand is None:
        return run(_list(output, "", ""))
    return None


@sessions.command(name="list")
@output_option("table", "json", "name", default="table", help="table, json or name (ids).")
@click.option("--agent", default="", metavar="NAME", help="Only sessions with this agent.")
@click.option("--user", default="", metavar="NAME", help="Only sessions of this user.")
@click.option("--mine", is_flag=True, help="Only your own.")
@click.option("--archived", is_flag=True, help="Also archived ones.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="At most N.")
def list_command(output: str, agent: str, user: str, mine: bool, archived: bool, limit: int) -> int:
    """List sessions, the last used first."""
    return run(_list(output, agent, user, mine=mine, archived=archived, limit=limit))


@sessions.command()
@click.argument("id", metavar="SESSION")
@json_option("text or json.")
def show(id: str, as_json: bool) -> int:
    """Show one session: whose it is, its model, the turn at work."""
    return run(_show(id, in_json=as_json))


@sessions.command()
@click.argument("id", metavar="SESSION")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N", help="Turns at most.")
@click.option("--before", type=click.IntRange(min=1), metavar="TURN", help="Only turns before this number.")
@json_option("text or json.")
def history(id: str, limit: int, before: int | None, as_json: bool) -> int:
    """Show what was said in a session, the newest last. What was compacted is shown as it was said."""
    return run(_history(id, limit, before, in_json=as_json))


@sessions.command()
@click.argument("text")
@click.option("--session", metavar="ID", help="Only in this session.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="At most N.")
@json_option("text or json.")
def search(text: str, session: str | None, limit: int, as_json: bool) -> int:
    """Look for what was said, the newest first: turns in which all of these words stand."""
    return run(_search(text, session, limit, in_json=as_json))


@sessions.command()
@click.argument("id", metavar="SESSION")
@click.argument("text", required=False)
@click.option("--mode", default="followup", show_default=True, metavar="MODE", help="What it does during a turn.")
@click.option("--key", metavar="KEY", help="Said once, however often it is tried with this key.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Stay for the answer, and print it.")
@json_option("text, or json: a JSON line for each event; with --no-wait the outcome.")
def say(id: str, text: str | None, mode: str, key: str | None, wait: bool, as_json: bool) -> int:
    """Say something in a session. TEXT may come by standard input.

    With --no-wait on a store, the turn goes on as soon as a `foliot chat`, `foliot up` or server looks after it.

    Exit code: 0 answered, 1 failed, 8 waits for a person.
    """
    if mode_of(mode) is None:
        raise UsageError(mode_problem(mode), hint=suggestion(mode, MODES))
    said = read_stdin().strip("\n") if text in (None, "-") else text
    return run(_say(id, said or "", mode, key, wait=wait, in_json=as_json))


@sessions.command()
@click.argument("id", metavar="SESSION")
@click.option("--drop", is_flag=True, help="Also take out what waits to be answered.")
def stop(id: str, drop: bool) -> int:
    """Stop the turn at work; ends when nothing of it acts any more."""
    return run(_stop(id, drop))


@sessions.command()
@click.argument("id", metavar="SESSION")
def compact(id: str) -> int:
    """Have what was said so far summarized for the model; all of it stays readable. Ends when it is done."""
    return run(_compact(id))


@sessions.command()
@click.argument("id", metavar="SESSION")
def archive(id: str) -> int:
    """Put a session away: it can be read, and takes nothing new."""
    return run(_archive(id))


@sessions.command()
@click.argument("agent", metavar="AGENT")
@click.option("--user", default="", metavar="NAME", help="Whose session; by default yours.")
@click.option("--channel", default="terminal", show_default=True, metavar="NAME", help="Of which channel.")
@click.option("--title", default="", metavar="TEXT", help="The title of the new one.")
def rotate(agent: str, user: str, channel: str, title: str) -> int:
    """Put the active session with an agent away, and begin another; prints its id."""
    return run(_rotate(agent, user, channel, title))


@sessions.command()
@click.option("--user", default="", metavar="NAME", help="Whose sessions; by default yours.")
def invalidate(user: str) -> int:
    """Use nothing any more that is kept warm for the sessions of a user; no turn at work is touched."""
    return run(_invalidate(user))


@sessions.command()
@click.argument("id", metavar="SESSION")
def delete(id: str) -> int:
    """Delete a session; its runs stay."""
    return run(_delete(id))


async def _list(
    output: str, agent: str, user: str, *, mine: bool = False, archived: bool = False, limit: int = 20
) -> int:
    async with reached() as client:
        found, _ = await client.sessions.list(
            namespace=namespace(), agent=agent, user=user, mine=mine, archived=archived, limit=limit
        )
        states = [await _state(client, each) for each in found] if output == "table" else []
    if output == "json":
        out(as_json({"items": msgspec.to_builtins(found)}))
    elif output == "name":
        out("\n".join(each.id for each in found), nl=bool(found))
    elif found:
        now = datetime.now(UTC)
        out(
            table(
                ["SESSION", "AGENT", "USER", "CHANNEL", "TURNS", "STATE", "USED", "TITLE"],
                [_row(each, state, now) for each, state in zip(found, states, strict=True)],
            )
        )
    else:
        out(f"No sessions found in namespace {namespace()}.", err=True)
    return 0


def _row(session: Session, state: str, now: datetime) -> list[str]:
    place = session.place
    return [
        session.id,
        one_line(place.agent, 30),
        one_line(place.user, 30) or "-",
        one_line(place.channel, 30) or "-",
        str(session.turns),
        state,
        since(iso(session.active_at), now=now),
        one_line(session.title, 48) or "-",
    ]


async def _state(client: Client, session: Session) -> str:
    """Says how a session stands: what its turn does, or that no process drives it."""
    state = "archived" if session.archived_at is not None else "idle"
    if not session.turn:
        return state
    try:
        stands = await client.runs.get(session.turn)
    except FoliotError:
        return "working"  # it has ended and is gone by now, or is not ours to see
    turn = stands.info
    if turn.phase in TERMINAL:
        return state
    if turn.phase == "waiting" or stands.asking:
        return "waiting"
    return "interrupted" if interrupted(turn, time()) else "working"


async def _show(id: str, *, in_json: bool) -> int:
    async with reached() as client:
        session = await client.sessions.get(id)
        state = await _state(client, session)
    if in_json:
        out(as_json(msgspec.to_builtins(session)))
        return 0
    facts = {
        "agent": f"{session.place.namespace}/{session.place.agent}",
        "user": session.place.user,
        "channel": session.place.channel,
        "title": session.title,
        "model": session.model or "that of the agent",
        "state": state,
        "turns": str(session.turns),
        "at work": session.turn,
        "created": iso(session.created_at),
        "used": iso(session.active_at),
    }
    width = max(map(len, facts))
    out(paint(session.id, bold=True))
    out("\n".join(f"  {name.ljust(width)}  {one_line(value)}" for name, value in facts.items() if value))
    return 0


async def _history(id: str, limit: int, before: int | None, *, in_json: bool) -> int:
    async with reached() as client:
        turns = await client.sessions.history(id, limit=limit, before=before)
    if in_json:
        out(as_json({"items": msgspec.to_builtins(turns)}))
        return 0
    out("\n\n".join(_turn(turn) for turn in turns) if turns else "Nothing was said yet.", err=not turns)
    return 0


def _turn(turn: TurnView) -> str:
    """Formats a turn; what people and models wrote stands behind a bar, line by line."""
    branch = "" if turn.current else ", another branch"
    lines = [paint(f"turn {turn.number}  {turn.run_id}  {turn.phase}{branch}", bold=True)]
    for message in turn.messages:
        if message.text.strip():
            lines += [f"  {message.role}", *(f"{BAR}{line}" for line in lines_of(message.text))]
    return "\n".join(lines)


async def _search(text: str, session: str | None, limit: int, *, in_json: bool) -> int:
    async with reached() as client:
        found = await client.sessions.search(text, namespace=namespace(), session=session, limit=limit)
    if in_json:
        out(as_json({"items": msgspec.to_builtins(found)}))
        return 0
    for each in found:
        out(f"{paint(one_line(each.session), bold=True)}  turn {each.turn}  {one_line(each.title, 60)}")
        out("\n".join(f"{BAR}{line}" for line in lines_of(each.excerpt)))
    if not found:
        out("Nothing was found.", err=True)
    return 0


async def _say(id: str, text: str, mode: str, key: str | None, *, wait: bool, in_json: bool) -> int:
    async with reached() as client:
        session = await client.sessions.get(id)
        if wait:
            return await say_and_print(client, session, text, mode=mode, key=key, as_json=in_json)
        said = await client.sessions.say(id, text, mode=mode, key=key)
    out(as_json(msgspec.to_builtins(said)) if in_json else f"{said.outcome}, number {said.seq}")
    return 0


async def _stop(id: str, drop: bool) -> int:
    async with reached() as client:
        stopped = await client.sessions.stop(id, drop=drop)
    out("stopped" if stopped else "nothing was at work", err=not stopped)
    return 0


async def _compact(id: str) -> int:
    async with reached() as client:
        said = await client.sessions.compact(id)
        result = await client.runs.wait(said.run_id)
    out(one_line(result.output) if said.outcome == "direct" else "the turn at work has compacted, or is over")
    return 0 if result.phase == "succeeded" else 1


async def _archive(id: str) -> int:
    async with reached() as client:
        out(f"session {(await client.sessions.archive(id)).id} archived")
    return 0


async def _rotate(agent: str, user: str, channel: str, title: str) -> int:
    async with reached() as client:
        made = await client.sessions.rotate(agent, namespace=namespace(), user=user, channel=channel, title=title)
    out(made.id)
    return 0


async def _invalidate(user: str) -> int:
    async with reached() as client:
        await client.sessions.invalidate(user=user, namespace=namespace())
    out(f"the next turns of {one_line(user) or 'your sessions'} are built anew")
    return 0


async def _delete(id: str) -> int:
    async with reached() as client:
        await client.sessions.delete(id)
    out(f"session {one_line(id)} deleted")
    return 0
