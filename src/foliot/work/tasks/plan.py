"""From a declared system, or one agent, to the plan of a task: every default filled in, nothing left to look up.

What cannot be a plan is refused here, with everything that is wrong with it: a graph that names strangers, a join that
can never start, a cycle without a turn limit. It is the same judgement as when the system is applied.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from foliot.common.durations import seconds
from foliot.engine.definition.freeze import CONCURRENCY, execution_of, isolation_needs, narrowed_by
from foliot.errors import InvalidInput, NotFound
from foliot.kernel.backoff import RetryPolicy
from foliot.kernel.errors import UnknownEvent
from foliot.kernel.execution import retry_or_default
from foliot.kernel.graph.events import Envelope, Source
from foliot.kernel.graph.plan import VERSION as PLAN_VERSION
from foliot.kernel.graph.plan import Edge, Join, Node, Plan
from foliot.kernel.messages import Message, Text
from foliot.kernel.run.codec import settled
from foliot.kernel.run.spec import RunSpec, decode_spec, digest, encode_spec
from foliot.resources.graph import CYCLE, Graph, check_graph, needed
from foliot.store.base import Document
from foliot.store.journal.base import Journal
from foliot.work.tasks.base import Command, Definitions

# --- bundle ----------------------------------------------------------------------------------------------------------

# The bundle that a task is pinned to, as one stored value: its plan, and the frozen definition of every agent in it.
#
# A thousand tasks of one system share one bundle. It is stored under its digest with the first of them; so what is
# declared may change while tasks wait, and no task notices.

LARGEST_BUNDLE_CACHE = 256


VERSION = 1


class TaskBundle(Struct, frozen=True):
    """`plan.task` is blank: the bundle does not know which tasks use it."""

    plan: Plan
    specs: dict[str, msgspec.Raw]
    v: int = VERSION


class RunParts(Struct, frozen=True):
    """The parts that all runs of one agent of a bundle have in common."""

    digest: str
    frozen: bytes
    spec: RunSpec
    definitions: dict[str, str]
    isolation: tuple[str, ...]
    max_running: int


class Pinned(Struct, frozen=True):
    """A bundle that was read: by agent, the digest of its spec, the bytes, and the spec itself."""

    digest: str
    plan: Plan
    specs: dict[str, tuple[str, bytes, RunSpec]]
    parts: dict[str, RunParts] = field(default_factory=dict[str, RunParts])  # worked out so far

    def plan_for(self, task: str) -> Plan:
        """The plan with the name of the task (`namespace/name`) in it."""
        return msgspec.structs.replace(self.plan, task=task)

    def parts_of(self, agent: str) -> RunParts:
        """The parts of the runs of an agent, worked out with the first of them."""
        if (known := self.parts.get(agent)) is not None:
            return known
        name, frozen, spec = self.specs[agent]
        made = RunParts(
            digest=name,
            frozen=frozen,
            spec=spec,
            definitions=self.pins_of(agent),
            isolation=isolation_needs(spec),
            max_running=spec.extra.get(CONCURRENCY, 0),
        )
        self.parts[agent] = made
        return made

    def pins_of(self, agent: str) -> dict[str, str]:
        """The digests of the resources behind the runs of one agent: its own, and that of the system.

        Those of all agents stand once, in the plan, which the task keeps. In every run they would take bytes with the
        square of the agents: 44 KB a run in a system of 500.
        """
        known = self.plan.definitions
        return {name: known[name] for name in (f"Agent/{agent}", f"AgentSystem/{self.plan.system}") if name in known}


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(TaskBundle)


def pack(plan: Plan, specs: dict[str, RunSpec]) -> tuple[Pinned, bytes]:
    """The bundle of a plan, and the bytes to be stored under its digest."""
    frozen = {agent: encode_spec(spec) for agent, spec in sorted(specs.items())}
    data = _encoder.encode(TaskBundle(settled(plan), {agent: msgspec.Raw(text) for agent, text in frozen.items()}))
    read = {agent: (digest(text), text, specs[agent]) for agent, text in frozen.items()}
    return Pinned(digest(data), plan, read), data


def unpack(name: str, data: bytes) -> Pinned:
    """Raises `UnknownEvent` for a bundle or a plan of a newer version."""
    try:
        bundle = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnknownEvent(f"what a task is pinned to cannot be read by this version of foliot: {error}") from error
    if bundle.v > VERSION or bundle.plan.v > PLAN_VERSION:
        newer = f"version {bundle.v} with a plan of version {bundle.plan.v}"
        raise UnknownEvent(f"a task is pinned to {newer}; this version of foliot reads {VERSION} and {PLAN_VERSION}")
    specs = {agent: bytes(raw) for agent, raw in bundle.specs.items()}
    return Pinned(name, bundle.plan, {agent: (digest(text), text, decode_spec(text)) for agent, text in specs.items()})


class Bundles:
    """Bundles by digest; the ones used last are kept, because they never change."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._kept: OrderedDict[str, Pinned] = OrderedDict()

    async def get(self, name: str) -> Pinned:
        """Raises `NotFound`."""
        pinned = self._kept.get(name)
        if pinned is None:
            pinned = unpack(name, await self._journal.get_blob(name))
            self.keep(pinned)
        return pinned

    def keep(self, pinned: Pinned) -> None:
        self._kept[pinned.digest] = pinned
        self._kept.move_to_end(pinned.digest)
        while len(self._kept) > LARGEST_BUNDLE_CACHE:
            self._kept.popitem(last=False)


