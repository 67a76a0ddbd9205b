"""Checks of one AgentSystem's graph, made when it is applied and not when a task has already begun.

    error     a node or an edge names no agent of the system; a quorum asks for more than can arrive; a join that can
              never start, because it waits for what comes behind it, for a join that waits for it, or for what is
              never reached
    warning   a cycle without a turn limit; a node that nothing reaches; a join that waits for what may never come; a
              second edge to the same agent

Where agents start: those that nothing leads to; in a graph that is all cycles, the first of `spec.agents`. Without a
graph the agents follow each other in the order of `spec.agents`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from foliot.common.suggestions import suggestion
from foliot.common.text import counted
from foliot.resources.problems import Path, Problem

CYCLE = "agentsystem graph contains a cycle; set task.spec.max_turns > 0 to allow cyclical agent handoffs"


@dataclass(frozen=True, slots=True)
class Route:
    """A way from one agent to another; `path` is where it is written."""

    source: str
    target: str
    path: Path
    when: Any = None
    on_failure: str = "fail"


@dataclass(frozen=True)
class Graph:
    """An AgentSystem's graph as routes between known agents."""

    agents: Sequence[str]
    nodes: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Graph:
        spec = document.get("spec", {})
        return cls(spec.get("agents", ()), spec.get("graph", {}))

    @cached_property
    def declared(self) -> list[Route]:
        """Every route as written: of each node `next` first, then its edges."""
        return [route for name, node in self.nodes.items() for route in _routes(name, node)]

    @cached_property
    def routes(self) -> list[Route]:
        known = set(self.agents)
        return [route for route in self.declared if route.source in known and route.target in known]

    @cached_property
    def following(self) -> dict[str, list[str]]:
        following: dict[str, list[str]] = {agent: [] for agent in self.agents}
        for route in self.routes:
            if route.target not in following[route.source]:
                following[route.source].append(route.target)
        return following

    @cached_property
    def preceding(self) -> dict[str, list[str]]:
        preceding: dict[str, list[str]] = {agent: [] for agent in self.agents}
        for source, targets in self.following.items():
            for target in targets:
                preceding[target].append(source)
        return preceding

    @cached_property
    def entries(self) -> list[str]:
        return [agent for agent in self.agents if not self.preceding[agent]] or list(self.agents[:1])

    def outgoing(self, agent: str) -> list[Route]:
        """The routes of an agent that count: of several to the same agent, the first."""
        found: dict[str, Route] = {}
        for route in self.routes:
            if route.source == agent:
                found.setdefault(route.target, route)
        return list(found.values())

    def join(self, agent: str) -> Mapping[str, Any] | None:
        """The join of an agent with two or more before it, or with an explicit quorum; empty when all is default."""
        declared: Mapping[str, Any] = self.nodes.get(agent, {}).get("join") or {}
        expected = len(self.preceding[agent])
        return declared if expected > 1 or (expected and declared.get("mode") == "quorum") else None

    @cached_property
    def startable(self) -> set[str]:
        """The agents that can start in some task, if every condition held and nothing failed.

        Grown from the entries: a join needs as many startable agents before it as it requires. What it leaves out can
        never start, in any task.
        """
        found = set(self.entries)
        grown = True
        while grown:
            grown = False
            for agent in self.agents:
                before = sum(source in found for source in self.preceding[agent])
                join = self.join(agent)
                enough = 1
                if join is not None and join.get("on_failure") != "continue_partial":
                    enough = needed(join, len(self.preceding[agent]))
                if agent not in found and before >= enough:
                    found.add(agent)
                    grown = True
        return found

    @cached_property
    def cycle(self) -> list[str] | None:
        """One cycle as `[a, b, a]`, or None."""
        return find_cycle(self.following)

    def reached(self, *, without: str | None = None) -> set[str]:
        """Returns the agents that can be reached from the entries, as if the agent `without` were not there."""
        todo = [entry for entry in self.entries if entry != without]
        seen = set(todo)
        while todo:
            for target in self.following[todo.pop()]:
                if target not in seen and target != without:
                    seen.add(target)
                    todo.append(target)
        return seen


