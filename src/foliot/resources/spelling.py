"""The spellings of one field name: `token_url`, `tokenUrl`, `tokenURL`."""

from __future__ import annotations

import re
from functools import cache

_ACRONYMS = frozenset({"url", "id", "usd"})
_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@cache
def snake(name: str) -> str:
    """`tokenURL` -> `token_url`; a name in snake_case stays as it is."""
    return _BOUNDARY.sub("_", name).lower()


@cache
def camel(name: str) -> str:
    """`token_url` -> `tokenUrl`."""
    first, *rest = snake(name).split("_")
    return first + "".join(part.capitalize() for part in rest)


@cache
def spellings(name: str) -> tuple[str, ...]:
    """Every accepted spelling of a field, snake_case first, none twice."""
    first, *rest = snake(name).split("_")
    loud = first + "".join(part.upper() if part in _ACRONYMS else part.capitalize() for part in rest)
    return tuple(dict.fromkeys((snake(name), camel(name), loud)))
