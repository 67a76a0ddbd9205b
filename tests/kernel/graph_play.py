"""A small pure shell for the graph of a task: ends messages as a test says, and keeps the facts.

After every move it holds the kernel to its promises: the fold of the facts is the state, the state survives its bytes,
a process that read plan and state from the store decides the same, ids are used once, nothing is activated after the
end, and phases change only as the table allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foliot.kernel.graph import events as t
from foliot.kernel.graph.advance import (
    GraphState,
    Moves,
    advance,
    decode_state,
    encode_state,
    explain,
    fold,
    new_state,
    phase,
)
from foliot.kernel.graph.lifecycle import TASKS, may
from foliot.kernel.graph.plan import Edge, Join, JoinFailure, Node, Plan, decode_plan, encode_plan
from foliot.kernel.messages import Usage


def edge(to: str, when: Any = None, on_failure: Any = "fail") -> Edge:
    return Edge(to, when, on_failure)


def plan(
    graph: Mapping[str, Sequence[str | Edge]],
    *,
    entries: Sequence[str] = (),
    quorum: Mapping[str, int] | None = None,
    on_failure: Mapping[str, JoinFailure] | None = None,
    timeout: Mapping[str, float] | None = None,
    **limits: Any,
) -> Plan:
    """A plan from `{agent: [followers]}`: who has two or more before it gets a join, as in a system."""
    edges = {name: tuple(to if isinstance(to, Edge) else Edge(to) for to in targets) for name, targets in graph.items()}
    for targets in list(edges.values()):
        for each in targets:
            edges.setdefault(each.to, ())
    before = {name: tuple(source for source in edges if name in [e.to for e in edges[source]]) for name in edges}
    nodes: dict[str, Node] = {}
    for name, targets in edges.items():
        join = None
        if len(before[name]) > 1 or name in (quorum or {}):
            required = (quorum or {}).get(name, len(before[name]))
            mode = "quorum" if name in (quorum or {}) else "wait_for_all"
            how = (on_failure or {}).get(name, "deadletter")
            join = Join(mode, before[name], required, how, (timeout or {}).get(name))
        nodes[name] = Node(targets, join)
    starts = tuple(entries) or tuple(name for name in nodes if not before[name]) or (next(iter(nodes)),)
    return Plan("ns/job", nodes, starts, order=tuple(nodes), **limits)


class Play:
    def __init__(self, plan: Plan, *, message: str = "go") -> None:
        self.plan = plan
        self.stored = decode_plan(encode_plan(plan))
        self.state: GraphState = new_state()
        self.facts: list[tuple[float, t.TaskEvent]] = []
        self.activated: list[t.Envelope] = []
        self.now = 100.0
        self.moves = self.give(t.TaskAccepted(message))

    # --- moves

    def give(self, fact: t.TaskEvent, at: float | None = None) -> Moves:
        self.now = self.now + 1 if at is None else at
        before, stored = phase(self.state), encode_state(self.state)
        moves = self.moves = advance(self.plan, self.state, fact, self.now)
        elsewhere = decode_state(stored)
        assert advance(self.stored, elsewhere, fact, self.now) == moves, "another process decides otherwise"
        assert elsewhere == self.state
        assert moves.facts[0] == fact
        self.facts += [(self.now, each) for each in moves.facts]
        self.activated += moves.activate
        self._check(before)
        return moves

    def ok(self, who: str, output: str | None = None, **more: Any) -> Moves:
        message = self.find(who)
        text = f"{message.to}{message.turns}" if output is None else output
        return self.give(t.MessageEnded(message.id, "succeeded", output=text, **more))

    def fail(self, who: str, error: str = "boom", **more: Any) -> Moves:
        return self.give(t.MessageEnded(self.find(who).id, "failed", error=error, reason="tool_failed", **more))

    def stopped(self, who: str) -> Moves:
        return self.give(t.MessageEnded(self.find(who).id, "cancelled"))

    def all_ok(self) -> t.TaskEnd | None:
        """End every run well, oldest first, until nothing runs."""
        for _ in range(2000):
            if not self.state.running:
                return self.state.ended
            self.ok(next(iter(self.state.running)))
        raise AssertionError("the task does not end")

    # --- looks

    def find(self, who: str) -> t.Envelope:
        """The oldest running message to this agent, or with this id."""
        for identity, running in self.state.running.items():
            if who in (identity, running.message.to):
                return running.message
        raise AssertionError(f"{who} does not run, but {self.running}")

    @property
    def running(self) -> list[str]:
        return [running.message.to for running in self.state.running.values()]

    @property
    def ran(self) -> list[str]:
        return [message.to for message in self.activated]

    @property
    def end(self) -> t.TaskEnd | None:
        return self.state.ended

    def of(self, kind: type[t.TaskFact]) -> list[Any]:
        return [fact for _, fact in self.facts if isinstance(fact, kind)]

    def branch_ends(self) -> list[tuple[str, str]]:
        return [(fact.message_id.split("/", 4)[4], fact.reason) for fact in self.of(t.BranchEnded)]

    # --- promises

    def _check(self, before: Any) -> None:
        assert fold(self.stored, self.facts) == self.state
        assert decode_state(encode_state(self.state)) == self.state
        ids = [fact.message.id for fact in self.of(t.MessageSent)]
        assert len(ids) == len(set(ids))
        now = phase(self.state)
        if isinstance(self.moves.facts[0], t.TaskRequeued):
            assert may(TASKS, before, "queued")
            before = "queued"
        assert may(TASKS, before, now)
        assert explain(self.plan, self.state)
        moves = self.moves
        assert {message.id for message in moves.activate} <= self.state.running.keys()
        assert set(moves.stop) <= self.state.running.keys()
        assert not (moves.activate and self.state.ending)
        assert moves.ended == self.state.ended
        if self.state.ended is None:
            assert self.state.running, "a task that lives has something under way"
        else:
            assert moves.facts[-1] == self.state.ended
            assert not self.state.running


def used(tokens: int) -> Usage:
    return Usage(tokens, 1, cost_usd=0.5)