# --- plan ------------------------------------------------------------------------------------------------------------


def compile_plan(
    task_name: str,
    namespace: str,
    document: Document,
    task_spec: Mapping[str, Any],
    agents: Mapping[str, str],
    definitions: Mapping[str, str],
) -> Plan:
    """The plan of a task addressed to `document`, an AgentSystem or an Agent.

    `task_spec` may give `max_turns`, `retry` and `message_retry`, as a Task does. `agents` are the digests of the
    frozen agents by name, `definitions` those of the resources behind them. Raises `InvalidInput`.
    """
    system = document["kind"] == "AgentSystem"
    name: str = document["metadata"]["name"]
    nodes, entries = _system(document) if system else ({name: Node()}, (name,))
    if missing := [agent for agent in nodes if agent not in agents]:
        raise InvalidInput(f"agent {missing[0]!r} is not there", hint="apply the agents of the system first")
    turns = int(task_spec.get("max_turns") or (document.get("spec", {}).get("max_turns") if system else 0) or 0)
    if system and not turns and (cycle := Graph.of(document).cycle) is not None:
        raise InvalidInput(CYCLE, hint=f"{' -> '.join(cycle)}; or set spec.max_turns of the system")
    return Plan(
        task=f"{namespace}/{task_name}",
        nodes=nodes,
        entries=entries,
        agents=dict(agents),
        definitions=dict(definitions),
        system=name if system else "",
        max_turns=turns,
        retry=retry_of(task_spec),
        order=tuple(nodes),
    )


def _system(document: Document) -> tuple[dict[str, Node], tuple[str, ...]]:
    if wrong := [problem for problem in check_graph(document) if problem.severity == "error"]:
        raise InvalidInput("; ".join(problem.message for problem in wrong), hint=wrong[0].hint)
    graph = Graph.of(document)
    if not graph.nodes:
        followers = (*graph.agents[1:], None)
        line = {
            agent: Node(() if to is None else (Edge(to),)) for agent, to in zip(graph.agents, followers, strict=True)
        }
        return line, tuple(graph.agents[:1])
    nodes = {agent: Node(_edges(graph, agent), _join(graph, agent)) for agent in graph.agents}
    return nodes, tuple(graph.entries)


def _edges(graph: Graph, agent: str) -> tuple[Edge, ...]:
    # The reader has checked the words, so an unknown one is a fault of ours and not of whoever wrote the manifest.
    return tuple(
        Edge(route.target, route.when, route.on_failure)  # pyright: ignore[reportArgumentType] - text from the reader
        for route in graph.outgoing(agent)
    )


def _join(graph: Graph, agent: str) -> Join | None:
    declared = graph.join(agent)
    if declared is None:
        return None
    expected = tuple(graph.preceding[agent])
    timeout = declared.get("timeout")
    return Join(
        mode=declared.get("mode", "wait_for_all"),
        expected=expected,
        required=needed(declared, len(expected)),
        on_failure=declared.get("on_failure", "deadletter"),
        timeout=None if timeout is None else _seconds(timeout),
    )


def retry_of(task_spec: Mapping[str, Any]) -> RetryPolicy:
    """Reads the retry rule of messages: `message_retry`, and what it does not give from `retry`.

    Durations are texts such as `2s`, or numbers of seconds. Raises `InvalidInput`.
    """
    task: Mapping[str, Any] = task_spec.get("retry") or {}
    message: Mapping[str, Any] = task_spec.get("message_retry") or {}
    backoff = message.get("backoff", task.get("backoff"))
    longest = message.get("max_backoff")
    return RetryPolicy(
        max_attempts=max(1, int(message.get("max_attempts") or task.get("max_attempts") or 1)),
        backoff=0.0 if backoff is None else _seconds(backoff),
        max_backoff=86_400.0 if longest is None else _seconds(longest),
        jitter=message.get("jitter", "full"),
        non_retryable=tuple(text.lower() for text in message.get("non_retryable", ())),
    )


def _seconds(value: str | float) -> float:
    if isinstance(value, str):
        try:
            return seconds(value)
        except ValueError as error:
            raise InvalidInput(f"{value!r} is no duration: {error}") from None
    return float(value)


# --- pinning ---------------------------------------------------------------------------------------------------------

# From what is declared to what a task is pinned to.

LARGEST_CACHE = 128
# Waits after the first one double up to this many seconds where an execution policy rules, or its own first one.
LONGEST_POLICY_WAIT = 300.0


