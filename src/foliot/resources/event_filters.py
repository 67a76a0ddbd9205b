"""Which deliveries of a webhook are wanted, written in CEL: `event == "push" && body.ref == "refs/heads/main"`.

`body` is the JSON of the delivery (null when it is none), `text` the body as it came, `headers` the headers in lower
case, `event` what the sender calls this kind of event, `event_id` its id. CEL has no loops but over what is there and
its regular expressions take linear time; what it would have to look at is bounded besides, so a filter cannot be made
to hang by what is sent.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from foliot.common.expression_cost import ExpressionCost

if TYPE_CHECKING:
    from cel_expr_python import cel  # pyright: ignore[reportMissingTypeStubs] - its types come without the marker

VARIABLES: Final = ("body", "text", "headers", "event", "event_id")
LONGEST: Final = 4096
_PLACE: Final = re.compile(r"<input>:\d+:(\d+): (.*)")


class FilterFailed(Exception):
    """The filter is sound, and cannot be evaluated for this delivery. The text says why, for people."""


class EventFilter:
    """A compiled filter. Raises `ValueError` when the text is not a CEL expression that gives true or false."""

    __slots__ = ("_compiled", "_cost", "_names")

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise ValueError(f"longer than {LONGEST} characters")
        self._cost = ExpressionCost(text)
        try:
            self._compiled = _environment().compile(text)
        except RuntimeError as error:
            raise ValueError(f"not a CEL expression: {_complaint(error)}") from None
        kind = self._compiled.return_type().name()
        if kind not in ("BOOL", "DYN"):
            raise ValueError(f"a filter gives true or false, and this one gives {kind}")
        self._names = tuple(name for name in VARIABLES if re.search(rf"\b{name}\b", text))

    def wants(self, values: dict[str, Any]) -> bool:
        """Whether the delivery is wanted; `values` has an entry for each of VARIABLES. Raises `FilterFailed`."""
        judged = {name: values[name] for name in self._names}
        if problem := self._cost.problem_with(judged.values()):
            raise FilterFailed(problem)
        try:
            value = self._compiled.eval(data=judged).value()
        except Exception as error:  # a value that the language cannot hold, or its budget is used up
            raise FilterFailed(str(error)[:200]) from None
        if value is True or value is False:
            return value
        raise FilterFailed(str(value)[:200])


@lru_cache(maxsize=256)
def event_filter(text: str) -> EventFilter:
    """The compiled filter, kept: every delivery needs it."""
    return EventFilter(text)


@cache
def _environment() -> cel.Env:
    from cel_expr_python import cel  # pyright: ignore[reportMissingTypeStubs] - its types come without the marker

    text = cel.Type.STRING
    return cel.NewEnv(
        variables={
            "body": cel.Type.DYN,
            "text": text,
            "headers": cel.Type.Map(text, text),
            "event": text,
            "event_id": text,
        },
    )


def _complaint(error: RuntimeError) -> str:
    said = str(error).removeprefix("INVALID_ARGUMENT: ").removeprefix("ERROR: ")
    place = _PLACE.search(said)
    if place is None:
        return said.splitlines()[0]
    complaint = place[2].removesuffix(" (in container '')")
    return f"column {place[1]}: {complaint}"
