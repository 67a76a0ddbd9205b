"""The events of a session as lines on the screen of a chat.

What a model, a tool or another person wrote is one line of ours (`one_line`) or stands behind the bar of the screen, so
none of it steers the terminal or passes for a prompt. Text comes in pieces and then whole; it is shown once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foliot.cli.chat.pictures import Pictures
from foliot.cli.chat.screen import Screen
from foliot.cli.terminal import paint
from foliot.common.durations import duration
from foliot.common.text import counted, one_line, safe_json
from foliot.engine.explain.amounts import argument_change
from foliot.errors import FoliotError
from foliot.kernel.arguments import parse_object
from foliot.kernel.messages import Message, ToolCall, ToolResult
from foliot.sessions.chat_events import (
    ChatEvent,
    CompactionEvent,
    EndEvent,
    ErrorEvent,
    FileEvent,
    ImageEvent,
    InputEvent,
    ReasoningEvent,
    RestartEvent,
    TextEvent,
    ToolEvent,
    WaitingEvent,
)
from foliot.tools.display import input_summary, result_summary

LONGEST: Final = 100
EMPTY: Final = "(empty response)"
ENDS: Final = {"stopped": "stopped", "interrupted": "interrupted", "dropped": "not answered", "waiting": "waits"}


def call_lines(message: Message, messages: Sequence[Message]) -> list[str]:
    """Returns a line for each tool call of a message, with what came of it, from the messages of its turn."""
    results = {part.call_id: part for each in messages for part in each.parts if isinstance(part, ToolResult)}
    lines: list[str] = []
    for call in (part for part in message.parts if isinstance(part, ToolCall)):
        arguments = parse_object(call.arguments)[0] or {}
        line = f"  {one_line(call.name, 40)} {one_line(input_summary(call.name, arguments), LONGEST)}".rstrip()
        if (result := results.get(call.id)) is not None:
            line += f" → {one_line(result_summary(result.text, failed=result.error is not None), LONGEST)}"
        lines.append(line)
    return lines


class ChatView:
    """`shown` are the arrival numbers of what was typed here: it stands on the screen already."""

    def __init__(self, screen: Screen, pictures: Pictures) -> None:
        self._screen = screen
        self._pictures = pictures
        self.shown: set[int] = set()
        self._step: tuple[str, int] = ("", 0)
        self._written = ""
        self._thought = ""
        self._answered = False

    async def show(self, event: ChatEvent) -> None:
        """Shows what happened."""
        match event:
            case TextEvent():
                self._text(event)
            case ReasoningEvent(text=text):
                self._thought = (self._thought + text)[-4 * LONGEST :] if event.piece else ""
                self._working(f"thinking: {one_line(self._thought, LONGEST)}" if self._thought else "working")
            case RestartEvent(reason=reason):
                self._written = ""
                self._note(f"the answer begins anew: {one_line(reason, LONGEST)}")
            case ToolEvent():
                self._tool(event)
            case InputEvent():
                self._input(event)
            case ImageEvent() | FileEvent():
                await self._media(event)
            case CompactionEvent(replaced=0, problem=problem):
                self._note(f"nothing was summarized{f': {one_line(problem, LONGEST)}' if problem else ''}")
            case CompactionEvent(replaced=replaced):
                self._note(f"{counted(replaced, 'message')} are summarized from now on; /history shows all of them")
            case ErrorEvent(message=message, retries=retries):
                self._error(message, retries)
            case WaitingEvent(reason=""):  # a run below goes on
                self._working("working")
            case WaitingEvent(message=message, reason=reason):
                self._screen.settle()
                self._working(f"waits: {one_line(message or reason, LONGEST)}")
            case EndEvent():
                self._end(event)

    def _text(self, event: TextEvent) -> None:
        step, text = (event.run, event.step), event.text
        if step != self._step:
            self._step, self._written = step, ""
        self._answered = self._answered or bool(text.strip())
        if event.piece:
            self._written += text
            self._screen.status = ""
            self._screen.write(text)
            return
        if text.startswith(self._written):
            self._screen.write(text[len(self._written) :])
        else:
            self._note("the answer as it was recorded:")
            self._screen.write(text)
        self._written = ""
        self._screen.settle()
        self._working("working")

    def _tool(self, event: ToolEvent) -> None:
        what = f"{one_line(event.tool, 40)} {one_line(event.input, LONGEST)}".rstrip()
        if event.output:
            self._working(f"{one_line(event.tool, 40)}: {one_line(event.output[-4 * LONGEST :], LONGEST)}")
        elif event.status == "running":
            self._working(f"calls {what}")
        else:
            took = f"  {duration(event.seconds)}" if event.seconds is not None else ""
            people = one_line(", ".join(filter(None, event.approved_by)), LONGEST)
            by = f" (approved by {people})" if people else ""
            mark, color = ("✓", "green") if event.status == "done" else ("✗", "red")
            detail = one_line(event.detail, LONGEST)
            self._screen.print(f"{paint(mark, fg=color)} {what}{paint(f'{by} → {detail}{took}', dim=True)}")
            if event.changed_by:
                now, before = (safe_json(each, indent=None) for each in (event.arguments, event.written))
                self._note(argument_change(event.tool, event.changed_by, now, before, LONGEST))
            self._working("working")

    def _input(self, event: InputEvent) -> None:
        self._answered = False
        by = f" ({one_line(event.by, 40)})" if event.by else ""
        if event.id:
            self._note(f"heard{by}: {one_line(event.text, LONGEST)}")
        elif not self.shown.issuperset(event.numbers) or not event.numbers:
            self._screen.print(paint(f"said before{by}:", dim=True))
            self._screen.print_theirs(event.text or ", ".join(event.files))
        self._working("working")

    async def _media(self, event: ImageEvent | FileEvent) -> None:
        kind = "picture" if isinstance(event, ImageEvent) else "file"
        try:
            link = await self._pictures.link_of(event)
        except (FoliotError, OSError) as error:
            self._note(f"a {kind} that cannot be kept: {one_line(str(error), LONGEST)}")
            return
        name = f" {one_line(event.name, 60)}" if event.name else ""
        self._note(f"{kind}{name}: {one_line(link)}")

    def _error(self, message: str, retries: bool) -> None:
        if retries:
            self._note(f"{one_line(message, 2 * LONGEST)}; it is tried again")

    def _end(self, event: EndEvent) -> None:
        self._screen.status = ""
        message = one_line(event.message, 2 * LONGEST)
        if event.status == "answered":
            if not self._answered and event.text.strip():
                self._screen.print_answer(event.text)
            self._screen.print(*([] if self._answered or event.text.strip() else [paint(EMPTY, dim=True)]), "")
        elif event.status == "failed":
            self._screen.print(f"{paint('✗', fg='red')} Agent error: {message}", "")
        else:
            word = ENDS[event.status]
            why = f": {message}" if message and not message.startswith(word) else ""
            self._screen.print(paint(f"■ {word}{why}", fg="yellow"), "")
        self._answered = False

    def _note(self, text: str) -> None:
        self._screen.print(f"{paint('!', fg='yellow')} {text}")

    def _working(self, text: str) -> None:
        self._screen.status = f"({text})"
        self._screen.draw()
