"""The plan that a task is pinned to: its agents, the edges between them, and its limits.

A `Plan` is the graph of an AgentSystem (or the one agent of a task) as the kernel needs it: with every default filled
in, and without a name that is looked up later. It is stored once, under its digest, as a run's spec is.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from foliot.kernel.backoff import RetryPolicy
from foliot.kernel.messages import Number
from foliot.kernel.run.codec import settled

VERSION = 1
OTHERWISE = "otherwise"
# How often anything may be tried, whoever declares it.
MOST_ATTEMPTS = 1000

# When an edge fires: always, when all these route labels are as the agent gave them, when no other conditional edge of
# the node fired, or when an expression holds. The shell evaluates expressions; the kernel is told which ones held.
Condition: TypeAlias = dict[str, str] | str | None
# What an edge carries when the agent before it failed: the failure ends the task, the edge never delivers, or it
# delivers what went wrong.
EdgeFailure: TypeAlias = Literal["fail", "skip", "forward"]
JoinFailure: TypeAlias = Literal["deadletter", "skip", "continue_partial"]


class Edge(Struct, frozen=True, omit_defaults=True):
    to: str
    when: Condition = None
    on_failure: EdgeFailure = "fail"


class Join(Struct, frozen=True, omit_defaults=True):
    """`required` of the `expected` agents upstream must arrive in a round before the node starts."""

    mode: Literal["wait_for_all", "quorum"]
    expected: tuple[str, ...]
    required: int
    on_failure: JoinFailure = "deadletter"
    timeout: Number | None = None


class Node(Struct, frozen=True, omit_defaults=True):
    edges: tuple[Edge, ...] = ()
    join: Join | None = None


class Plan(Struct, frozen=True, omit_defaults=True):
    """`task` is `namespace/name`. `agents` gives the digest of each agent's frozen `RunSpec`.

    `max_turns` bounds the messages along any line of ancestry (0: no bound of its own); `max_messages` bounds all
    messages of one attempt, whatever the graph says. `order` are the nodes as they were declared: a stored plan does
    not keep the order of `nodes`.
    """

    task: str
    nodes: dict[str, Node]
    entries: tuple[str, ...]
    agents: dict[str, str] = {}
    definitions: dict[str, str] = {}
    system: str = ""
    max_turns: int = 0
    max_messages: int = 500
    retry: RetryPolicy = RetryPolicy()
    v: int = VERSION
    order: tuple[str, ...] = ()


def in_order(plan: Plan) -> tuple[str, ...]:
    """The nodes in an order that every process agrees on: as declared, else by name."""
    return plan.order or tuple(sorted(plan.nodes))


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Plan)


def encode_plan(plan: Plan) -> bytes:
    """Canonical: equal plans give equal bytes."""
    return _encoder.encode(settled(plan))


def decode_plan(data: bytes) -> Plan:
    """Raises `msgspec.MsgspecError` for bytes that are no plan."""
    return _decoder.decode(data)
