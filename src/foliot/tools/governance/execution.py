"""The execution policy of a run, held against its calls: who may run programs, who is asked, and how much of a fence.

    security: deny        no tool that runs programs or code
    security: allowlist   those in `allowed_tools` of the agent, and commands in its `allowed_commands`
    security: full        all that the agent has, inside their fences
    ask: on-miss          a person is asked about what the list does not hold
    ask: always           a person is asked about every one

It is about tools that run programs (`ToolDefinition.runs_programs`): shells, interpreters, command line tools, fenced
functions, WebAssembly, and tools of MCP servers, which may be programs. `workspace_access` also holds for tools that
work on the files themselves (`ToolDefinition.workspace`). The rest of a policy is a ceiling of every fence that is
opened for the run (`ceiling_of`). A policy that was not declared says nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from foliot.kernel.execution import RUNTIMES, ExecutionPolicy, normalised, to_run_execution_resources
from foliot.sandbox.base import WorkspaceAccess
from foliot.tools.base import Caller, Invocation, ToolDefinition, ToolDenied
from foliot.tools.fences import Ceiling, less_access
from foliot.tools.governance.rules import Rules, Verdict, tokens_of, tool_token

EXECUTION: Final = "execution"
RULE: Final = "execution_policy"

_ACCESS: Final[dict[str, WorkspaceAccess]] = {"none": "none", "ro": "read_only", "rw": "read_write"}
# Isolations that are fences in the sense of `tools/fences.py`, so that a ceiling reaches them.
_FENCED: Final = ("sandboxed", "container")


class Execution:
    """Judges calls of one tool by the execution policy of their run. Made only for tools that one can be about."""

    layer = EXECUTION

    def __init__(self, definition: ToolDefinition) -> None:
        self._definition = definition
        self._name = definition.name
        self._names = tokens_of(definition)

    @classmethod
    def of(cls, definition: ToolDefinition) -> Execution | None:
        """The layer of a tool; None for one that neither runs programs nor works on files."""
        return cls(definition) if definition.runs_programs or definition.workspace != "none" else None

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        declared = call.caller.execution
        if declared is None:
            return _NONE
        policy = normalised(declared)
        if (objection := self._on_files(policy)) is not None or not self._definition.runs_programs:
            return objection or _WITHIN
        return self._beyond(policy) or self._on_programs(call, policy)

    def is_settled(self, caller: Caller, rules: Rules) -> bool:
        return caller.execution is None

    def _on_files(self, policy: ExecutionPolicy) -> Verdict | None:
        """Refuses work on files beyond the access that the run has. Programs in a fence find less there instead."""
        wanted, held = self._definition.workspace, _ACCESS.get(policy.workspace_access, "none")
        if self._definition.isolation in _FENCED or less_access(wanted, held) == wanted:
            return None
        return _denied(f'workspace_access is "{policy.workspace_access}", and {self._name!r} needs more')

    def _beyond(self, policy: ExecutionPolicy) -> Verdict | None:
        """Refuses what no fence of this tool could hold."""
        try:
            ceiling_of(policy)
        except ToolDenied as denied:
            return _denied(denied.message)
        isolation = self._definition.isolation
        if policy.runtime_type and isolation not in _FENCED and self._definition.type != "mcp":
            runs = "in no fence" if isolation == "none" else f"{isolation!r}"
            return _denied(f'runtime_type is "{policy.runtime_type}", and {self._name!r} runs {runs}')
        return None

    def _on_programs(self, call: Invocation, policy: ExecutionPolicy) -> Verdict:
        if policy.security == "deny":
            return _denied(f'security is "deny": {self._name!r} runs programs')
        if policy.security not in ("allowlist", "full"):
            return _denied(f"security {policy.security!r} is not known here")
        if policy.security == "allowlist" and not self._is_listed(call):
            missing = self._missing(call.caller)
            return _asked(missing) if policy.ask in ("on-miss", "always") else _denied(missing)
        return _asked(f'ask is "always": {self._name!r} runs programs') if policy.ask == "always" else _WITHIN

    def _is_listed(self, call: Invocation) -> bool:
        caller, argument = call.caller, self._definition.command_argument
        if not self._names.isdisjoint(map(tool_token, caller.allowed_tools)):
            return True
        command = call.arguments.get(argument) if argument else None
        return isinstance(command, str) and is_listed_command(command, caller.allowed_commands)

    def _missing(self, caller: Caller) -> str:
        lists = "allowed_tools"
        if self._definition.command_argument and caller.allowed_commands:
            lists += ", nor this command in its allowed_commands"
        return f'security is "allowlist", and the agent does not list {self._name!r} in {lists}'


def _denied(reason: str) -> Verdict:
    return Verdict("deny", EXECUTION, f"the execution policy of the run: {reason}", RULE)


def _asked(reason: str) -> Verdict:
    return Verdict("ask", EXECUTION, f"the execution policy of the run: {reason}", RULE)


_NONE: Final = Verdict("allow", EXECUTION, "the run has no execution policy")
_WITHIN: Final = Verdict("allow", EXECUTION, "the execution policy of the run allows it")

# Characters that mean nothing to a shell, wherever they stand.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_@%+=:,./-]+(?: +[A-Za-z0-9_@%+=:,./-]+)*")


def is_listed_command(command: str, patterns: Iterable[str]) -> bool:
    """Whether a shell command is one of these, word for word.

    In a pattern `*` stands for one word, and at its end for any further words. A command that means something else to a
    shell than its words (quotes, `;`, `|`, `$`, `>`, wildcards, a variable in front) fits only a pattern without `*`
    that is the same text.
    """
    command = command.strip(" ")
    listed = [pattern.strip() for pattern in patterns if pattern.strip()]
    if any(command == pattern and "*" not in pattern for pattern in listed):
        return True
    words = command.split()
    # `PATH=/elsewhere git status` would run another git.
    if not _PLAIN.fullmatch(command) or "=" in words[0]:
        return False
    return any(_fits(words, pattern.split()) for pattern in listed)


def agent_program_objection(policy: ExecutionPolicy, command: Sequence[str], listed: Sequence[str]) -> str:
    """Why the program that an agent is may not be started; blank when it may. `listed` are its `allowed_commands`.

    No person can be asked about the start of an agent: where one would have to be asked, it is refused. An agent that
    lists no commands lists its own program by declaring it, unless misses are to be asked about.
    """
    policy = normalised(policy)
    if policy.security not in ("allowlist", "full"):
        return f'security is "{policy.security}", and its agent is a program'
    unasked = "and no person can be asked about the start of an agent that is a program"
    if policy.ask == "always":
        return f'ask is "always", {unasked}'
    patterns = [pattern.split() for pattern in listed if pattern.strip()]
    holds = any(_fits(list(command), pattern) for pattern in patterns)
    if policy.security == "full" or holds or (not patterns and policy.ask == "off"):
        return ""
    missing = f'security is "allowlist", and allowed_commands of the agent does not hold its program {command[0]}'
    return missing if policy.ask == "off" else f'{missing}; ask is "{policy.ask}", {unasked}'


def _fits(words: list[str], pattern: list[str]) -> bool:
    if pattern[-1] == "*":
        pattern = pattern[:-1]
        words = words[: len(pattern)]
    # The program itself is always named.
    return (
        pattern[:1] not in ([], ["*"])
        and len(words) == len(pattern)
        and all(wanted in ("*", word) for word, wanted in zip(words, pattern, strict=True))
    )


def ceiling_of(policy: ExecutionPolicy) -> Ceiling:
    """Return the most that fences of a run with this policy may be.

    What it bounds must really be bounded: where a machine cannot, the fence is refused. Raises `ToolDenied` for what no
    fence can give.
    """
    policy = normalised(policy)
    amounts = to_run_execution_resources(policy)
    cpu, memory, gpu = (amounts.cpu, amounts.memory, amounts.gpu) if amounts is not None else (0, 0, 0)
    if gpu:
        raise ToolDenied(f"resources.gpu is {gpu}, and no sandbox can give a program a GPU", layer=EXECUTION, rule=RULE)
    if policy.runtime_type and policy.runtime_type not in RUNTIMES:
        reason = f"runtime_type {policy.runtime_type!r} is not known here"
        raise ToolDenied(reason, layer=EXECUTION, rule=RULE)
    if policy.host != "sandbox":
        raise ToolDenied(f"there is no host {policy.host!r} here", layer=EXECUTION, rule=RULE)
    return Ceiling(
        rule=RULE,
        backend=RUNTIMES[policy.runtime_type] if policy.runtime_type else "process",
        fenced=bool(policy.runtime_type),
        workspace=_ACCESS.get(policy.workspace_access, "none"),
        network=None if policy.network_enabled else (),
        limits={**({"memory": memory} if memory else {}), **({"cpus": cpu / 1000} if cpu else {})},
        require=frozenset((["memory"] if memory else []) + (["cpu"] if cpu else [])),
    )