class Pinner:
    """Freezes targets. What was frozen is used again as long as nothing that is declared has changed."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._kept: OrderedDict[Hashable, tuple[Hashable, Pinned, bytes]] = OrderedDict()

    async def pin(self, command: Command) -> tuple[Pinned, bytes]:
        """Pins a task of this command; returns the pinned value and its bytes.

        Raises `NotFound`, `InvalidInput`, `Denied`.
        """
        version = await self._definitions.version()
        user = command.acts_as.user
        if user and not await self._definitions.has_skills(command.namespace, user, version):
            user = ""  # one bundle for all of them
        key = (
            user,
            command.namespace,
            command.target_kind,
            command.target,
            command.max_turns,
            command.retry,
            command.extra_system_prompt,
            None if command.execution_policy is None else msgspec.json.encode(command.execution_policy),
        )
        kept = self._kept.get(key)
        if kept is not None and kept[0] == version:
            return kept[1], kept[2]
        pinned, data = await self._freeze(command, user)
        self._kept[key] = (version, pinned, data)
        self._kept.move_to_end(key)
        while len(self._kept) > LARGEST_CACHE:
            self._kept.popitem(last=False)
        return pinned, data

    async def _freeze(self, command: Command, user: str) -> tuple[Pinned, bytes]:
        target, definitions, names = await self._target(command)
        specs: dict[str, RunSpec] = {}
        for name in names:
            try:
                spec, definition = await self._definitions.agent(command.namespace, name, user=user)
            except NotFound as missing:
                where = f" of system {command.target!r}" if command.target_kind == "system" else ""
                raise NotFound(f"agent {name!r}{where} is not there: {missing.message}", hint=missing.hint) from missing
            if command.extra_system_prompt:
                spec = replace(spec, system=f"{spec.system}\n\n{command.extra_system_prompt}".strip())
            specs[name] = narrowed_by(spec, command.execution_policy)
            definitions[f"Agent/{name}"] = definition
        agents = {name: digest(encode_spec(spec)) for name, spec in specs.items()}
        plan: Plan = compile_plan("", command.namespace, target, {"max_turns": command.max_turns}, agents, definitions)
        return pack(replace(plan, task="", retry=_retry_rule(command, specs)), specs)

    async def _target(self, command: Command) -> tuple[dict[str, Any], dict[str, str], list[str]]:
        """The document of the target, the digests known so far, and the agents it needs."""
        if command.target_kind == "agent":
            document = {"kind": "Agent", "metadata": {"name": command.target, "namespace": command.namespace}}
            return document, {}, [command.target]
        document, definition = await self._definitions.system(command.namespace, command.target)
        names = list(document["spec"].get("agents", ()))
        if not names:
            raise InvalidInput(
                f'agentsystem "{command.target}" has no spec.agents', hint="list the agents of the system"
            )
        return document, {f"AgentSystem/{command.target}": definition}, names


def _retry_rule(command: Command, specs: Mapping[str, RunSpec]) -> RetryPolicy:
    """The rule of the task; where that is the default, the one that execution policies declare.

    For a system only that of the command counts: what one agent declares says nothing of the others.
    """
    if command.retry != RetryPolicy():
        return command.retry
    one = next(iter(specs.values())) if command.target_kind == "agent" else None
    policy = execution_of(one) if one is not None else command.execution_policy
    if policy is None or policy.retry is None:
        return command.retry
    rule = retry_or_default(policy)
    first = rule.delay_ms / 1000
    return RetryPolicy(rule.max_attempts, first, max(first, LONGEST_POLICY_WAIT), "equal")


def without_target(command: Command) -> tuple[Pinned, bytes]:
    """The bundle of a task whose target is not there: a plan in which there is nothing to do."""
    system = command.target if command.target_kind == "system" else ""
    return pack(Plan("", {}, (), system=system, retry=command.retry), {})


# --- inbox -----------------------------------------------------------------------------------------------------------

# The input of an agent when a message reaches it.

TOPIC = "topic"


def first_words(command: Command) -> str:
    """Returns the input of the first agents of a task: the message, or the topic, or all of the input."""
    return command.message or command.input.get(TOPIC, "") or _listed(command.input)


def opening(command: Command, envelope: Envelope) -> tuple[Message, ...]:
    """The first message of the run that an envelope activates.

    What came through a join stands under the name of who said it. The rest of the task's input follows, for every
    agent of the task, unless it is what the agent is told anyway.
    """
    told = _collected(envelope.sources) if envelope.sources else envelope.payload
    if envelope.failed and not envelope.sources:
        told = f"{envelope.sender} failed: {told}"
    given = {name: text for name, text in command.input.items() if name != TOPIC and text}
    parts = [told] if told else []
    if given and told != _listed(command.input):
        parts.append(_listed(given))
    return (Message("user", (Text("\n\n".join(parts)),)),)


def _collected(sources: tuple[Source, ...]) -> str:
    return "\n\n".join(
        f"{source.agent} failed: {source.payload}" if source.failed else f"{source.agent}: {source.payload}"
        for source in sources
    )


def _listed(input: dict[str, str]) -> str:
    return "\n".join(f"{name}: {text}" for name, text in input.items() if text)
