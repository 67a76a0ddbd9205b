"""Finds lines that match a regular expression. A program of its own, because a bad expression can take for ever.

It reads frames from its standard input (four bytes of length, then the bytes): first the expression and its flags, then
one text after another. For each it answers with one line of JSON: for the expression `problem` (empty, or why it is
none) and `needed` (what every match holds), a list of `[line number, text]` for a text. It ends with its input. Whoever
started it kills it when it takes too long.

Uses nothing but the standard library, and nothing of Foliot.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

LONGEST_LINE = 300
MOST_MEMORY = 512 * 1024 * 1024


def frame(stream: BinaryIO) -> bytes | None:
    size = stream.read(4)
    return stream.read(int.from_bytes(size, "big")) if len(size) == 4 else None


def needed(pattern: str, ignore_case: bool) -> str:
    """The longest text that every match of a pattern holds, as far as that is plain to see; often empty.

    Most files do not hold it, and are passed over without being taken apart.
    """
    try:
        import importlib

        parsed: Any = importlib.import_module("re._parser").parse(pattern)
    except Exception:
        return ""
    if ignore_case or parsed.state.flags & (re.IGNORECASE | re.VERBOSE):
        return ""
    runs = [""]
    for kind, value in parsed:
        if str(kind) == "LITERAL":
            runs[-1] += chr(value)
        else:
            runs.append("")
    longest = max(runs, key=len)
    return "" if any("\ud800" <= letter <= "\udfff" or letter in "\n\r\ufffd" for letter in longest) else longest


def lines_of(text: str, needed: str) -> Iterator[tuple[int, str]]:
    """The lines that hold what is needed, with their numbers."""
    if not needed:
        yield from enumerate(text.removesuffix("\n").split("\n"), 1)
        return
    number, counted, at = 1, 0, text.find(needed)
    while at >= 0:
        start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        end = len(text) if end < 0 else end
        number += text.count("\n", counted, start)
        counted = start
        yield number, text[start:end]
        at = text.find(needed, end)


def matches(pattern: re.Pattern[str], needed: str, text: str, most: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for number, line in lines_of(text, needed):
        match = pattern.search(line)
        if match is None:
            continue
        start = max(0, match.start() - LONGEST_LINE // 2) if len(line) > LONGEST_LINE else 0
        found.append((number, line[start : start + LONGEST_LINE].rstrip("\r")))
        if len(found) >= most:
            break
    return found


def main() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    except (ImportError, ValueError, OSError):
        pass  # only a second fence; the first is the time limit
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer

    def answer(value: object) -> None:
        stdout.write(json.dumps(value).encode() + b"\n")
        stdout.flush()

    settings = json.loads(frame(stdin) or b"{}")
    try:
        pattern = re.compile(settings["pattern"], re.IGNORECASE if settings["ignore_case"] else 0)
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        answer({"problem": str(error) or type(error).__name__})
        return
    held = needed(settings["pattern"], settings["ignore_case"])
    answer({"problem": "", "needed": held})
    while (text := frame(stdin)) is not None:
        answer(matches(pattern, held, text.decode("utf-8", "replace"), settings["most"]))


if __name__ == "__main__":
    main()
