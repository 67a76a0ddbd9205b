"""A chat at a terminal: what is typed goes to the session, what happens in it goes to the screen.

The session is not of this process: a turn goes on when the chat is left, killed or closed, as far as somebody drives
it, and the next chat resumes it. Two things run beside each other: the stream of the session, and the keys.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

from foliot.cli.chat.asks import Asks
from foliot.cli.chat.commands import Command, Say, help_lines, read_typed
from foliot.cli.chat.history_file import HistoryFile
from foliot.cli.chat.line_editor import Entered
from foliot.cli.chat.screen import Screen
from foliot.cli.chat.view import ChatView, call_lines
from foliot.cli.terminal import paint
from foliot.cli.watch.run import Client
from foliot.common.cancellation import stop_tasks
from foliot.common.text import counted, one_line
from foliot.errors import FoliotError, InvalidInput
from foliot.sessions.base import TurnView
from foliot.sessions.chat_events import EndEvent, InputEvent, ToolEvent, WaitingEvent
from foliot.store.sessions.base import Session

SHOWN_TURNS: Final = 5
MOST_FOUND: Final = 10
PLACE: Final = "terminal"


class Talk:
    """One chat. `me` is the name of the person at the terminal, as decisions record it."""

    def __init__(self, client: Client, screen: Screen, view: ChatView, history: HistoryFile, session: Session, me: str):
        self._client = client
        self._screen = screen
        self._view = view
        self._history = history
        self._me = me
        self.session = session
        self._asks = Asks(client, screen, namespace=session.place.namespace, by=me)
        self._following: asyncio.Task[None] | None = None
        self._beside: set[asyncio.Task[None]] = set()
        self._interrupted = False
        self._stopped = False
        self._speaking = asyncio.Lock()

    async def run(self) -> None:
        """Talks until the person leaves. Raises what ends the stream of the session."""
        with self._screen.opened():
            await self._open()
            try:
                while await self._next():
                    pass
            finally:
                await stop_tasks(self._following, *self._beside)

    async def _next(self) -> bool:
        """Does what is typed next; returns whether the chat goes on."""
        typed = asyncio.create_task(self._screen.typed())
        try:
            assert self._following is not None, "a chat that is open follows its session"
            await asyncio.wait({typed, self._following}, return_when=asyncio.FIRST_COMPLETED)
            if not typed.done():
                await self._following  # it ends by an error alone
                return False
            entered, asked = typed.result()
            match entered:
                case Entered(text=text):
                    return await self._entered(text, asked)
                case "interrupt":
                    return self._interrupt()
                case _:
                    return False
        finally:
            await stop_tasks(typed)

    # --- the session -----------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Shows which session it is, resumes a turn that no process drives, and follows what happens."""
        session = self.session
        title = f" · {one_line(session.title, 60)}" if session.title else ""
        self._screen.print(
            f"{paint(one_line(session.place.agent, 60), bold=True)}{title}"
            + paint(f"  session {session.id}, {counted(session.turns, 'turn')}; /help lists commands", dim=True)
        )
        await self._client.sessions.resume(session.id)
        self._following = asyncio.create_task(self._follow(session))

    async def _follow(self, session: Session) -> None:
        async with aclosing(self._client.sessions.watch(session.id)) as events:
            async for event in events:
                if not isinstance(event, WaitingEvent) and not (isinstance(event, ToolEvent) and event.output):
                    await self._asks.forget("" if isinstance(event, EndEvent) else event.run)
                if isinstance(event, InputEvent):
                    if self._stopped and not event.id:
                        self._stopped = False
                        self._screen.print(
                            paint(
                                "The next message that waited is answered now; /stop all drops all of them.", dim=True
                            )
                        )
                    async with self._speaking:
                        pass
                await self._view.show(event)
                if isinstance(event, WaitingEvent):
                    await self._asks.take(event)
                    if event.place:  # with a run below stays the one that started it
                        self._spawn(self._client.runs.attend(event.run))
                elif isinstance(event, EndEvent):
                    self._interrupted = False

    # --- what is typed -----------------------------------------------------------------------------------------------

    async def _entered(self, text: str, asked: object | None) -> bool:
        self._screen.print(*(f"{self._screen.prompt if first else '. '}{line}" for first, line in _lines(text)))
        self._interrupted = False
        try:
            if not text.strip():
                return True
            if self._history.add(text):
                self._screen.editor.remember(text)
            meant = read_typed(text)
            if meant is None:
                return True
            self._stopped = False  # what begins from here on was asked for
            if isinstance(meant, Command):
                return await self._command(meant)
            if asked is not None and meant.mode is None:
                await self._asks.answer(meant.text, asked)
            else:
                await self._say(meant)
        except FoliotError as error:
            hint = f" ({one_line(error.hint)})" if error.hint else ""
            self._screen.print(f"{paint('error:', fg='red')} {one_line(error.message)}{hint}")
        return True

    async def _say(self, meant: Say) -> None:
        # The turn that it begins may be heard of before its number is known here: `_follow` waits for that.
        async with self._speaking:
            said = await self._client.sessions.say(self.session.id, meant.text, mode=meant.mode or "steer", place=PLACE)
            self._view.shown.add(said.seq)
        if said.problem:
            self._screen.print(f"{paint('!', fg='yellow')} no turn can begin yet: {one_line(said.problem)}")
        elif said.outcome != "direct":
            self._screen.print(paint(f"({meant.mode or 'steer'}: {said.outcome})", dim=True))

    def _interrupt(self) -> bool:
        """Stops the turn at work; the second time, with nothing typed and no turn ended in between, leaves."""
        if self._interrupted:
            return False
        self._interrupted = True
        self._spawn(self._stop())
        return True

    async def _stop(self, *, drop: bool = False) -> None:
        sessions, id = self._client.sessions, self.session.id
        if (await sessions.get(id)).turn:
            self._screen.print(paint("stopping …", dim=True))
            self._stopped = not drop
        stopped = await sessions.stop(id, drop=drop)
        if drop:
            self._screen.print(paint("What waited was taken out.", dim=True))
        if not stopped:
            self._stopped = False
            self._screen.print(paint("Nothing is at work. Ctrl-C again leaves, and so does Ctrl-D.", dim=True))

    def _spawn(self, work: object) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _guarded(self, work: object) -> None:
        try:
            await work  # type: ignore[misc]
        except FoliotError as error:
            self._screen.print(f"{paint('error:', fg='red')} {one_line(error.message)}")

    # --- commands ------------------------------------------------------------------------------------------------

    async def _command(self, command: Command) -> bool:
        sessions, id = self._client.sessions, self.session.id
        match command.action:
            case "help":
                self._screen.print(*help_lines(self._screen.width), "")
            case "quit":
                return False
            case "stop":
                if command.rest.strip().lower() not in ("", "all"):
                    raise InvalidInput("/stop takes nothing, or all", hint="/stop all also takes out what waits")
                self._spawn(self._stop(drop=bool(command.rest)))
            case "branch":
                await self._select(command.rest)
            case "new":
                place = self.session.place
                await self._change_to(
                    await sessions.rotate(
                        place.agent,
                        namespace=place.namespace,
                        user=place.user,
                        channel=place.channel,
                        title=command.rest,
                        model=self.session.model,
                    )
                )
            case "title" | "model":
                await self._change(command)
            case "history":
                await self._show_history(command.rest)
            case "search":
                await self._search(command.rest)
            case "whoami":
                place = self.session.place
                where = f"session {id} with {one_line(place.agent)} in namespace {one_line(place.namespace)}"
                self._screen.print(f"{one_line(place.user or self._me)}; {where}")
            case "config":
                self._screen.print(
                    "Secrets are not typed into a chat: `foliot create secret --help`. Nothing was kept."
                )
            case "compact" | "regenerate":
                await self._again(command)
        return True

    async def _again(self, command: Command) -> None:
        sessions, id = self._client.sessions, self.session.id
        async with self._speaking:  # what the turn answers stands on the screen already
            if command.action == "compact":
                said = await sessions.compact(id)
            else:
                said = await sessions.regenerate(id)
                self._view.shown.update(range(1, said.seq + 1))
        if said.outcome == "queued":
            self._screen.print(paint("(before the next question of the turn at work)", dim=True))

    async def _select(self, rest: str) -> None:
        if not rest.isdecimal():
            raise InvalidInput("/branch takes the number of a turn", hint="/history shows them")
        self.session = await self._client.sessions.select_branch(self.session.id, int(rest))
        self._screen.print(paint(f"What is said next continues after turn {int(rest)}.", dim=True))

    async def _change_to(self, session: Session) -> None:
        await stop_tasks(self._following)
        await self._asks.forget()
        self.session = session
        await self._open()

    async def _change(self, command: Command) -> None:
        name = command.action
        if command.rest:
            value = "" if (name, command.rest) == ("model", "-") else command.rest
            title, model = (value, None) if name == "title" else (None, value)
            self.session = await self._client.sessions.change(self.session.id, title=title, model=model)
        else:
            self.session = await self._client.sessions.get(self.session.id)
        now = self.session.title if name == "title" else self.session.model or "that of the agent"
        self._screen.print(f"{name}: {one_line(now)}")

    async def _show_history(self, rest: str) -> None:
        if rest and not rest.isdecimal():
            raise InvalidInput("/history takes a number of turns")
        limit = max(1, int(rest or SHOWN_TURNS))
        for turn in await self._client.sessions.history(self.session.id, limit=min(limit, 1000)):
            self._print_turn(turn)

    def _print_turn(self, turn: TurnView) -> None:
        branch = "" if turn.current else ", another branch"
        self._screen.print(paint(f"turn {turn.number} ({turn.phase}{branch})", dim=True))
        for message in turn.messages:
            if message.role == "tool":
                continue  # its line stands at the call
            if message.text.strip():
                self._screen.print(paint(f"{message.role}:", bold=True))
                show = self._screen.print_answer if message.role == "assistant" else self._screen.print_theirs
                show(message.text)
            self._screen.print(*(paint(line, dim=True) for line in call_lines(message, turn.messages)))

    async def _search(self, text: str) -> None:
        if not text:
            raise InvalidInput("/search needs words to search for")
        space = self.session.place.namespace
        found = await self._client.sessions.search(text, namespace=space, limit=MOST_FOUND)
        for each in found:
            title = one_line(each.title, 40)
            self._screen.print(paint(f"{one_line(each.session)}  turn {each.turn}  {title}", dim=True))
            self._screen.print_theirs(each.excerpt)
        if not found:
            self._screen.print("Nothing was found.")


def _lines(text: str) -> list[tuple[bool, str]]:
    return [(number == 0, line) for number, line in enumerate(text.split("\n"))]
