"""Conditions on the edges of a system, written in CEL: `value.score > 3.0`, `output.contains("urgent")`.

output   what the agent said, as text            route   the labels it gave, as texts
value    its structured output, or null          input   what the task was given, as texts
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast

from foliot.common.suggestions import suggestion
from foliot.kernel.graph.plan import OTHERWISE
from foliot.resources.problems import Problem
from foliot.store.base import Document
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


# --- fields ----------------------------------------------------------------------------------------------------------

# Fields and values in conditions that no answer of the agent can have, by the schema that its answers keep to. A field
# that the schema does not name counts as one that cannot be, unless it says `additionalProperties`: whoever asks for it
# has misspelt another one.

_TEXT: Final = re.compile(r"""\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'""")
_STEP: Final = r"""(?:\.[A-Za-z_]\w*(?!\w*\s*\()|\[\s*(?:"[^"\\]*"|'[^'\\]*')\s*\])"""
_READ: Final = re.compile(rf"(?<![\w.])(value|route)((?:{_STEP})+)")
_NAME: Final = re.compile(r"""\.(\w+)|\[\s*["']([^"']*)["']""")
_EQUALS: Final = re.compile(r"""\s*==\s*(?:"([^"\\]*)"|'([^'\\]*)')""")


def check_fields(document: Document, look: Callable[[str, str, str], Document | None]) -> Iterator[Problem]:
    """Yields the fields and values in conditions of an AgentSystem that the agents before them cannot give."""
    if document["kind"] != "AgentSystem":
        return
    space: str = document["metadata"].get("namespace", "default")
    graph: Mapping[str, Any] = document.get("spec", {}).get("graph", {})
    for name, node in graph.items():
        if (agent := look("Agent", space, name)) is None or agent["spec"].get("runner"):
            continue
        for index, edge in enumerate(node.get("edges", ())):
            for message, hint in _impossible(edge.get("when"), name, agent["spec"].get("output_schema")):
                yield Problem(("spec", "graph", name, "edges", index, "when"), message, hint, missing=True)


def _impossible(when: Any, agent: str, schema: Any) -> Iterator[tuple[str, str | None]]:
    if isinstance(when, dict):
        for name, value in cast("dict[str, str]", when).items() if schema else ():
            yield from _unlike(schema, (name,), f"route label {name}", agent, value)
        return
    if not isinstance(when, str) or when == OTHERWISE:
        return
    quoted = [range(*found.span()) for found in _TEXT.finditer(when)]
    for found in _READ.finditer(when):
        if any(found.start() in each for each in quoted):
            continue
        root, steps = found[1], tuple(one or other for one, other in _NAME.findall(found[2]))
        if not schema:
            if root == "value":
                yield f"agent {agent!r} has no output_schema, so {found[0]} is never there", "give the agent one"
            continue
        equal = _EQUALS.match(when, found.end())
        wanted = None if equal is None else equal[1] if equal[1] is not None else equal[2]
        yield from _unlike(schema, steps, found[0], agent, wanted)


def _unlike(
    schema: Any, steps: Sequence[str], said: str, agent: str, wanted: str | None
) -> Iterator[tuple[str, str | None]]:
    """Yields what is wrong with one field, held against a schema; nothing where the schema leaves it open."""
    here: list[dict[str, Any]] | None = _shapes(schema, schema)
    for step in steps:
        if here is None:
            return
        names = [name for shape in here for name in shape.get("properties", {})]
        if any(_is_open(shape) for shape in here):
            return
        if step not in names:
            hint = suggestion(step, names, f"it has {', '.join(names)}" if names else "it has no fields")
            yield f"{said}: the output of agent {agent!r} has no field {step!r}", hint
            return
        inner = [_shapes(shape["properties"][step], schema) for shape in here if step in shape.get("properties", {})]
        here = None if None in inner else [shape for each in inner if each is not None for shape in each]
    if wanted is None or not here:
        return
    known = [_allowed(shape) for shape in here]
    if None in known:
        return
    values = [value for each in known if each is not None for value in each]
    if wanted not in values:
        hint = suggestion(wanted, values, f"it is one of {', '.join(values)}")
        yield f"{said}: the output of agent {agent!r} is never {wanted!r} there", hint


def _is_open(shape: dict[str, Any]) -> bool:
    """Whether objects of this shape may have fields that it does not name."""
    if shape.get("additionalProperties") or shape.get("patternProperties"):
        return True
    return "properties" not in shape and shape.get("type") in (None, "object", ["object", "null"])


def _allowed(shape: dict[str, Any]) -> list[str] | None:
    """The values that a shape allows, as the texts that route labels are; None when it does not list them."""
    values: Any = [shape["const"]] if "const" in shape else shape.get("enum")
    if shape.get("type") == "boolean" and not values:
        values = [True, False]
    if not isinstance(values, list):
        return None
    return [str(each).lower() if isinstance(each, bool) else str(each) for each in cast("list[Any]", values)]


def _shapes(schema: Any, root: Any, depth: int = 0) -> list[dict[str, Any]] | None:
    """The alternatives of a schema, without null; None when they cannot be told."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    shape = cast("dict[str, Any]", schema)
    if "allOf" in shape or "not" in shape or "if" in shape:
        return None
    if isinstance(ref := shape.get("$ref"), str):
        target: Any = root
        for step in ref.removeprefix("#/").split("/") if ref.startswith("#/") else ("",):
            target = cast("dict[str, Any]", target).get(step) if isinstance(target, dict) else None
        return _shapes(target, root, depth + 1)
    if (choices := shape.get("anyOf") or shape.get("oneOf")) is None:
        return [] if shape.get("type") == "null" else [shape]
    found = [_shapes(choice, root, depth + 1) for choice in choices]
    return None if None in found else [each for inner in found if inner is not None for each in inner]


_DEEPEST: Final = 8
