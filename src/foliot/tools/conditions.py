"""Conditions on a call, written in CEL: `args.amount > 500.0`, `caller.user == "" && tool.startsWith("db_")`.

An expression is compiled and type-checked once. Evaluating it is bounded by the language itself: no loops but over
what is there, a budget of iterations, regular expressions in linear time. What cannot be evaluated (a missing argument,
text compared with a number) is not false: it raises, and whoever asked refuses.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from foliot.errors import InvalidInput
from foliot.tools.base import Invocation

if TYPE_CHECKING:
    from cel_expr_python import cel  # pyright: ignore[reportMissingTypeStubs] - its types come without the marker

# `namespace` is a reserved word of the language: it is `caller.namespace`.
VARIABLES: Final = ("args", "tool", "agent", "caller")
LONGEST: Final = 4096
_PLACE: Final = re.compile(r"<input>:\d+:(\d+): (.*)")
_MISSING: Final = re.compile(r"Key not found in map : \"?([^\"]*)\"?")


class ConditionFailed(Exception):
    """The expression is sound, and cannot be evaluated for this call. The text says why, for people."""


class Expression:
    """A compiled condition. Raises `InvalidInput` when the text is not a CEL expression that gives true or false."""

    __slots__ = ("_compiled", "_names", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > LONGEST:
            raise InvalidInput(f"a condition has at most {LONGEST} characters, this one has {len(text)}")
        try:
            self._compiled = _environment().compile(text)
        except RuntimeError as error:
            raise InvalidInput(f"not a CEL expression: {_explain(error)}", hint=_HINT) from None
        kind = self._compiled.return_type().name()
        if kind not in ("BOOL", "DYN"):
            raise InvalidInput(f"a condition gives true or false, and this one gives {kind}", hint=_HINT)
        # Converting values costs more than comparing them, so a call pays only for those that are mentioned.
        self._names = tuple(name for name in VARIABLES if re.search(rf"\b{name}\b", text))

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def holds(self, call: Invocation) -> bool:
        """Whether the condition is true of this call. Raises `ConditionFailed`."""
        values = {name: _value(name, call) for name in self._names}
        try:
            value = self._compiled.eval(data=values).value()
        except Exception as error:
            # A value the language cannot hold (half of a surrogate pair), or the budget of iterations is used up.
            raise ConditionFailed(str(error)) from None
        if value is True or value is False:
            return value
        text = str(value)
        if missing := _MISSING.search(text):
            name = missing[1]
            raise ConditionFailed(f"the call has no {name!r} (a condition can ask for it with has(args.{name}))")
        raise ConditionFailed(text)


def _value(name: str, call: Invocation) -> Any:
    match name:
        case "args":
            return call.arguments
        case "tool":
            return call.tool
        case "agent":
            return call.caller.agent
        case _:
            caller = call.caller
            return {
                "user": caller.user,
                "agent": caller.agent,
                "namespace": caller.namespace,
                "model": caller.model,
                "task": caller.task,
                "system": caller.system,
                "roles": list(caller.roles),
                "depth": caller.depth,
            }


@cache
def _environment() -> cel.Env:
    from cel_expr_python import cel  # pyright: ignore[reportMissingTypeStubs] - its types come without the marker

    record = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
    text = cel.Type.STRING
    return cel.NewEnv(
        variables={"args": record, "tool": text, "agent": text, "caller": record},
    )


def _explain(error: RuntimeError) -> str:
    """The first complaint, with its column; the library adds a drawing of the place and the status in its own words."""
    said = str(error).removeprefix("INVALID_ARGUMENT: ").removeprefix("ERROR: ")
    place = _PLACE.search(said)
    if place is None:
        return said.splitlines()[0]
    complaint = place[2].removesuffix(" (in container '')")
    return f"column {place[1]}: {complaint}"


_HINT: Final = f"such as args.amount > 500.0; there are {', '.join(VARIABLES)}, and caller.namespace"
