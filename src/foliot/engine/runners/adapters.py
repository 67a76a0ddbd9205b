"""Adapters: which programs can be runners, by name. Built-in ones and strangers' come in by the same door.

An adapter says how its program is started, how it goes on with a session, and what the lines mean that it prints. A
package offers its own by an entry point, which is read when a name is asked for that is not built in:

    [project.entry-points."foliot.runners"]
    acme = "acme_agent:adapter"          # a RunnerAdapter

`command` is any program; `claude_code` the command line of Claude Code, in the mode in which it prints JSON lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final, TypeAlias

from foliot.common.durations import seconds
from foliot.engine.runners.lines import Said, read_claude_line, read_line
from foliot.engine.runners.profile import Protocol, RunnerSpec
from foliot.errors import InvalidInput
from foliot.kernel.execution import ExecutionPolicy
from foliot.resources.definitions.runner import COMMAND, DEFAULT_RUNNER
from foliot.resources.powers import Document, declared_by_operator
from foliot.tools.builtin.questions import AskUser

ENTRY_POINTS: Final = "foliot.runners"
ASK_USER: Final = AskUser.definition.name
ReadLine: TypeAlias = Callable[[Mapping[str, Any]], list[Said]]
"""Reads one line that a program printed, an object of JSON. Never raises: a line that it does not know is nothing."""


@dataclass(frozen=True, slots=True)
class RunnerAdapter:
    """`command`, `resume` and `resume_latest` are what an agent gets that declares none; see `AgentRunner`.

    `speaks_lines`: it takes JSON lines too, and goes on after a turn; else it is given the prompt, and ends. `read` is
    for programs with the protocol `jsonl`.
    """

    name: str
    provider: str
    protocol: Protocol = "text"
    command: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    resume_latest: tuple[str, ...] = ()
    speaks_lines: bool = True
    read: ReadLine = read_line


BUILT_IN: Final[Mapping[str, RunnerAdapter]] = {
    each.name: each
    for each in (
        RunnerAdapter(COMMAND, COMMAND),
        RunnerAdapter(
            DEFAULT_RUNNER,
            "claude",
            "jsonl",
            ("claude", "-p", "--output-format=stream-json", "--verbose", "--model={model}",
             "--append-system-prompt={system_prompt}"),
            resume=("--resume={session}",),
            resume_latest=("--continue",),
            speaks_lines=False,
            read=read_claude_line,
        ),
    )
}  # fmt: skip


@cache
def adapters() -> Mapping[str, RunnerAdapter]:
    """All adapters there are here, by name. A package that does not load, or offers something else, has none."""
    found = dict(BUILT_IN)
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name in found:
            continue  # a built-in name means the same everywhere
        try:
            made: object = entry.load()
        except Exception:
            continue
        if isinstance(made, RunnerAdapter):
            found[entry.name] = made
    return found


def find_adapter(name: str) -> RunnerAdapter:
    """Raises `InvalidInput` for a name that no adapter has."""
    known = BUILT_IN.get(name) or adapters().get(name)
    if known is None:
        raise InvalidInput(
            f'runner "{name[:80]}" is not supported',
            hint=f"there are: {', '.join(sorted(adapters()))}; a package brings others (entry point {ENTRY_POINTS})",
            field="spec.runner.type",
        )
    return known


def adapter_of(given: Mapping[str, Any]) -> RunnerAdapter:
    """The adapter of `spec.runner` of an Agent. Raises `InvalidInput` for a runner or a provider that none has here."""
    provider = given.get("provider", "")
    providers: dict[str, str] = {}
    for each in adapters().values():
        providers.setdefault(each.provider, each.name)
    if provider and provider not in providers:
        raise InvalidInput(
            f'provider "{provider[:80]}" is not supported',
            hint=f"there are: {', '.join(sorted(providers))}",
            field="spec.runner.provider",
        )
    named = given.get("type") or (COMMAND if given.get("command") else providers.get(provider, DEFAULT_RUNNER))
    return find_adapter(named)


def resolved_runner(agent: Document) -> RunnerSpec | None:
    """The runner of an Agent document, over what its adapter brings; None for an agent that has none.

    Raises `InvalidInput` for a runner or a provider that is not supported here, or that has no command.
    """
    given: Mapping[str, Any] | None = agent["spec"].get("runner")
    if given is None:
        return None
    provider, adapter = given.get("provider", ""), adapter_of(given)
    command = tuple(given.get("command", ())) or adapter.command
    if not command:
        raise InvalidInput(
            f"the runner {adapter.name!r} has no command", hint="give spec.runner.command", field="spec.runner.command"
        )
    sandbox: dict[str, Any] = dict(given.get("sandbox", {}))
    variables = {**given.get("env", {}), **sandbox.pop("env", {})}
    access = sandbox.pop("workspace", given["workspace"])
    idle = given.get("idle")
    return RunnerSpec(
        type=adapter.name,
        provider=provider or adapter.provider,
        protocol=given.get("protocol") or adapter.protocol,
        command=command,
        resume=tuple(given.get("resume", ())) or adapter.resume,
        resume_latest=tuple(given.get("resume_latest", ())) or adapter.resume_latest,
        config=dict(given.get("config", {})),
        env=variables,
        env_prefix=given["env_prefix"],
        workspace=access,
        workspace_dir=given.get("workspace_dir", ""),
        model=agent["spec"].get("model_name", ""),
        interactive=given["interactive"],
        timeout=seconds(given["timeout"]),
        idle=None if idle is None else seconds(idle),
        turn_cost_usd=given.get("turn_cost_usd"),
        sandbox=sandbox,
        operator=declared_by_operator(agent),
    )


def with_questions(runner: RunnerSpec, tools: Sequence[str], policy: ExecutionPolicy | None) -> list[str]:
    """The tools that an agent asks for; with the one by which its program asks people, if it may.

    Without it, whoever asked for it, where `policy` (that of the agent) says that nobody is talked to.
    """
    others = [each for each in tools if each.partition("@")[0] != ASK_USER]
    if policy is not None and policy.interactive is False:
        return others
    return [*tools, *([ASK_USER] if runner.interactive and len(others) == len(tools) else [])]
