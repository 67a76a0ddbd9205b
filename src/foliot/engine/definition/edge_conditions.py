"""Conditions on the edges of a system, written in CEL: `value.score > 3.0`, `output.contains("urgent")`.

output   what the agent said, as text            route   the labels it gave, as texts
value    its structured output, or null          input   what the task was given, as texts
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, cast

from foliot.kernel.graph.plan import OTHERWISE
from foliot.resources.expressions import Read, reads_of
from foliot.resources.problems import Problem
from foliot.resources.schema_fields import impossible
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

# Fields and values in conditions that no answer of the agent can have, by the schema that its answers keep to; see
# resources/schema_fields.py.


def check_edge_fields(document: Document, look: Callable[[str, str, str], Document | None]) -> Iterator[Problem]:
    """Yields the fields and values in conditions of an AgentSystem that the agents before them cannot give."""
    space: str = document["metadata"].get("namespace", "default")
    graph: Mapping[str, Any] = document.get("spec", {}).get("graph", {})
    for name, node in graph.items():
        if (agent := look("Agent", space, name)) is None or agent["spec"].get("runner"):
            continue
        for index, edge in enumerate(node.get("edges", ())):
            for message, hint in _impossible(edge.get("when"), name, agent["spec"].get("output_schema")):
                yield Problem(("spec", "graph", name, "edges", index, "when"), message, hint, missing=True)


def _impossible(when: Any, agent: str, schema: Any) -> Iterator[tuple[str, str | None]]:
    owner = f"the output of agent {agent!r}"
    if isinstance(when, dict):
        for name, value in cast("dict[str, str]", when).items() if schema else ():
            read = Read("route", (name,), (value,))
            yield from (
                (message.replace(read.said, f"route label {name}", 1), hint)
                for message, hint in impossible(read, schema, owner)
            )
        return
    if not isinstance(when, str) or when == OTHERWISE:
        return
    for read in reads_of(when):
        if read.root not in ("value", "route") or not (read.steps or read.holding):
            continue
        if schema:
            yield from impossible(read, schema, owner)
        elif read.root == "value":
            yield f"agent {agent!r} has no output_schema, so {read.said} is never there", "give the agent one"
