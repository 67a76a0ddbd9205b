"""Where an agent's answer goes: the route labels it gave, and the conditions of its edges that hold.

Labels are the scalar fields at the top of a structured output. A text answer gives them in its last lines:

    The report is about a crash.
    route: bug
    severity=high

Only lines at the very end count, and only when each of them is one label, so that prose is not mistaken for a route.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Final, cast

from msgspec import Struct

from foliot.engine.edge_conditions import edge_condition
from foliot.errors import InvalidInput
from foliot.kernel.plan import OTHERWISE, Node
from foliot.tools.cel import ConditionFailed

log = logging.getLogger(__name__)

_LABEL: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9_.-]{0,62})\s*[=:]\s*(\S(?:.*\S)?)\s*")
_LONGEST_VALUE: Final = 256
_MOST_LABELS: Final = 32


class Verdict(Struct, frozen=True):
    """Which edges hold, by position; and `problems`: position and why, of expressions that cannot be evaluated."""

    held: tuple[int, ...]
    problems: tuple[tuple[int, str], ...] = ()


def route_labels(output: str, value: Any) -> dict[str, str]:
    """The labels an answer gives. A structured one gives its fields; text, the label lines at its end."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        labels = {name: _as_label(item) for name, item in fields.items() if isinstance(item, (str, int, float))}
        return {name: text for name, text in labels.items() if len(text) <= _LONGEST_VALUE}
    labels: dict[str, str] = {}
    for line in reversed(output.rstrip().splitlines()):
        found = _LABEL.fullmatch(line)
        if found is None or len(found[2]) > _LONGEST_VALUE or len(labels) == _MOST_LABELS:
            break
        labels.setdefault(found[1], _unquoted(found[2]))
    return labels


def _as_label(value: str | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _unquoted(text: str) -> str:
    for quote in ('"', "'", "`", "**"):
        if len(text) > 2 * len(quote) and text.startswith(quote) and text.endswith(quote):
            return text[len(quote) : -len(quote)]
    return text


def judge_edges(node: Node, output: str, value: Any, labels: Mapping[str, str], given: Mapping[str, str]) -> Verdict:
    """Evaluate the expressions on a node's edges. One that cannot be evaluated does not hold, and is a problem."""
    held: list[int] = []
    problems: list[tuple[int, str]] = []
    for position, edge in enumerate(node.edges):
        if not isinstance(edge.when, str) or edge.when == OTHERWISE:
            continue
        try:
            if edge_condition(edge.when).holds(output, value, labels, given):
                held.append(position)
        except ConditionFailed as failed:
            problems.append((position, str(failed)))
        except InvalidInput as wrong:
            problems.append((position, wrong.message))
    return Verdict(tuple(held), tuple(problems))


def held_edges(
    node: Node, output: str, value: Any, labels: Mapping[str, str], given: Mapping[str, str]
) -> tuple[int, ...]:
    """The positions of the edges whose expressions hold. One that cannot be evaluated does not, and is logged."""
    verdict = judge_edges(node, output, value, labels, given)
    for position, why in verdict.problems:
        edge = node.edges[position]
        log.warning("the condition %r of the edge to %s does not hold: %s", edge.when, edge.to, why)
    return verdict.held
