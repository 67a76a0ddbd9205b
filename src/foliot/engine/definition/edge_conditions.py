"""Conditions on the edges of a system, written in CEL: `value.score > 3.0`, `output.contains("urgent")`.

output   what the agent said, as text            route   the labels it gave, as texts
value    its structured output, or null          input   what the task was given, as texts
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from foliot.tools.governance.cel import Compiled, Kind

VARIABLES: Final[tuple[tuple[str, Kind], ...]] = (
    ("output", "text"),
    ("value", "anything"),
    ("route", "texts"),
    ("input", "texts"),
)
_HINT: Final = "such as value.score > 3.0; there are output, value, route and input"


class EdgeCondition:
    """A compiled condition. Raises `InvalidInput` when the text is not a CEL expression that gives true or false."""

    __slots__ = ("_compiled", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._compiled = Compiled(text, VARIABLES, _HINT)

    def holds(self, output: str, value: Any, route: Mapping[str, str], given: Mapping[str, str]) -> bool:
        """Whether it is true of what an agent gave. Raises `ConditionFailed`."""
        values = {"output": output, "value": value, "route": dict(route), "input": dict(given)}
        return self._compiled.holds({name: values[name] for name in self._compiled.names}, _missing)


def _missing(name: str) -> str:
    return f"there is no {name!r} (a condition can ask for it with has(value.{name}))"


@lru_cache(maxsize=512)
def edge_condition(text: str) -> EdgeCondition:
    """Compiles an edge condition once for all tasks of this process."""
    return EdgeCondition(text)
