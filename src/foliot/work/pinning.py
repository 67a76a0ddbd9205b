"""From what is declared to what a task is pinned to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from msgspec.structs import replace

from foliot.errors import InvalidInput, NotFound
from foliot.kernel.plan import Plan, Retry
from foliot.kernel.spec import RunSpec, digest, encode_spec
from foliot.work.base import Command, Definitions
from foliot.work.bundle import Pinned, pack
from foliot.work.planning import compile_plan

LARGEST_CACHE = 128


class Pinner:
    """Freezes targets. What was frozen is used again as long as nothing that is declared has changed."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._kept: OrderedDict[Hashable, tuple[Hashable, Pinned, bytes]] = OrderedDict()

    async def pin(self, command: Command) -> tuple[Pinned, bytes]:
        """What a task of this command is pinned to, and its bytes. Raises `NotFound`, `InvalidInput`, `Denied`."""
        version = await self._definitions.version()
        key = (
            command.namespace,
            command.target_kind,
            command.target,
            command.max_turns,
            command.retry,
            command.extra_system_prompt,
        )
        kept = self._kept.get(key)
        if kept is not None and kept[0] == version:
            return kept[1], kept[2]
        pinned, data = await self._freeze(command)
        self._kept[key] = (version, pinned, data)
        self._kept.move_to_end(key)
        while len(self._kept) > LARGEST_CACHE:
            self._kept.popitem(last=False)
        return pinned, data

    async def _freeze(self, command: Command) -> tuple[Pinned, bytes]:
        target, definitions, names = await self._target(command)
        specs: dict[str, RunSpec] = {}
        for name in names:
            try:
                spec, definition = await self._definitions.agent(command.namespace, name)
            except NotFound as missing:
                where = f" of system {command.target!r}" if command.target_kind == "system" else ""
                raise NotFound(f"agent {name!r}{where} is not there: {missing.message}", hint=missing.hint) from missing
            if command.extra_system_prompt:
                spec = replace(spec, system=f"{spec.system}\n\n{command.extra_system_prompt}".strip())
            specs[name] = spec
            definitions[f"Agent/{name}"] = definition
        agents = {name: digest(encode_spec(spec)) for name, spec in specs.items()}
        plan: Plan = compile_plan("", command.namespace, target, {"max_turns": command.max_turns}, agents, definitions)
        rule = command.retry
        retry = Retry(rule.max_attempts, rule.backoff, rule.max_backoff, rule.jitter, rule.non_retryable)
        return pack(replace(plan, task="", retry=retry), specs)

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
