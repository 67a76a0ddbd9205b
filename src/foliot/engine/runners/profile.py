"""The profile of a runner: what a run is pinned to, the defaults, and the variables that a program finds.

Everything here is pure. The names of the variables are those that programs for the like of it know, behind a prefix
that the agent chooses. **None of them is ever a credential**: whoever needs one declares it in `sandbox.secrets` and
finds a placeholder, and the broker outside sends the value.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from foliot.kernel.run.state import State
from foliot.resources.definitions.runner import DEFAULT_RUNNER, PREFIX, names_secret
from foliot.sandbox.base import WORKSPACE, WorkspaceAccess

Protocol: TypeAlias = Literal["text", "jsonl", "terminal"]

# Where the frozen spec of a run keeps its runner, and the model that such runs are pinned to. No agent can name it.
RUNNER: Final = "runner"
REFERENCE: Final = "builtin:runner"
# What every program is told that has no prompt of its own.
SYSTEM_PROMPT: Final = """\
You work without anybody watching, in a sandbox of your own. Your folder is {{workspace_dir}}: what you leave there is
kept, what you leave elsewhere is not.

- If there is a guide for this workspace, {{workspace_dir}}/AGENTS.md or /workspace/AGENTS.md, read it first and keep
  to it.
- /workspace/skills holds skills, one folder each. Where a skill says how something is done here, do it so, also if you
  would do it in another way by yourself.
- /workspace/sources holds material to work with, and /workspace/tools programs that were put there for you.
- Clone repositories below /tmp, and copy to your folder what is worth keeping.
- Credentials that you find in variables are placeholders. Use them as they are; do not try to find out their values.

Say at the end in a few sentences what you did, what you could not do, and where the result is.
"""
# A variable may be no longer than this: the kernel refuses longer ones, with the whole program.
LONGEST_VARIABLE: Final = 100_000
_SESSIONS: Final = uuid.UUID("5b0cfb0a-6a0d-5a53-8f3c-4e1d1c1f6a10")


class RunnerSpec(Struct, frozen=True, omit_defaults=True):
    """The runner of a run, as it is frozen: what the agent declares over what its adapter brings.

    `operator`: whoever runs the installation declared it, so its command needs no grant. `sandbox` is what is declared
    of the fence. Times are in seconds.
    """

    type: str
    provider: str
    protocol: Protocol
    command: tuple[str, ...]
    resume: tuple[str, ...] = ()
    resume_latest: tuple[str, ...] = ()
    config: dict[str, Any] = {}
    env: dict[str, str] = {}
    env_prefix: str = PREFIX
    workspace: WorkspaceAccess = "read_write"
    workspace_dir: str = ""
    model: str = ""
    interactive: bool = False
    timeout: float = 600.0
    idle: float | None = None
    turn_cost_usd: float | None = None
    sandbox: dict[str, Any] = {}
    operator: bool = False


def has_begun_program(state: State) -> bool:
    """Whether a run is a program that was started: it acts without calling any tool."""
    return RUNNER in state.spec.extra and bool(state.asks or state.spent.steps)


def default_agent_config(agent_key: str) -> dict[str, str]:
    """Returns the defaults of an agent with a runner, as they may be shown before it is declared."""
    key = agent_key.strip()
    return {
        "runner": DEFAULT_RUNNER,
        "provider": "claude",
        "workspace_dir": f"{WORKSPACE}/agents/{key}" if key else WORKSPACE,
        "system_prompt": SYSTEM_PROMPT,
    }


def folder_of(runner: RunnerSpec, agent: str) -> str:
    """The folder inside that the program starts in, and that prompts call `{{workspace_dir}}`."""
    if runner.workspace_dir:
        return runner.workspace_dir
    if runner.workspace == "read_write":
        return default_agent_config(agent)["workspace_dir"]
    return WORKSPACE if runner.workspace == "read_only" else "/tmp"


def with_folder(prompt: str, folder: str) -> str:
    return prompt.replace("{{workspace_dir}}", folder)


def session_of(run_id: str) -> str:
    """The session that a program is told for a run, as long as it has not named one of its own.

    A UUID, because many programs take nothing else; the same in every process.
    """
    return str(uuid.uuid5(_SESSIONS, run_id))


class TurnFacts(Struct, frozen=True):
    """The facts of a turn that a program is told by variables. What is blank or None is left out."""

    run_id: str
    attempt: int
    session: str
    system_prompt: str = ""
    task: str = ""
    model: str = ""
    folder: str = ""
    label: str = ""
    spawned_by: str = ""
    deliver: bool | None = None
    attachments: Sequence[Mapping[str, Any]] = ()
    provenance: Mapping[str, Any] = {}
    resume: bool = False


def environment_of(runner: RunnerSpec, turn: TurnFacts) -> dict[str, str]:
    """The variables of a turn. Those of `env` come first: none of them replaces what Foliot says."""
    told: dict[str, str | None] = {
        "RUN_ID": turn.run_id,
        "RUN_ATTEMPT_ID": f"{turn.run_id}/{turn.attempt}",
        "ORIGIN_TASK_ID": turn.task,
        "AGENT_SESSION_ID": turn.session,
        "AGENT_PROVIDER": runner.provider,
        "AGENT_MODEL": turn.model,
        "AGENT_SYSTEM_PROMPT": turn.system_prompt,
        "AGENT_SYSTEM_PROMPT_MODE": "append" if turn.system_prompt else "",
        "AGENT_WORKSPACE_DIR": turn.folder,
        "AGENT_DELIVER": None if turn.deliver is None else _text(turn.deliver),
        "AGENT_LABEL": turn.label,
        "AGENT_SPAWNED_BY": turn.spawned_by,
        "AGENT_ATTACHMENTS_JSON": _json(turn.attachments) if turn.attachments else "",
        "AGENT_INPUT_PROVENANCE_JSON": _json(turn.provenance) if turn.provenance else "",
        "AGENT_RESUME_SESSION": "true" if turn.resume else "",
    }
    facts = {name: value for name, value in told.items() if value}
    config = {name: value for key, value in runner.config.items() if (name := config_name(key))}
    # A blank text is a value that somebody chose: only null is left out.
    facts |= {f"AGENT_CONFIG_{name}": _text(value) for name, value in config.items() if value is not None}
    return {**runner.env, **{f"{runner.env_prefix}{name}": value for name, value in facts.items()}}


def config_name(key: str) -> str:
    """The end of the variable of a key of `config`; blank for one that has none, or that would name a credential."""
    return "" if names_secret(key) else re.sub(r"[^A-Z0-9]", "_", re.sub("[a-z]+", _upper, key)).strip("_")


def _upper(match: re.Match[str]) -> str:
    return match[0].upper()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