def find_cycle(following: Mapping[str, Iterable[str]]) -> list[str] | None:
    """One cycle of a directed graph, its first node repeated at the end; None when there is none."""
    done: set[str] = set()
    for root in following:
        if root in done:
            continue
        way: dict[str, Iterator[str]] = {root: iter(following[root])}
        while way:
            node = next(reversed(way))
            target = next(way[node], None)
            if target is None:
                done.add(node)
                del way[node]
            elif target in way:
                steps = list(way)
                return [*steps[steps.index(target) :], target]
            elif target not in done and target in following:
                way[target] = iter(following[target])
    return None


def is_cyclic(document: Mapping[str, Any]) -> bool:
    """Whether agents of this system can hand over to each other without end."""
    return Graph.of(document).cycle is not None


def check_graph(document: Mapping[str, Any]) -> list[Problem]:
    """Everything that is wrong or doubtful inside one normalised AgentSystem."""
    graph = Graph.of(document)
    if not graph.agents:
        name = document.get("metadata", {}).get("name", "")
        return [Problem(("spec", "agents"), f'agentsystem "{name}" has no spec.agents')]
    problems = [*_unknown(graph)]
    if graph.nodes:
        problems += _cycles(graph, document.get("spec", {}).get("max_turns"))
        problems += _repeated(graph)
        problems += _unreached(graph)
        problems += _joins(graph)
    return problems


def _routes(name: str, node: Mapping[str, Any]) -> Iterator[Route]:
    here: Path = ("spec", "graph", name)
    if target := node.get("next"):
        yield Route(name, target, (*here, "next"))
    for index, edge in enumerate(node.get("edges", ())):
        yield Route(name, edge["to"], (*here, "edges", index, "to"), edge.get("when"), edge.get("on_failure") or "fail")


def _unknown(graph: Graph) -> Iterator[Problem]:
    for name in graph.nodes:
        if name not in graph.agents:
            message = f'graph node "{name}" is not listed in spec.agents'
            yield Problem(("spec", "graph", name), message, suggestion(name, graph.agents))
    for route in graph.declared:
        if route.target not in graph.agents:
            message = f'graph edge "{route.source}" -> "{route.target}" points to unknown agent'
            yield Problem(route.path, message, suggestion(route.target, graph.agents))


def _repeated(graph: Graph) -> Iterator[Problem]:
    counted = {route.path for agent in graph.agents for route in graph.outgoing(agent)}
    for route in graph.routes:
        if route.path not in counted:
            message = f'a second edge "{route.source}" -> "{route.target}" has no effect'
            hint = "the first one counts; an expression can join two conditions with ||"
            yield Problem(route.path, message, hint, severity="warning")


def _cycles(graph: Graph, max_turns: int | None) -> Iterator[Problem]:
    if graph.cycle is not None and not max_turns:
        hint = f"{' -> '.join(graph.cycle)}; spec.max_turns of the system bounds every task"
        yield Problem(("spec", "graph"), CYCLE, hint, severity="warning")


def _unreached(graph: Graph) -> Iterator[Problem]:
    reached = graph.reached()
    for index, agent in enumerate(graph.agents):
        place: Path = ("spec", "graph", agent) if agent in graph.nodes else ("spec", "agents", index)
        if agent not in reached:
            yield Problem(place, f'agent "{agent}" is never reached', _starts_at(graph), severity="warning")
        elif len(graph.agents) > 1 and not graph.preceding[agent] and not graph.following[agent]:
            message = f'agent "{agent}" is on no edge of the graph, so it starts and ends on its own'
            yield Problem(place, message, severity="warning")


def _starts_at(graph: Graph) -> str:
    return f"the graph starts at {', '.join(graph.entries)}"


def _joins(graph: Graph) -> Iterator[Problem]:
    for agent in graph.agents:
        join: Mapping[str, Any] | None = graph.nodes.get(agent, {}).get("join")
        expected = len(graph.preceding[agent])
        place: Path = ("spec", "graph", agent, "join")
        if join is not None:
            yield from _join_values(join, expected, place)
        if expected < 2:
            continue
        where = place if join is not None else (("spec", "graph", agent) if agent in graph.nodes else ("spec", "graph"))
        yield from _starving(graph, agent, join or {}, where)


