"""A chat without a terminal: something is said, and the answer goes to standard output.

Used by: `foliot chat` where standard input or output is no terminal, and `foliot sessions say`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from typing import Final

from foliot.cli.chat.commands import is_private
from foliot.cli.errors import say
from foliot.cli.terminal import emit, out
from foliot.cli.watch.run import Client
from foliot.common.text import one_line
from foliot.sessions.base import TurnOptions
from foliot.sessions.chat_events import EndEvent, WaitingEvent, encode_chat_event
from foliot.store.sessions.base import Session

FAILED: Final = 1
WAITS: Final = 8


async def say_and_print(
    client: Client, session: Session, text: str, *, mode: str, as_json: bool, key: str | None = None, model: str = ""
) -> int:
    """Says something and prints the answer; returns the exit code. With `as_json` a JSON line for each event.

    0: answered. 1: failed, stopped, or no turn can begin. 8: a person has to decide first; stderr has how.
    """
    if is_private(text):
        say("error", "Secrets are not said to an agent: nothing of this was sent or kept.", fg="red")
        say("hint", "`foliot create secret --help`", fg="yellow")
        return FAILED
    options = TurnOptions(model=model) if model else None
    chat = client.sessions.chat(session.id, text, mode=mode, key=key, options=options, pauses=True)
    waiting: dict[str, WaitingEvent] = {}  # by the run: that of the turn, and those below it
    async with aclosing(chat) as events:
        async for event in events:
            if as_json:
                emit(encode_chat_event(event).decode())
            if isinstance(event, WaitingEvent):
                waiting[event.run] = event
            elif isinstance(event, EndEvent):
                return _ended(session, event, waiting.values(), as_json=as_json)
    return FAILED


def _ended(session: Session, end: EndEvent, waiting: Iterable[WaitingEvent], *, as_json: bool) -> int:
    if end.status == "answered":
        if not as_json:
            emit(end.text)
        return 0
    if end.status == "waiting" and not end.run:
        say("error", one_line(end.message), fg="red")
        how = f"it is kept and answered when one can; `foliot sessions stop {session.id} --drop` takes it out"
        say("hint", how, fg="yellow")
        return FAILED
    if end.status == "waiting":
        _tell_waiting(session, end, waiting)
        return WAITS
    say("error", one_line(end.message) or f"the turn was {end.status}", fg="red")
    return FAILED


def _tell_waiting(session: Session, end: EndEvent, waiting: Iterable[WaitingEvent]) -> None:
    place = session.place.namespace
    where = "" if place == "default" else f" -n {one_line(place)}"
    out(f"The turn waits: {one_line(end.message) or 'for a person'}.", err=True)
    for run, ask in [(event.run, ask) for event in waiting for ask in event.asks]:
        tool = one_line(ask.tool, 60)
        match ask.kind:
            case "approval":
                out(f"{tool}: foliot approvals approve {one_line(ask.id)}{where}   (or show, deny, edit)", err=True)
            case "question":
                out(f'{tool}: foliot answer {run} {one_line(ask.call_id)} "…"', err=True)
            case "unknown_effect":
                out(f"{tool}: foliot settle {run} {one_line(ask.call_id)}", err=True)
    out(f"It goes on then; `foliot chat --session {session.id}` shows it.", err=True)
