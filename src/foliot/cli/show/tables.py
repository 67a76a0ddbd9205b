"""Tables of resources: what `get` prints. Plain text that also `awk` can read; colours are added only around words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

from foliot.cli.terminal import paint
from foliot.common.durations import age
from foliot.common.text import one_line
from foliot.resources.kinds import Kind
from foliot.store.base import Document

CELL: Final = 60
"""A longer value is cut in a table; `-o wide` and the other formats show all of it."""

SHORTEST: Final = 12
"""A cell that would have to be shorter than this to fit a terminal is left out."""

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_PAINT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("Ready", "Succeeded", "Approved", "Running", "created", "succeeded", "running", "found"), "green"),
    **dict.fromkeys(("Pending", "Connecting", "Suspended", "WaitingApproval", "Waiting", "updated"), "yellow"),
    **dict.fromkeys(("pending", "waiting", "interrupted"), "yellow"),
    **dict.fromkeys(("Error", "Failed", "DeadLetter", "Denied", "Expired", "NotReady", "deleted"), "red"),
    **dict.fromkeys(("failed", "cancelled", "missing"), "red"),
}


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, widths: Sequence[int] | None = None) -> str:
    """Aligned columns, three spaces apart. With `widths` (see `widths_of`) no heading is printed: rows of a watch."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    lines = [*([] if widths else [headings]), *rows]
    columns = widths or widths_of(headings, rows)
    return "\n".join(_line(cells, columns, heading=not widths and i == 0) for i, cells in enumerate(lines))


def widths_of(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    cells = [[one_line(cell) for cell in row] for row in rows]
    return [max(map(_width, column)) for column in zip(headings, *cells, strict=True)]


def fitted(
    headings: Sequence[str], rows: Sequence[Sequence[str]], columns: int
) -> tuple[list[str], list[Sequence[str]]]:
    """Headings and rows for a terminal of so many columns: the last cells are cut to what the others leave, or left
    out where nothing could be read of them."""
    left = columns - sum(width + 3 for width in widths_of(headings, rows)[:-1])
    if left < SHORTEST:
        return list(headings[:-1]), [row[:-1] for row in rows]
    return list(headings), [[*row[:-1], _cut(row[-1], left)] for row in rows]


def _cut(text: str, columns: int) -> str:
    if _width(text) <= columns:
        return text
    while _width(text) >= columns:
        text = text[:-1]
    return f"{text.rstrip()}…"


def _line(cells: Sequence[str], widths: Sequence[int], *, heading: bool) -> str:
    last = len(cells) - 1
    padded = [
        (paint(cell, bold=True) if heading else _painted(cell)) + " " * (0 if i == last else width - _width(cell))
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "   ".join(padded).rstrip()


def _painted(cell: str) -> str:
    color = _PAINT.get(cell)
    return paint(cell, fg=color) if color else cell


def _width(cell: str) -> int:
    """How many columns of a terminal the text takes."""
    if cell.isascii():
        return len(cell)
    import unicodedata  # a start that needs it not should not pay for it

    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in cell)
    return len(cell) + wide - sum(unicodedata.combining(char) > 0 for char in cell)


def at(document: Document, path: str) -> Any:
    """The value at a dotted path, or None."""
    value: Any = document
    for step in path.split("."):
        if not isinstance(value, dict):
            return None
        value = cast("dict[str, Any]", value).get(step)
    return value


def cell(value: Any, *, now: datetime, cut: int | None = CELL, pairs: bool = False) -> str:
    """A value as the text of a table: lists by their items, mappings by their keys (`pairs`: key=value), times by how
    long ago they were.
    """
    match value:
        case _ if value in (None, "", [], {}):
            return "-"
        case bool():
            return "true" if value else "false"
        case str() if _TIME.match(value):
            return since(value, now=now)
        case list():
            text = ",".join(_item(item) for item in cast("list[Any]", value))
        case dict():
            items = cast("dict[str, Any]", value).items()
            text = ",".join(f"{key}={item}" if pairs else str(key) for key, item in items)
        case _:
            text = str(value)
    text = one_line(text) or "-"
    return text[: cut - 1] + "…" if cut and len(text) > cut else text


def _item(item: Any) -> str:
    if isinstance(item, dict):
        named = cast("dict[str, Any]", item)
        return str(named.get("name") or named.get("to") or next(iter(named.values()), ""))
    return str(item)


def since(time: object, *, now: datetime) -> str:
    """How long ago, in the largest unit that says enough: 42s, 17m, 5h, 3d; `in 5m` for what is to come."""
    if not isinstance(time, str):
        return "-"
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        return one_line(time) or "-"
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    seconds = int((now - moment).total_seconds())
    return age(seconds) if seconds >= 0 else f"in {age(-seconds)}"


def headings_of(kind: Kind, *, wide: bool, namespaced: bool) -> list[str]:
    columns = [heading for heading, _ in (*kind.columns, *(kind.wide if wide else ()))]
    return [*(["NAMESPACE"] if namespaced else []), *columns, "AGE"]


def row_of(
    kind: Kind, document: Document, *, wide: bool, namespaced: bool, now: datetime, prefix: str = ""
) -> list[str]:
    """The cells under `headings_of`; `prefix` goes before the name, where kinds are mixed."""
    cut = None if wide else CELL
    values: list[str] = []
    for _, path in (*kind.columns, *(kind.wide if wide else ())):
        value = at(document, path)
        # AGE says how old it is; the exact time is what `wide` adds.
        exact = path == "metadata.createdAt" and isinstance(value, str)
        text = one_line(value) if exact else cell(value, now=now, cut=cut, pairs=path == "metadata.labels")
        values.append(prefix + text if path == "metadata.name" else text)
    metadata: Mapping[str, Any] = document.get("metadata", {})
    age = since(metadata.get("createdAt"), now=now)
    return [*([one_line(str(metadata.get("namespace", "-")))] if namespaced else []), *values, age]
