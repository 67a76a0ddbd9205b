"""The runner of an Agent: a program that does the agent's work in the place of a model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from foliot.resources.base import Model, problem
from foliot.resources.command_template import placeholders, wrong_elements
from foliot.resources.definitions.sandbox import SandboxSpec, WorkspaceAccess
from foliot.resources.fields import ANY_CASE, StringMap, TextList, Timeout, refusal
from foliot.resources.problems import Problem

# What a command may name of a turn.
PLACEHOLDERS: Final = ("prompt", "session", "model", "provider", "system_prompt", "workspace_dir")
DEFAULT_RUNNER: Final = "claude_code"
COMMAND: Final = "command"
PREFIX: Final = "FOLIOT_"
_ADAPTER: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PREFIX: Final = re.compile(r"[A-Z][A-Z0-9_]{0,30}_")
# Words at the end of a name that say that its value opens something.
_SECRETS: Final = re.compile(
    r"(^|_)(secret|secrets|password|passwd|token|apikey|api_key|access_key|private_key|credential|credentials"
    r"|authorization|cookie)$"
)


def names_secret(name: str) -> bool:
    """Whether a variable or key of this name would hold a credential, by its words."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return _SECRETS.search(re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")) is not None


def _adapter(value: str) -> str:
    name = value.lower()
    if name and not _ADAPTER.fullmatch(name):
        raise refusal(f'runner "{value[:80]}" is not supported', expected="command, or the name of an adapter")
    return name


def _prefix(value: str) -> str:
    if not _PREFIX.fullmatch(value):
        raise refusal("{field} is no beginning of variables", expected="capitals that end with _, such as FOLIOT_")
    return value


def _folder(value: str) -> str:
    if value and (not value.startswith("/") or ".." in value.split("/") or not value.isprintable()):
        raise refusal("{field} is not an absolute path without '..'", expected="a folder inside, such as /workspace")
    return value.rstrip("/") or value


_ADAPTER_SCHEMA: Final = {"type": "string", "pattern": r"^\s*([A-Za-z][A-Za-z0-9_-]{0,62})?\s*$"}
AdapterName: TypeAlias = Annotated[str, AfterValidator(_adapter), WithJsonSchema(_ADAPTER_SCHEMA)]
VariablePrefix: TypeAlias = Annotated[
    str, AfterValidator(_prefix), WithJsonSchema({"type": "string", "pattern": rf"^\s*{_PREFIX.pattern}\s*$"})
]
InnerFolder: TypeAlias = Annotated[str, AfterValidator(_folder)]


class AgentRunner(Model):
    """The program that does the work of an agent, in a sandbox and without a shell.

    Each turn of a conversation is one process, or one exchange with a program that speaks JSON lines and goes on.
    """

    type: AdapterName = Field(
        default="",
        description="`command`, or the name of an adapter such as claude_code, which brings its own command.",
    )
    provider: AdapterName = Field(default="", description="Whose agent the program is; the adapter's when not given.")
    command: TextList = Field(
        default_factory=list[str],
        description="The program, and its arguments; {prompt}, {session}, {model}, {provider}, {system_prompt} and "
        "{workspace_dir} stand for those of the turn, options as --name={model}.",
    )
    protocol: Annotated[Literal["text", "jsonl", "terminal"], ANY_CASE] | None = Field(
        default=None,
        description="How the program is spoken to: plain text, JSON lines, or a terminal; that of the adapter.",
    )
    resume: TextList = Field(
        default_factory=list[str],
        description="Arguments that are added to resume a session: --resume={session}.",
    )
    resume_latest: TextList = Field(
        default_factory=list[str], description="Arguments that are tried when that session cannot be resumed."
    )
    config: dict[str, Any] = Field(
        default_factory=dict[str, Any], description="For the program, as variables FOLIOT_AGENT_CONFIG_<KEY>."
    )
    env: StringMap = Field(
        default_factory=dict[str, str], description="More variables. Never a credential: the program could print them."
    )
    env_prefix: VariablePrefix = Field(
        default=PREFIX, description="How the names of the variables begin that Foliot sets."
    )
    sandbox: SandboxSpec = Field(
        default_factory=SandboxSpec, description="The fence: network, secrets by placeholder, mounts, limits, image."
    )
    workspace: WorkspaceAccess = Field(
        default="read_write", description="Whether the program sees the workspace, at /workspace."
    )
    workspace_dir: InnerFolder = Field(
        default="", description="The folder that it starts in; /workspace/agents/NAME when not given."
    )
    interactive: bool = Field(
        default=False, description="Whether a question of the program is put to a person; else it is the answer."
    )
    timeout: Timeout = Field(default="10m", description="The longest turn.")
    idle: Timeout | None = Field(
        default=None,
        description="A silence of the program, or of the person it asks, that ends the session as a success.",
    )
    turn_cost_usd: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="What a turn costs when the program does not say, in US dollars, for budgets."
    )

    @model_validator(mode="before")
    @classmethod
    def _name_default(cls, data: Any) -> Any:
        """`runner: {}` has a default runner, and is stored with its name: an empty object would say nothing."""
        if not isinstance(data, dict):
            return data
        given = cast("dict[str, Any]", data)
        named = [given.get(key) for key in ("type", "provider", "command")]
        has_any = any(value.strip() if isinstance(value, str) else value for value in named)
        return given if has_any else {**given, "type": DEFAULT_RUNNER}

    def complete(self) -> None:
        if not self.type and self.command:
            self.type = COMMAND

    def problems(self) -> Iterator[Problem]:
        if self.type == COMMAND and not self.command:
            yield problem("command", message="{field} is required when spec.runner.type is command")
        for place, message in wrong_elements(self.command):
            yield problem("command", place, message=message)
        for field in ("command", "resume", "resume_latest"):
            words: list[str] = getattr(self, field)
            # What is added stands behind a program, so that the same rules hold for it.
            for place, message in wrong_elements(["program", *words]) if field != "command" else ():
                yield problem(field, place - 1, message=message)
            for place, word in enumerate(words):
                for name in placeholders(word):
                    if name not in PLACEHOLDERS:
                        yield problem(field, place, message=f"{{field}}: a turn has no {name[:40]!r}", expected=_KNOWN)
        for name, value in self.env.items():
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                yield problem("env", name, message="{field} is not the name of a variable, or its value holds a NUL")
            elif name.startswith(self.env_prefix):
                yield problem(
                    "env", name, message=f"{{field}}: variables that begin with {self.env_prefix} are Foliot's"
                )
            elif names_secret(name):
                yield problem("env", name, message=_NO_SECRET, hint=_BY_BROKER)
        for index, secret in enumerate(self.sandbox.secrets):
            if secret.variable.startswith(self.env_prefix) and self.env_prefix != PREFIX:  # that one is nobody's
                message = f"{{field}}: variables that begin with {self.env_prefix} are Foliot's"
                yield problem("sandbox", "secrets", index, "variable", message=message)
        for name in self.config:
            if names_secret(name):
                yield problem("config", name, message=_NO_SECRET, hint=_BY_BROKER)


_KNOWN: Final = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
_NO_SECRET: Final = "{field} names a credential, and none goes into the program"
_BY_BROKER: Final = "declare it in sandbox.secrets: the program gets a placeholder, and the value is put in outside"
