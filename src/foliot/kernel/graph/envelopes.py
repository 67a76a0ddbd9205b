"""How messages are made: their ids, their branches, and which edges of a node send one.

An id is `namespace/task/a001/h001/from/to`: attempt, hop, names in lower case with ` . > * / :` turned into `_`. The
same facts give the same ids, so sending again is recognised. Where two messages of one attempt would share an id (two
activations of one agent at the same hop, or names that differ only in such characters), the second gets `.2` behind it,
the third `.3`, in the order in which they are sent; no name can contain the dot.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from foliot.kernel.graph.events import JOIN, SYSTEM, Envelope, MessageEnded, Source
from foliot.kernel.graph.plan import OTHERWISE, Node, Plan, in_order
from foliot.kernel.graph.state import AgentOutput, GraphState, Handoff, Round

_UNSAFE: Final = str.maketrans(" .>*/:", "______")


def safe_name(name: str) -> str:
    """Returns the name for use in ids: lower case, without characters that have a meaning in subjects and paths."""
    return name.lower().translate(_UNSAFE)


@lru_cache(1024)  # the same agents, in every task of a system
def id_key(sender: str, to: str) -> str:
    return f"{safe_name(sender)}/{safe_name(to)}"


def message_id(plan: Plan, state: GraphState, hop: int, sender: str, to: str) -> str:
    key = id_key(sender, to)
    taken = state.sent.get(hop, {}).get(key, 0)
    last = f".{taken + 1}" if taken else ""
    return f"{plan.task}/a{state.attempt:03d}/h{hop:03d}/{key}{last}"


def fired(node: Node, ended: MessageEnded) -> list[str]:
    """Returns the agents that follow an agent which succeeded."""
    holds: list[bool] = []
    for position, edge in enumerate(node.edges):
        match edge.when:
            case None | "otherwise":
                holds.append(False)
            case str():
                holds.append(position in ended.held)
            case labels:
                holds.append(all(ended.route.get(name) == value for name, value in labels.items()))
    otherwise = not any(holds)
    return [
        edge.to
        for edge, held in zip(node.edges, holds, strict=True)
        if held or edge.when is None or (edge.when == OTHERWISE and otherwise)
    ]


def kickoff(plan: Plan, state: GraphState, to: str) -> Envelope:
    """The first message of an entry. It starts the node even if that has a join, and fills no round of it."""
    number = plan.entries.index(to) + 1
    return Envelope(
        id=message_id(plan, state, 1, SYSTEM, to),
        sender=SYSTEM,
        to=to,
        payload=state.text,
        attempt=state.attempt,
        round=0 if plan.nodes[to].join else 1,
        branch=f"b{number:03d}",
        kind="task_start",
    )


def again(plan: Plan, state: GraphState, lost: Envelope) -> Envelope:
    """A message of an earlier attempt, sent again in this one."""
    identity = message_id(plan, state, lost.hop, lost.sender, lost.to)
    return replace(lost, id=identity, attempt=state.attempt, replaces=lost.id)


def handed_on(plan: Plan, state: GraphState, handoff: Handoff, to: str) -> Envelope:
    """Builds the message that the agent of an ended message sends to one of its followers."""
    before = handoff.message
    number = handoff.fan - len(handoff.to) + handoff.to.index(to) + 1
    hop, laps = before.hop + 1, laps_behind(plan, before)
    return Envelope(
        id=message_id(plan, state, hop, before.to, to),
        sender=before.to,
        to=to,
        payload=handoff.text,
        attempt=state.attempt,
        hop=hop,
        turns=before.turns + 1,
        round=round_for(state, to, before.to, laps) if plan.nodes[to].join else 1,
        branch=before.branch if handoff.fan == 1 else f"{before.branch}.{number:03d}",
        parent_branch=before.branch,
        parent_id=before.id,
        failed=handoff.failed,
        laps=laps,
    )


def joined(plan: Plan, state: GraphState, node: str, number: int, round: Round) -> Envelope:
    """Builds the message of a join: all inputs it collected, in the order of the graph. It is no turn of its own."""
    join = plan.nodes[node].join
    assert join is not None
    came = sorted(round.waiting, key=lambda message: join.expected.index(message.sender))
    hop = max(message.hop for message in came)
    laps: dict[str, int] = {}
    for message in came:
        for name, lap in message.laps.items():
            laps[name] = max(lap, laps.get(name, 0))
    return Envelope(
        id=message_id(plan, state, hop, JOIN, node),
        sender=JOIN,
        to=node,
        payload=under_names([(message.sender, message.payload, message.failed) for message in came]),
        attempt=state.attempt,
        hop=hop,
        turns=max(message.turns for message in came),
        round=number,
        branch=common_branch([message.branch for message in came]),
        parent_branch=came[0].branch,
        parent_id=came[-1].id,
        sources=tuple(Source(m.id, m.sender, m.payload, m.branch, m.failed) for m in came),
        required=join.required,
        laps=laps,
    )


def laps_behind(plan: Plan, message: Envelope) -> dict[str, int]:
    """The rounds of joins in the ancestry of what follows `message`."""
    if plan.nodes[message.to].join is None or not message.round:
        return message.laps
    return {**message.laps, message.to: message.round}


def round_for(state: GraphState, node: str, sender: str, laps: dict[str, int]) -> int:
    """Which round of a join a message belongs to: the first behind those in its ancestry that its sender has not used.

    The ancestry keeps the rounds of a loop apart, whoever was left out of an earlier one.
    """
    rounds = state.joins.get(node, {})
    number = max(laps.get(node, 0), state.floors.get(node, 0)) + 1
    while number in rounds and sender in rounds[number].seen:
        number += 1
    return number


def common_branch(branches: Sequence[str]) -> str:
    """Returns the common origin of branches: `b001` of `b001.001` and `b001.002`. Of unrelated ones, the first."""
    parts = [branch.split(".") for branch in branches]
    shared: list[str] = []
    for steps in zip(*parts, strict=False):
        if len(set(steps)) > 1:
            break
        shared.append(steps[0])
    return ".".join(shared) or min(branches)


def under_names(texts: Sequence[tuple[str, str, bool]]) -> str:
    """Several texts as one, each under the name of its agent; one alone stands for itself."""
    if len(texts) < 2:
        return texts[0][1] if texts else ""
    return "\n\n".join(f"## {agent}{' (failed)' if failed else ''}\n\n{text}" for agent, text, failed in texts)


def output_of(plan: Plan, outputs: Sequence[AgentOutput]) -> tuple[str, dict[str, str]]:
    """The text of a task and its parts by agent, in the order of the graph, whoever was ready first."""
    by_agent: dict[str, list[str]] = {}
    places = {name: place for place, name in enumerate(in_order(plan))}
    for output in sorted(outputs, key=lambda output: (places[output.agent], output.hop, output.branch)):
        by_agent.setdefault(output.agent, []).append(output.text)
    parts = {agent: "\n\n".join(texts) for agent, texts in by_agent.items()}
    return under_names([(agent, text, False) for agent, text in parts.items()]), parts
