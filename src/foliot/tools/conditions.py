"""Conditions on a call, written in CEL: `args.amount > 500.0`, `caller.user == "" && tool.startsWith("db_")`.

What cannot be evaluated (a missing argument, text compared with a number) is not false: it raises, and whoever asked
refuses. How expressions are compiled and bounded is in cel.py.
"""

from __future__ import annotations

from typing import Any, Final

from foliot.tools.base import Invocation
from foliot.tools.cel import LONGEST, Compiled, ConditionFailed, Kind

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
            caller = call.caller
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
