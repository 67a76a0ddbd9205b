"""Finds lines that match a regular expression. A program of its own, because a bad expression can take for ever.

It reads frames from its standard input (four bytes of length, then the bytes): first the expression and its flags, then
one text after another. For each it answers with one line of JSON: `null` or an error for the expression, a list of
`[line number, text]` for a text. It ends with its input. Whoever started it kills it when it takes too long.

Uses nothing but the standard library, and nothing of Foliot.
"""

from __future__ import annotations

import json
import re
import sys
from typing import BinaryIO

LONGEST_LINE = 300
MOST_MEMORY = 512 * 1024 * 1024


def frame(stream: BinaryIO) -> bytes | None:
    size = stream.read(4)
    return stream.read(int.from_bytes(size, "big")) if len(size) == 4 else None


def matches(pattern: re.Pattern[str], text: str, most: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
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
        answer(str(error) or type(error).__name__)
        return
    answer(None)
    while (text := frame(stdin)) is not None:
        answer(matches(pattern, text.decode("utf-8", "replace"), settings["most"]))


if __name__ == "__main__":
    main()
