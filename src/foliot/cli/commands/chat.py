"""`foliot chat`: talk with an agent at the terminal, or in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click

from foliot.cli.chat.history_file import HistoryFile
from foliot.cli.chat.line_editor import LineEditor
from foliot.cli.chat.piped import say_and_print
from foliot.cli.commands.run import RunArguments, agent_named, agent_of, apply_files, folders_of, read_stdin
from foliot.cli.invocation import current, is_terminal
from foliot.cli.manifests import files_option, load
from foliot.cli.reach import namespace, run
from foliot.cli.runtimes import reached, whoami
from foliot.cli.show.output import json_option
from foliot.cli.terminal import out
from foliot.cli.watch.run import Client
from foliot.cli.work_target import parse_name, parse_words
from foliot.common.suggestions import suggestion
from foliot.errors import NotFound, UsageError
from foliot.kernel.inbox import MODES, mode_of, mode_problem
from foliot.resources.reader import Loaded
from foliot.store.base import Filter
from foliot.store.sessions.base import Session

CHANNEL: Final = "terminal"
EXAMPLE: Final = "For example `foliot chat helper`, or `foliot chat -f examples/chat`."


@click.command()
@click.argument("word", metavar="[AGENT|PATH]", required=False)
@files_option(required=False)
@click.option("--agent", metavar="NAME", help="Which agent, when the manifest declares several.")
@click.option("--session", "session_id", metavar="ID", help="Continue this session.")
@click.option("--resume", is_flag=True, help="Continue the session that was used last, with any agent.")
@click.option("--new", is_flag=True, help="Begin a new session; the active one is archived.")
@click.option("--model", default="", metavar="NAME", help="An endpoint to ask instead of the agent's.")
@click.option("--mode", default="", metavar="MODE", help="In a pipe: what it does while a turn is at work.")
@click.option("--lines", is_flag=True, help="In a pipe: each line is a message of its own.")
@json_option("In a pipe: text, or json, a JSON line for each event.")
def chat(
    word: str | None,
    files: tuple[str, ...],
    agent: str | None,
    session_id: str | None,
    resume: bool,
    new: bool,
    model: str,
    mode: str,
    lines: bool,
    as_json: bool,
) -> int:
    """Ask an agent, and talk with it: start again, and the session continues where it was.

    \b
    foliot chat helper                        the active session with this agent, or a new one
    foliot chat -f examples/chat              manifests are applied first; also ./PATH and FILE.yaml
    foliot chat --resume                      the session that was used last
    echo "And in summer?" | foliot chat helper     one message; the answer on stdout

    Enter sends. A line that ends with a backslash goes on in the next one; Alt-Enter and pastes hold several lines.
    What is typed while the agent works is heard between two of its steps (steer); `/followup`, `/collect`, `/queue`
    and `/interrupt` before a text say otherwise. Approvals and questions are answered right here. `/help` lists the
    commands. Ctrl-C stops the turn at work; a second one, and Ctrl-D, leave. A turn that was left, or whose chat was
    killed, continues with the next chat, or on the server.

    Exit code in a pipe: 0 answered, 1 failed, 8 waits for a person. On a terminal 0.
    """
    if session_id is not None and (word or files or agent or new or resume):
        raise UsageError("--session names a session: it goes with no agent, --new or --resume.")
    if resume and (word or files or agent or new):
        raise UsageError("--resume takes the session that was used last: it goes with no agent and no --new.")
    if mode and mode_of(mode) is None:
        raise UsageError(mode_problem(mode), hint=suggestion(mode, MODES))
    named = None if agent is None else parse_name(agent, example=EXAMPLE)
    read = parse_words(() if word is None else (word,), files, named=named, takes_text=False, example=EXAMPLE)
    order = RunArguments(read.files, read.target, None)
    at_terminal = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    said = [] if at_terminal else _piped(lines)
    return run(_chat(order, session_id, said, new=new, resume=resume, model=model, mode=mode, as_json=as_json))


def _piped(lines: bool) -> list[str]:
    """Returns the messages of standard input. Raises `UsageError` when there is none."""
    text = read_stdin()
    said = [line for line in text.splitlines() if line.strip()] if lines else [text.strip("\n")] if text.strip() else []
    if not said:
        raise UsageError("There is nothing to say: the input is empty.", hint='echo "…" | foliot chat AGENT')
    return said


async def _chat(
    order: RunArguments,
    session_id: str | None,
    said: list[str],
    *,
    new: bool,
    resume: bool,
    model: str,
    mode: str,
    as_json: bool,
) -> int:
    loaded = load(order.files) if order.files else []
    async with reached(*folders_of(order.files)) as client:
        meant = None
        if session_id is None and order.agent is not None:
            meant = await _agent(
                client, order, loaded
            )  # a mistake in what was typed is told before anything is applied
        if loaded:
            await apply_files(client, order, loaded, quiet=bool(said))
        if session_id is not None:
            session = await client.sessions.get(session_id)
        elif order.agent is None and not loaded and (resume or not new):
            session = await _last_used(client, or_begin=not resume, model=model)
        else:
            space, name = meant or await _agent(client, order, loaded)
            session = await _session_with(client, space, name, new=new, model=model)
        if model and session.model != model:
            session = await client.sessions.change(session.id, model=model)
        if not said:
            return await _at_terminal(client, session)
        for text in said:
            if code := await say_and_print(client, session, text, mode=mode or "followup", as_json=as_json):
                return code
    return 0


async def _agent(client: Client, order: RunArguments, loaded: Sequence[Loaded]) -> tuple[str, str]:
    """Returns namespace and name of the agent that is meant. Raises `NotFound`, `UsageError`."""
    if order.agent is None and not loaded:
        return namespace(), await _only_agent(client)
    space, name = agent_of(order, loaded)
    if order.agent is None or ("Agent", space, name) in {item.key for item in loaded}:
        return space, name
    return await agent_named(client, order.agent, loaded)


async def _session_with(client: Client, space: str, name: str, *, new: bool, model: str) -> Session:
    if new and (earlier := await client.sessions.active(name, namespace=space, channel=CHANNEL)) and earlier.turn:
        out(await _left_behind(client, earlier), err=True)
    find = client.sessions.rotate if new else client.sessions.resolve
    return await find(name, namespace=space, channel=CHANNEL, model=model)


async def _left_behind(client: Client, session: Session) -> str:
    """Says in a line that the session which is archived has a turn that is not over."""
    phase = (await client.runs.get(session.turn)).info.phase
    what = "waits for a person" if phase == "waiting" else "has a turn at work"
    return f"The session before, {session.id}, {what}: `foliot chat --session {session.id}` shows it."


async def _last_used(client: Client, *, or_begin: bool, model: str) -> Session:
    """Returns the session that was used last on a terminal; with `or_begin` one with the only agent there is."""
    found, _ = await client.sessions.list(namespace=namespace(), channel=CHANNEL, mine=True, limit=1)
    if found:
        return found[0]
    if not or_begin:
        raise NotFound(f"There is no session in namespace {namespace()} yet.", hint="`foliot chat AGENT` begins one.")
    return await _session_with(client, namespace(), await _only_agent(client), new=False, model=model)


async def _only_agent(client: Client) -> str:
    found = (await client.resources.list(Filter("Agent", namespace()), limit=2)).items
    if len(found) != 1:
        which = "no agent" if not found else "more than one agent"
        raise UsageError(f"There is {which} in namespace {namespace()}.", hint="Name one: `foliot chat AGENT`.")
    return found[0]["metadata"]["name"]


async def _at_terminal(client: Client, session: Session) -> int:
    from foliot.cli.chat.pictures import Pictures
    from foliot.cli.chat.screen import Screen
    from foliot.cli.chat.talk import Talk
    from foliot.cli.chat.view import ChatView

    home = current().settings().home
    history = HistoryFile(home)
    screen = Screen(LineEditor(history.read()), color=current().color)
    view = ChatView(screen, Pictures(home, client.runs.content))
    talk = Talk(client, screen, view, history, session, whoami())
    await talk.run()
    out(f"Session {talk.session.id} stays: `foliot chat --session {talk.session.id}` continues it.", err=True)
    return 0
