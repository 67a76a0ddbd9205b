"""JSON that is looked at before it is read: where its texts are, and how many values it has.

What a parser makes of foreign bytes takes long when there are many values in them, not when they are many bytes: a
parser gives no other thread a turn until it is through, and makes fifty bytes of memory out of two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, cast

# So many are read in about 50 ms. Images and documents are few values, however large they are.
MOST_VALUES: Final = 250_000
_TEXT: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# The pattern is faster where texts are short. It takes 0.2 s for an image of 25 MB, while all other threads wait.
_MATCHED: Final = 1024 * 1024
_BACKSLASH: Final = 0x5C


def texts_in(json: bytes) -> Iterator[tuple[int, int]]:
    """Yields the spans of the texts in a JSON document, without their quotes."""
    if len(json) < _MATCHED:
        for text in _TEXT.finditer(json):
            yield text.start() + 1, text.end() - 1
        return
    end = -1
    while (begin := json.find(b'"', end + 1) + 1) > 0:
        end = json.find(b'"', begin)
        seen = begin
        while end > begin and json[end - 1] == _BACKSLASH:
            run = json[seen:end]
            if (len(run) - len(run.rstrip(b"\\"))) % 2 == 0:
                break
            seen, end = end + 1, json.find(b'"', end + 1)
        if end < 0:
            return
        yield begin, end


def longest_text(json: bytes) -> tuple[int, int]:
    """Returns a place where the bytes of the longest text in a JSON document stand, without its quotes."""
    if len(json) >= _MATCHED:
        return max(texts_in(json), key=lambda place: place[1] - place[0], default=(0, 0))
    longest = max(_TEXT.findall(json), key=len, default=b"")
    begin = json.find(longest) + 1
    return (begin, begin + len(longest) - 2) if longest else (0, 0)


def has_more_values(json: bytes, most: int = MOST_VALUES) -> bool:
    """Whether a JSON document has more values than so, by the signs in front of them. Those in texts do not count."""
    if len(json) <= most or _signs(json, 0, len(json)) <= most:
        return False
    seen = at = 0
    for begin, end in texts_in(json):
        seen += _signs(json, at, begin)
        if seen > most:
            return True
        at = end
    return seen + _signs(json, at, len(json)) > most


def deeper_than(value: Any, levels: int) -> bool:
    """Whether a JSON value is nested more deeply than so."""
    layer: list[Any] = [value]
    for _ in range(levels + 1):
        below: list[Any] = []
        for each in layer:
            if type(each) is dict:
                below.extend(cast("dict[str, Any]", each).values())
            elif type(each) is list:
                below.extend(cast("list[Any]", each))
        if not below:
            return False
        layer = below
    return True


def _signs(json: bytes, begin: int, end: int) -> int:
    return json.count(b",", begin, end) + json.count(b"[", begin, end) + json.count(b"{", begin, end)
