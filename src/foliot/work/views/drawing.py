"""The graph of a task as text: a tree for people, Mermaid and DOT for tools, plain data for programs.

In the tree every agent stands once, under the first that leads to it; where another edge leads to it again, a line
points back. So loops and joins can be drawn without crossing lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from foliot.common.durations import duration
from foliot.common.text import counted, one_line
from foliot.kernel.graph.plan import Edge, Plan
from foliot.work.views.story import NodeState, NodeView

MARKS: Final[dict[NodeState, str]] = {
    "idle": "○",
    "queued": "◔",
    "retry": "↻",
    "running": "●",
    "waiting": "‖",
    "succeeded": "✓",
    "failed": "✗",
    "cancelled": "⊘",
}
_FILL: Final[dict[NodeState, str]] = {
    "idle": "#f4f4f4",
    "queued": "#fff4ce",
    "retry": "#ffe0b2",
    "running": "#cfe8ff",
    "waiting": "#ffe9a8",
    "succeeded": "#d3f2d3",
    "failed": "#ffd3d3",
    "cancelled": "#e0e0e0",
}


class Row(Struct, frozen=True):
    """A line of the tree: what stands before the agent, and the agent; `back` when it is drawn elsewhere already."""

    stem: str
    name: str
    label: str = ""
    back: bool = False


def rows_of(plan: Plan) -> list[Row]:
    """The lines of the tree, from the entries down. Agents that nothing leads to come last."""
    drawn: set[str] = set()
    rows: list[Row] = []
    for name in plan.entries:
        if name not in drawn:
            rows += _branch(plan, name, "", "", drawn)
    for name in plan.nodes:
        if name not in drawn:
            rows += _branch(plan, name, "", "", drawn)
    return rows


def _branch(plan: Plan, name: str, head: str, rest: str, drawn: set[str], label: str = "") -> Iterator[Row]:
    if name in drawn:
        yield Row(head, name, label, back=True)
        return
    drawn.add(name)
    yield Row(head, name, label)
    edges = plan.nodes[name].edges
    for number, edge in enumerate(edges):
        last = number == len(edges) - 1
        stem, below = ("└─▶ ", "    ") if last else ("├─▶ ", "│   ")
        yield from _branch(plan, edge.to, rest + stem, rest + below, drawn, edge_label(edge))


def edge_label(edge: Edge) -> str:
    """`when` in a few words, and what is not the default about failures."""
    match edge.when:
        case None:
            text = ""
        case str(expression):
            text = expression
        case labels:
            text = ", ".join(f"{name}={value}" for name, value in labels.items())
    failure = "" if edge.on_failure == "fail" else f"on failure {edge.on_failure}"
    return ", ".join(part for part in (text, failure) if part)


def detail_of(node: NodeView, now: float) -> str:
    """How an agent stands, in a few words behind its name."""
    parts: list[str] = []
    if node.state != "idle":
        parts.append("tried again soon" if node.state == "retry" else node.state)
        parts.append(duration(node.seconds))
    if node.times > 1:
        parts.append(f"{node.times} times")
    if node.failures and node.state != "failed":
        parts.append(counted(node.failures, "failure"))
    if node.join is not None:
        join = node.join
        parts.append(f"{len(join.came)} of {join.required} arrived, waits for {', '.join(join.missing)}")
    return " · ".join(parts)


def tree(plan: Plan, nodes: Sequence[NodeView], now: float, *, width: int = 120) -> list[str]:
    """The graph with states, one line for each agent, its last words behind."""
    by_name = {node.name: node for node in nodes}
    lines: list[str] = []
    for row in rows_of(plan):
        label = f"  [{row.label}]" if row.label else ""
        if row.back:
            lines.append(f"{row.stem}↩ {row.name}{label}")
            continue
        node = by_name[row.name]
        detail = detail_of(node, now)
        line = f"{row.stem}{MARKS[node.state]} {row.name}{label}{f'  {detail}' if detail else ''}"
        room = width - len(line) - 2
        said = one_line(node.text, room) if node.text and room > 15 else ""
        lines.append(f"{line}  {said}" if said else line)
    return lines


def mermaid(plan: Plan, nodes: Sequence[NodeView], now: float) -> str:
    """A flowchart that Mermaid draws, coloured by state."""
    ids = {name: f"n{number}" for number, name in enumerate(plan.nodes)}
    lines = ["flowchart TD"]
    for node in nodes:
        detail = detail_of(node, now)
        text = f"{MARKS[node.state]} {node.name}{f'<br/>{detail}' if detail else ''}"
        lines.append(f'  {ids[node.name]}["{_quoted(text, chr(39))}"]:::{node.state}')
    for name, each in _edges(plan):
        label = f'|"{_quoted(edge_label(each), chr(39))}"|' if edge_label(each) else ""
        lines.append(f"  {ids[name]} -->{label} {ids[each.to]}")
    states: list[NodeState] = list(dict.fromkeys(node.state for node in nodes))
    lines += [f"  classDef {state} fill:{_FILL[state]}" for state in states]
    return "\n".join(lines)


def dot(plan: Plan, nodes: Sequence[NodeView], now: float) -> str:
    """A digraph for Graphviz."""
    lines = ["digraph task {", "  rankdir=TB; node [shape=box, style=filled];"]
    for node in nodes:
        detail = detail_of(node, now)
        text = _quoted(f"{MARKS[node.state]} {node.name}{f'{chr(10)}{detail}' if detail else ''}", '\\"')
        lines.append(f'  "{_quoted(node.name, chr(39))}" [label="{text}", fillcolor="{_FILL[node.state]}"];')
    for name, each in _edges(plan):
        label = edge_label(each)
        attributes = f' [label="{_quoted(label, chr(92) + chr(34))}"]' if label else ""
        lines.append(f'  "{_quoted(name, chr(39))}" -> "{_quoted(each.to, chr(39))}"{attributes};')
    return "\n".join([*lines, "}"])


def as_data(plan: Plan, nodes: Sequence[NodeView]) -> dict[str, Any]:
    return {
        "entries": list(plan.entries),
        "nodes": [msgspec.to_builtins(node) for node in nodes],
        "edges": [
            {"from": name, "to": each.to, "when": each.when, "on_failure": each.on_failure}
            for name, each in _edges(plan)
        ],
    }


def _edges(plan: Plan) -> Iterable[tuple[str, Edge]]:
    return ((name, edge) for name, node in plan.nodes.items() for edge in node.edges)


def _quoted(text: str, quote: str) -> str:
    return text.replace('"', quote).replace("\n", "\\n")
