"""The inside of a sandbox around a program: runs it, and asks outside for the calls that it makes.

Given to Python as a text, so it needs nothing but the standard library. Frames are JSON behind their length, on what
were standard input and output. What the program prints is kept and sent at its end.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import json
import linecache
import os
import struct
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, Final

LENGTH: Final = struct.Struct(">I")
FILE: Final = "<program>"
# A program whose tasks are never all at rest asks for its calls after so many rounds of its loop.
MOST_ROUNDS: Final = 10_000


class ToolError(RuntimeError):
    """A call that failed. Its text is the code and the message."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code, _, self.message = text.partition(": ")


class PrintedTooMuch(BaseException):
    """More was printed than may be. Not an `Exception`, so that few programs catch it."""


class Printed(io.TextIOBase):
    """Keeps what is printed, up to a bound."""

    def __init__(self, most: int) -> None:
        self._parts: list[str] = []
        self._left = most
        self._most = most

    def write(self, text: str) -> int:
        self._parts.append(text[: self._left])
        self._left -= len(text)
        if self._left < 0:
            self._left = 0
            raise PrintedTooMuch(f"the program printed more than {self._most:,} characters")
        return len(text)

    def writable(self) -> bool:
        return True

    @property
    def text(self) -> str:
        return "".join(self._parts)


class Channel:
    """The way outside."""

    def __init__(self) -> None:
        self._read: BinaryIO = os.fdopen(os.dup(0), "rb")
        self._write: BinaryIO = os.fdopen(os.dup(1), "wb")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)

    def send(self, frame: Mapping[str, Any]) -> None:
        data = json.dumps(frame, ensure_ascii=False).encode("utf-8", "replace")
        self._write.write(LENGTH.pack(len(data)) + data)
        self._write.flush()

    def receive(self) -> Any:
        head = self._read.read(LENGTH.size)
        if len(head) < LENGTH.size:
            os._exit(0)  # nobody is there any more
        return json.loads(self._read.read(*LENGTH.unpack(head)))


class Calls:
    """The calls of a program. Those that wait when nothing else can go on are asked for together."""

    def __init__(self, channel: Channel, loop: Any, at_once: int, most_asked: int) -> None:
        self._channel = channel
        self._loop = loop
        self._at_once = at_once
        self._most_asked = most_asked
        self._made: dict[int, str] = {}
        self._waiting: dict[int, tuple[dict[str, Any], int, asyncio.Future[Any]]] = {}
        self._number = 0
        self._rounds = -1

    def function(self, name: str, taken: Sequence[str]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            arguments, size = _arguments(name, taken, args, kwargs)
            if size > self._most_asked:
                raise ValueError(
                    f"{name}(): its arguments have {size:,} bytes as JSON; {self._most_asked:,} are the most"
                )
            number, self._number = self._number, self._number + 1
            self._made[number] = name
            return self._answered(number, name, arguments, size)

        call.__name__ = call.__qualname__ = name
        return call

    async def _answered(self, number: int, name: str, arguments: dict[str, Any], size: int) -> Any:
        future = self._loop.create_future()
        asked = {"number": number, "function": name, "arguments": arguments}
        self._waiting[number] = asked, size, future
        if self._rounds < 0:
            self._rounds = 0
            self._loop.call_soon(self._ask)
        return await future

    def _ask(self) -> None:
        self._rounds += 1
        if self._loop._ready and self._rounds < MOST_ROUNDS:
            self._loop.call_soon(self._ask)
            return
        numbers = self._together()
        self._channel.send({"calls": [self._waiting[number][0] for number in numbers]})
        answers = self._channel.receive()["answers"]
        for number in numbers:
            _, _, future = self._waiting.pop(number)
            del self._made[number]
            answer = answers[str(number)]
            if future.done():
                continue  # whoever made the call has given it up
            if answer.get("error"):
                future.set_exception(ToolError(answer["error"]))
            else:
                future.set_result(answer.get("value"))
        self._rounds = 0 if self._waiting else -1
        if self._waiting:
            self._loop.call_soon(self._ask)

    def _together(self) -> list[int]:
        """The calls to ask for now: as many of the oldest as one frame may hold."""
        chosen: list[int] = []
        size = 0
        for number in sorted(self._waiting)[: self._at_once]:
            size += self._waiting[number][1]
            if chosen and size > self._most_asked:
                break
            chosen.append(number)
        return chosen

    @property
    def unawaited(self) -> list[str]:
        return list(self._made.values())


def _arguments(
    name: str, taken: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], int]:
    """The arguments by name, and how many bytes of JSON they are."""
    if len(args) > len(taken):
        raise TypeError(f"{name}(): it takes {len(taken)} positional arguments, and {len(args)} were given")
    found = dict(zip(taken, args, strict=False))
    for key, value in kwargs.items():
        if key in found:
            raise TypeError(f"{name}(): it got several values for the argument {key!r}")
        found[key] = value
    size = 0
    for key, value in found.items():
        try:
            data = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
            found[key] = json.loads(data)
            size += len(key) + len(data)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"{name}(): the argument {key!r} is not JSON: {error}") from None
    return found, size


