"""The asks of a turn to the person at the terminal: approvals, questions, and calls of unknown outcome.

One is asked at a time, with all that is decided about on the screen. A decision is about the arguments that were shown:
their digest goes with it, and what could not be shown is not approved. Only a plain `y` or `yes` approves. What was
typed before a question stood there does not answer it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from foliot.cli.chat.screen import Screen
from foliot.cli.show.approvals import decided_about
from foliot.cli.terminal import paint
from foliot.common.text import one_line
from foliot.engine.approval.documents import current_digest
from foliot.engine.approval.questions import OpenQuestion, check_answer
from foliot.errors import FoliotError, InvalidInput
from foliot.runtime.groups.groups import Groups
from foliot.runtime.groups.work import Settled
from foliot.sessions.chat_events import ChatAsk, WaitingEvent

YES: Final = frozenset({"y", "yes"})
NO: Final = frozenset({"n", "no"})
SETTLED: Final[dict[str, Settled]] = {"happened": "happened", "run": "run", "fail": "fail"}
PLAIN: Final = "> "


class Asks:
    """The open asks of one session."""

    def __init__(self, work: Groups, screen: Screen, *, namespace: str, by: str) -> None:
        self._work = work
        self._screen = screen
        self._namespace = namespace
        self._by = by
        self._open: deque[tuple[str, ChatAsk]] = deque()
        # Of the arguments that stand on the screen; None when they do not.
        self._digest: str | None = None

    async def take(self, event: WaitingEvent) -> None:
        """Takes what a run asks in the place of what it asked before, and shows the first of all that is asked.

        What stands on the screen stays there when it is still the first: what is typed to it answers it.
        """
        still = [each for each in self._open if each[0] != event.run or each[1] in event.asks]
        await self._change([*still, *((event.run, ask) for ask in event.asks if (event.run, ask) not in still)])

    async def forget(self, run: str = "") -> None:
        """Drops what a run asks: it goes on. Without a run all of it: the turn is over."""
        await self._change([each for each in self._open if run and each[0] != run])

    async def _change(self, asked: list[tuple[str, ChatAsk]]) -> None:
        shown = self._open[0] if self._open else None
        self._open = deque(asked)
        if (asked[0] if asked else None) is not shown:
            await self._show()

    async def answer(self, text: str, asked: object) -> None:
        """Answers the first ask with what was typed; what does not answer it is refused, and nothing is decided.

        `asked` is what stood on the screen when it was entered: it answers nothing else.
        """
        if not self._open or asked is not self._screen.asked:
            self._screen.print("That was typed to an earlier question: it answers nothing, and was not sent.")
            return
        run, ask = self._open[0]
        try:
            await self._decide(run, ask, text.strip())
        except InvalidInput as error:
            self._screen.print(f"{one_line(error.message)}{f' ({one_line(error.hint)})' if error.hint else ''}")
            return
        except FoliotError as error:
            self._screen.print(f"{paint('!', fg='yellow')} {one_line(error.message)}")
        if self._open and self._open[0][1] is ask:  # else what stands there now was shown meanwhile
            self._open.popleft()
            await self._show()

    async def _decide(self, run: str, ask: ChatAsk, text: str) -> None:
        work, word = self._work, text.lower()
        match ask.kind:
            case "approval" if word in YES:
                if self._digest is None:
                    await self._show()
                    raise InvalidInput("Nothing was approved: what is asked did not stand there.")
                await work.approvals.approve(ask.id, namespace=self._namespace, by=self._by, digest=self._digest)
                self._screen.print(paint(f"approved: {one_line(ask.tool, 60)}", dim=True))
            case "approval" if word in NO:
                await work.approvals.deny(ask.id, namespace=self._namespace, by=self._by, digest=self._digest or "")
                self._screen.print(paint(f"denied: {one_line(ask.tool, 60)}", dim=True))
            case "approval":
                raise InvalidInput("Answer y or n.", hint="/steer TEXT says something instead, /stop ends the turn")
            case "question":
                check_answer(OpenQuestion(run, ask.call_id, "", "", ask.tool, ask.question, ask.choices), text)
                await work.questions.answer(run, text, call=ask.call_id, by=self._by)
            case "unknown_effect":
                if word not in SETTLED:
                    raise InvalidInput("Answer happened, run or fail.")
                await work.runs.settle(run, ask.call_id, SETTLED[word], attempt=ask.attempt or None, by=self._by)

    async def _show(self) -> None:
        if not self._open:
            self._screen.ask(PLAIN, None)
            return
        _, ask = self._open[0]
        tool = one_line(ask.tool, 60)
        # What is typed meanwhile is typed to nothing: the question is not there yet.
        self._screen.ask(PLAIN, None)
        match ask.kind:
            case "approval":
                digest = await self._show_approval(ask)
                if not self._open or self._open[0][1] is not ask:
                    return  # taken back while it was fetched: the digest is that of what stands there now
                self._digest, seen = digest, digest is not None
                prompt = f"Allow {tool}? [y/n] " if seen else f"{tool} cannot be shown. [y: try again/n: deny] "
            case "question":
                self._screen.print(paint(f"{tool} asks:", bold=True))
                self._screen.print_theirs(ask.question)
                self._screen.print(*(f"  {number}  {one_line(each)}" for number, each in enumerate(ask.choices, 1)))
                prompt = "Answer: "
            case "unknown_effect":
                self._screen.print(paint(f"{tool} may have acted: {one_line(ask.reason, 200)}", fg="yellow"))
                prompt = "What became of it? [happened/run/fail] "
        self._screen.ask(prompt, object())

    async def _show_approval(self, ask: ChatAsk) -> str | None:
        """Shows what is to be approved; returns the digest of the arguments, None when they cannot be shown."""
        try:
            document = await self._work.approvals.get(ask.id, namespace=self._namespace)
        except FoliotError as error:
            self._screen.print(f"{paint('!', fg='yellow')} {one_line(error.message)}")
            return None
        why = one_line(ask.reason, 200)
        lines = [
            paint(f"needs an approval{f': {why}' if why else ''}", fg="yellow"),
            *decided_about(document).split("\n"),
        ]
        self._screen.print(*lines)
        return current_digest(document)
