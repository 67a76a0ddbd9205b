"""Places in JSON: `$.pull_request.title`, `$.commits[0].id`, `$['odd name']`, `$.labels[*].name`.

The small part of JSONPath that names one place, or with `[*]` all elements of a list. Anything else is refused when the
path is read, so that looking something up cannot fail and costs no more than the path is long.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

Step: TypeAlias = str | int | None
"""A member, an element (negative from the end), or None for all elements."""

LONGEST: Final = 200
_STEP: Final = re.compile(
    r"""\.([A-Za-z_][\w-]*) | \['([^']*)'\] | \["([^"]*)"\] | \[(-?\d{1,6})\] | \[(\*)\]""", re.VERBOSE | re.ASCII
)


@lru_cache(maxsize=1024)
def parse_path(text: str) -> tuple[Step, ...]:
    """The steps of a path. Raises `ValueError` with a sentence for people."""
    if not text.startswith("$"):
        raise ValueError("a path into JSON begins with $")
    if len(text) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    steps: list[Step] = []
    place = 1
    while place < len(text):
        found = _STEP.match(text, place)
        if found is None:
            raise ValueError(f"cannot be read from {text[place : place + 20]!r} on")
        name, single, double, index, star = found.groups()
        if star:
            steps.append(None)
        elif index is not None:
            steps.append(int(index))
        else:
            steps.append(next(part for part in (name, single, double) if part is not None))
        place = found.end()
    return tuple(steps)


def look_up(value: Any, path: str) -> Any:
    """What is at the path, None when nothing is; behind `[*]` a list of what was found."""
    return _follow(value, parse_path(path))


def _follow(value: Any, steps: tuple[Step, ...]) -> Any:
    for position, step in enumerate(steps):
        match value, step:
            case list(), None:
                found = (_follow(item, steps[position + 1 :]) for item in cast("list[Any]", value))
                return [item for item in found if item is not None]
            case list(), int():
                items = cast("list[Any]", value)
                value = items[step] if -len(items) <= step < len(items) else None
            case dict(), str():
                value = cast("dict[str, Any]", value).get(step)
            case _:
                return None
    return value
