"""AgentSystem: a directed graph of agents.

    agents: [triage, bug, feature]
    graph:
      triage:
        edges:
          - {to: bug, when: {route: bug}}        # the agent answered with the route label `route=bug`
          - {to: feature, when: otherwise}       # no other conditional edge of this node fired
      bug:
        edges:
          - {to: done, on_failure: forward}      # if `bug` fails, `done` is told what went wrong
      done:
        join: {mode: quorum, quorum_count: 2, timeout: 5m}

An edge without `when` always fires. `when` is a map of route labels that must all be equal to what the agent gave, the
word `otherwise`, or an expression in text. When the agent fails, its edges fire by `on_failure` alone: `fail` ends the
task unless a join can do without, `skip` delivers nothing, `forward` delivers what went wrong. A join belongs to the
node that receives.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import AliasChoices, BeforeValidator, Field, PlainValidator, WithJsonSchema

from foliot.resources.base import Model, Resource, Status
from foliot.resources.fields import (
    ANY_CASE,
    NAME_PATTERN,
    Count,
    Name,
    NameList,
    Positive,
    StringMap,
    Timeout,
    as_text,
    as_whole,
    refusal,
)

OTHERWISE = "otherwise"
_LONGEST_EXPRESSION = 4096


def _condition(value: Any) -> str | dict[str, str]:
    if isinstance(value, str):
        text = value.strip()
        if len(text) > _LONGEST_EXPRESSION:
            raise refusal("{field} is too long", expected=f"at most {_LONGEST_EXPRESSION} characters")
        return OTHERWISE if text.lower() == OTHERWISE else text
    if isinstance(value, dict) and value:
        labels = {key: as_text(item) for key, item in cast("dict[str, Any]", value).items()}
        if all(isinstance(item, str) for item in labels.values()):
            return labels
    expected = "a map of route labels such as {route: bug}, the word otherwise, or an expression"
    raise refusal(f"{{field}} is no condition: expected {expected}", expected=expected)


def _edge(value: Any) -> Any:
    """`- x` is short for `- to: x`."""
    return {"to": value} if isinstance(value, str) else value


Condition: TypeAlias = Annotated[
    str | StringMap,
    PlainValidator(_condition),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "maxLength": _LONGEST_EXPRESSION},
                {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": {"type": ["string", "number", "boolean"]},
                },
            ]
        }
    ),
]


class Edge(Model):
    """A way from one agent to the next."""

    to: Name = Field(default="", validation_alias=AliasChoices("to", "next"), description="The agent that receives.")
    when: Condition | None = Field(
        default=None, description="When it fires: route labels, `otherwise`, or an expression. Always when not given."
    )
    on_failure: Annotated[Literal["fail", "skip", "forward"], ANY_CASE] | None = Field(
        default=None,
        description="When the agent before it fails: `fail` the task (the default), `skip`, or `forward` the error.",
    )
    labels: StringMap = Field(default_factory=dict[str, str], description="For display.")
    policy: dict[str, Any] = Field(default_factory=dict[str, Any], description="For display.")


class Join(Model):
    """The condition on which a node with several ways in starts."""

    mode: Annotated[Literal["wait_for_all", "quorum"], ANY_CASE] = Field(
        default="wait_for_all", description="When all have arrived, or enough of them."
    )
    quorum_count: Count = Field(default=0, description="How many are enough.")
    quorum_percent: Annotated[int, Field(ge=0, le=100), BeforeValidator(as_whole)] = Field(
        default=0, description="Which share is enough."
    )
    on_failure: Annotated[Literal["deadletter", "skip", "continue_partial"], ANY_CASE] = Field(
        default="deadletter", description="When it can no longer fill: fail, go on without the node, or with a part."
    )
    timeout: Timeout | None = Field(default=None, description="How long it waits before on_failure decides.")


Next: TypeAlias = Annotated[
    str,
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": NAME_PATTERN}, {"type": "string", "pattern": r"^\s*$"}]}),
]


class Node(Model):
    """The followers of an agent, and the join in front of it."""

    next: Name = Field(default="", description="The one agent that follows; short for one edge.")
    edges: list[Annotated[Edge, BeforeValidator(_edge, json_schema_input_type=Edge | Next)]] = Field(
        default_factory=list[Edge], description="The agents that follow."
    )
    join: Join | None = Field(default=None, description="When this node starts, if several ways lead to it.")

    def complete(self) -> None:
        self.edges = [edge for edge in self.edges if edge.to]


class AgentSystemSpec(Model):
    """The agents of a system, and the edges between them."""

    description: str = Field(default="", description="What the system is for.")
    agents: NameList = Field(
        default_factory=list[str],
        description="The agents. Without a graph they follow each other in this order.",
    )
    graph: dict[str, Node] = Field(default_factory=dict[str, Node], description="By agent: what follows it.")
    max_turns: Positive | None = Field(
        default=None, description="How often agents may hand over in one task; needed where the graph has a cycle."
    )


class AgentSystem(Resource[AgentSystemSpec, Status]):
    """A directed graph of agents."""