def _join_values(join: Mapping[str, Any], expected: int, place: Path) -> Iterator[Problem]:
    count, percent = join.get("quorum_count", 0), join.get("quorum_percent", 0)
    if not expected:
        yield Problem(place, "nothing leads to this node, so its join has no effect", severity="warning")
    elif join.get("mode") == "quorum":
        if count > expected:
            message = f"a quorum of {count} can never arrive: {counted(expected, 'way leads', 'ways lead')} here"
            yield Problem((*place, "quorum_count"), message, expected=f"at most {expected}")
        elif not count and not percent:
            message = "a quorum without quorum_count or quorum_percent waits for all"
            yield Problem((*place, "mode"), message, "give one of the two", severity="warning")
    elif count or percent:
        field = "quorum_count" if count else "quorum_percent"
        yield Problem((*place, field), f"{field} has no effect unless join.mode is quorum", severity="warning")


def _starving(graph: Graph, agent: str, join: Mapping[str, Any], place: Path) -> Iterator[Problem]:
    """Joins that can never start, and joins that may wait for what never comes."""
    on_failure = join.get("on_failure", "deadletter")
    sources = graph.preceding[agent]
    if agent not in graph.startable and any(source in graph.startable for source in sources):
        lacking = [source for source in sources if source not in graph.startable]
        message = f'"{agent}" waits for {_why_never(graph, agent, lacking)}'
        hint = "it can never start; join with mode quorum and a smaller quorum_count, or take an edge away"
        yield Problem(place, message, hint, severity="error" if on_failure == "deadletter" else "warning")
        return
    strict = on_failure == "deadletter" and needed(join, len(sources)) == len(sources)
    if strict and (pair := _alternatives(graph, agent)):
        message = f'"{agent}" waits for all, but {pair}'
        yield Problem(place, message, "use join.mode quorum, or on_failure continue_partial", severity="warning")


def _why_never(graph: Graph, agent: str, lacking: Sequence[str]) -> str:
    """`c, which can only follow it`: each agent that cannot come first, by the reason why."""
    reached, free = graph.reached(), graph.reached(without=agent)
    reasons: dict[str, list[str]] = {}
    for source in lacking:
        if source == agent:
            reasons.setdefault("itself", [])
        elif source not in reached:
            reasons.setdefault("never reached", []).append(source)
        elif source not in free:
            reasons.setdefault("can only follow it", []).append(source)
        else:
            reasons.setdefault("cannot start before it", []).append(source)
    parts: list[str] = []
    for why, names in reasons.items():
        verb = ("are " if len(names) > 1 else "is ") if why == "never reached" else ""
        parts.append(f"{_names(names)}, which {verb}{why}" if names else why)
    return "; and for ".join(parts)


def needed(join: Mapping[str, Any], expected: int) -> int:
    """How many of `expected` agents must arrive: all, or for a quorum the larger of its count and its share."""
    if join.get("mode") != "quorum":
        return expected
    share = -(-expected * join.get("quorum_percent", 0) // 100)
    return min(max(join.get("quorum_count", 0), share) or expected, expected)


def _alternatives(graph: Graph, agent: str) -> str | None:
    """Why not all sources of a node may arrive: an edge with a condition, or two sources of which one is chosen."""
    for route in graph.routes:
        if route.target == agent and route.when is not None:
            return f"the edge from {route.source} has a condition"
    chosen: dict[str, list[str]] = {}
    for source in graph.preceding[agent]:
        ways = [route for route in graph.routes if route.target == source]
        if ways and all(route.when is not None for route in ways):
            for chooser in {route.source for route in ways}:
                chosen.setdefault(chooser, []).append(source)
    for chooser, sources in chosen.items():
        if len(sources) > 1:
            return f"{chooser} chooses between {_names(sources)}"
    return None


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
