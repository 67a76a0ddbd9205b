"""Expressions in CEL: compiled and type-checked once, evaluated within bounds.

The language itself bounds an evaluation: no loops but over what is there, a budget of iterations, regular expressions
in linear time. What cannot be evaluated (a missing field, text compared with a number) is not false: it raises, and
whoever asked decides what that means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from foliot.common.expression_cost import ExpressionCost
from foliot.errors import InvalidInput
from foliot.kernel.arguments import problem_in
from foliot.tools.base import Caller, Invocation

if TYPE_CHECKING:
    from cel_expr_python import cel  # pyright: ignore[reportMissingTypeStubs] - its types come without the marker

LONGEST: Final = 4096
Kind: TypeAlias = Literal["text", "texts", "record", "anything"]
_PLACE: Final = re.compile(r"<input>:\d+:(\d+): (.*)")
_UNEXPECTED: Final = re.compile(r"Syntax error: .*?(?:input|at) '([^']*)'")
_MISSING: Final = re.compile(r"Key not found in map : \"?([^\"]*)\"?")


class ConditionFailed(Exception):
    """The expression is sound, and cannot be evaluated for these values. The text says why, for people."""


class Compiled:
    """A condition over named variables. Raises `InvalidInput` for text that does not give true or false in CEL.

    `variables` are names with the kind of their values; `hint` is what is said to people who got it wrong.
    """

    __slots__ = ("_cost", "_expression", "names", "text")

    def __init__(self, text: str, variables: tuple[tuple[str, Kind], ...], hint: str) -> None:
        self.text = text
        self._cost = ExpressionCost(text)
        if len(text) > LONGEST:
            raise InvalidInput(f"a condition has at most {LONGEST} characters, this one has {len(text)}")
        try:
            self._expression = _environment(variables).compile(text)
        except RuntimeError as error:
            raise InvalidInput(f"not a CEL expression: {_explain(error)}", hint=hint) from None
        kind = self._expression.return_type().name()
        if kind not in ("BOOL", "DYN"):
            raise InvalidInput(f"a condition gives true or false, and this one gives {kind}", hint=hint)
        # Converting values costs more than comparing them, so a question pays only for those that are mentioned.
        self.names = tuple(name for name, _ in variables if re.search(rf"\b{name}\b", text))

    def holds(self, values: Mapping[str, Any], missing: Callable[[str], str]) -> bool:
        """Whether it is true of `values` (those of `names`). Raises `ConditionFailed`.

        `missing` words the complaint that a field is not there. Values that the library sees otherwise than they are
        (it ends a text at a NUL) are not judged.
        """
        for name, given in values.items():
            if problem := problem_in(given):
                raise ConditionFailed(f"{name} cannot be judged: {problem}")
        if problem := self._cost.problem_with(values.values()):
            raise ConditionFailed(problem)
        try:
            result = self._expression.eval(data=values)
            value = result.value()
        except Exception as error:
            # The budget of iterations is used up.
            raise ConditionFailed(str(error)) from None
        if value is True or value is False:
            return value
        if (kind := result.type().name()) != "ERROR":
            # Not the value itself: it may be what nobody should read in a log.
            raise ConditionFailed(f"it gives {kind}, and a condition gives true or false")
        text = str(value)
        if absent := _MISSING.search(text):
            raise ConditionFailed(missing(absent[1]))
        raise ConditionFailed(text)


@cache
def _environment(variables: tuple[tuple[str, Kind], ...]) -> cel.Env:
    from cel_expr_python import cel  # pyright: ignore[reportMissingTypeStubs] - its types come without the marker

    types: dict[Kind, cel.Type] = {
        "text": cel.Type.STRING,
        "texts": cel.Type.Map(cel.Type.STRING, cel.Type.STRING),
        "record": cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
        "anything": cel.Type.DYN,
    }
    return cel.NewEnv(variables={name: types[kind] for name, kind in variables})


def _explain(error: RuntimeError) -> str:
    """The first complaint, with its column; the library adds a drawing of the place and the status in its own words."""
    said = str(error).removeprefix("INVALID_ARGUMENT: ").removeprefix("ERROR: ")
    place = _PLACE.search(said)
    if place is None:
        return said.splitlines()[0]
    complaint = place[2].removesuffix(" (in container '')")
    if met := _UNEXPECTED.search(complaint):
        return f"column {place[1]}: {'it ends too early' if met[1] == '<EOF>' else f'{met[1]!r} cannot stand here'}"
    return f"column {place[1]}: {complaint}"


# --- conditions ------------------------------------------------------------------------------------------------------

# Conditions on a call, written in CEL: `args.amount > 500.0`, `caller.user == "" && tool.startsWith("db_")`.
#
# What cannot be evaluated (a missing argument, text compared with a number) is not false: it raises, and whoever asked
# refuses. How expressions are compiled and bounded is in cel.py.

__all__ = ["LONGEST", "VARIABLES", "ConditionFailed", "Expression"]

# `namespace` is a reserved word of the language: it is `caller.namespace`.
VARIABLES: Final = ("args", "tool", "agent", "caller")
_KINDS: Final[tuple[tuple[str, Kind], ...]] = (
    ("args", "record"),
    ("tool", "text"),
    ("agent", "text"),
    ("caller", "record"),
)
_HINT: Final = f"such as args.amount > 500.0; there are {', '.join(VARIABLES)}, and caller.namespace"


class Expression:
    """A compiled condition. Raises `InvalidInput` when the text is not a CEL expression that gives true or false."""

    __slots__ = ("_compiled", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._compiled = Compiled(text, _KINDS, _HINT)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def holds(self, call: Invocation) -> bool:
        """Whether the condition is true of this call. Raises `ConditionFailed`."""
        return self._compiled.holds({name: _value(name, call) for name in self._compiled.names}, _missing)


def _missing(name: str) -> str:
    return f"the call has no {name!r} (a condition can ask for it with has(args.{name}))"


def _value(name: str, call: Invocation) -> Any:
    match name:
        case "args":
            return call.arguments
        case "tool":
            return call.tool
        case "agent":
            return call.caller.agent
        case _:
            return caller_record(call.caller)


def caller_record(caller: Caller) -> dict[str, Any]:
    """The fields of `caller` in an expression."""
    return {
        "user": caller.user,
        "agent": caller.agent,
        "namespace": caller.namespace,
        "model": caller.model,
        "task": caller.task,
        "system": caller.system,
        "template": caller.template,
        "roles": list(caller.roles),
        "depth": caller.depth,
        "by": caller.by,
        "via": caller.via,
        "ancestors": list(caller.ancestors),
    }