def main() -> None:
    """Run one program: sends `calls` until it sends `ended` or `failed`."""
    channel = Channel()
    channel.send({"ready": True})
    given = channel.receive()
    source, printed = given["source"], Printed(given["most_printed"])
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    calls = Calls(channel, loop, given["at_once"], given["most_asked"])
    around: dict[str, Any] = {"__name__": "__main__", "ToolError": ToolError, "asyncio": asyncio, "json": json}
    around |= {name: calls.function(name, taken) for name, taken in given["functions"].items()}
    sys.stdout = printed
    try:
        value = loop.run_until_complete(_run(source, around))
    except BaseException as error:
        channel.send({"failed": _told(error), "printed": printed.text})
        os._exit(0)
    sys.stdout = sys.__stdout__
    frame: dict[str, Any] = {"ended": True, "printed": printed.text, "unawaited": calls.unawaited}
    if value is not None:
        frame |= _shown(value, given["most_printed"], given["most_value"])
    channel.send(frame)
    os._exit(0)  # threads that it left do not keep it here


def _shown(value: Any, most_printed: int, most_value: int) -> dict[str, str]:
    """The last value as JSON, or as Python shows it; a failure when it is too large."""
    try:
        data = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        try:
            return {"shown": f"{repr(value)[:most_printed]} ({error})"}
        except Exception as unshown:
            return {"failed": f"the value of the last expression cannot be shown: {_told(unshown)}"}
    if len(data) > most_value:
        most = f"{len(data):,} bytes as JSON; {most_value:,} are the most"
        return {"failed": f"the value of the last expression has {most}: end with the part of it that is needed"}
    return {"value": data.decode()}


async def _run(source: str, around: dict[str, Any]) -> Any:
    """Run the program, and return the value of its last expression."""
    tree = ast.parse(source, FILE)
    end, last, value = tree.body[-1] if tree.body else None, None, None
    if isinstance(end, ast.Expr):
        tree.body.pop()
        last = ast.Expression(end.value)
    for part, mode in ((tree, "exec"), (last, "eval")):
        if part is not None:
            found = eval(compile(part, FILE, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), around)
            value = await found if inspect.iscoroutine(found) else found
    return value


def _told(error: BaseException) -> str:
    """The error as a program of Python would end with it, without the lines that are ours."""
    if isinstance(error, PrintedTooMuch):
        return str(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE]
    places = [f"  Line {frame.lineno}, in {frame.name}\n    {frame.line}\n" for frame in frames]
    return "".join((*(["Traceback (most recent call last):\n"] if frames else []), *places, *_what(error)))


def _what(error: BaseException) -> list[str]:
    lines = traceback.format_exception_only(type(error), error)
    return [line.replace(f'  File "{FILE}", line', "  Line").replace("__main__.", "") for line in lines]
