"""Agent: one model-backed worker, with what it may use and how far it may go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import AfterValidator, Field, WithJsonSchema

from foliot.common.durations import seconds
from foliot.common.suggestions import suggestion
from foliot.kernel.inbox import LARGEST_CAP, LONGEST_DEBOUNCE
from foliot.kernel.messages import Effort
from foliot.resources.base import (
    EVEN_EMPTY,
    Model,
    Resource,
    Status,
    either,
    given,
    implies,
    no,
    present,
    problem,
    says,
)
from foliot.resources.definitions.delegation import AgentDelegation
from foliot.resources.definitions.execution_policy import ExecutionPolicy
from foliot.resources.definitions.runner import AgentRunner
from foliot.resources.definitions.sandbox import SandboxSpec
from foliot.resources.fields import (
    ANY_CASE,
    MARK_ANY_CASE,
    MARK_ONE_OR_MANY,
    ONE_OR_MANY,
    TOOL_NAME_SCHEMA,
    Count,
    Duration,
    ExactList,
    JsonSchema,
    Name,
    NameList,
    Positive,
    RawText,
    Ref,
    RefList,
    SecretRef,
    Timeout,
    ToolList,
    Url,
    Whole,
    WordList,
    check_tool_name,
    refusal,
)
from foliot.resources.problems import Problem

MAX_STEPS = 10
KEEP_TAIL = 20
TOOL_CHOICES: Final = ("auto", "none", "required")
MEMORY_OPERATIONS = ("read", "write", "search", "list", "ingest")


def _memory_operations(values: list[str]) -> list[str]:
    """`memory.Read` and `read` are the same operation; the short form is kept."""
    operations: list[str] = []
    for index, value in enumerate(values):
        operation = value.lower().removeprefix("memory.")
        if operation not in MEMORY_OPERATIONS:
            expected = "read, write, search, list, or ingest"
            message = f'invalid spec.memory.allow: invalid memory operation "{value[:80]}": expected {expected}'
            raise refusal(message, expected=expected, path=(index,))
        operations.append(operation)
    return list(dict.fromkeys(operations))


_OPERATIONS_SCHEMA: Final = {
    "type": "array",
    "items": {
        "enum": [*MEMORY_OPERATIONS],
        MARK_ANY_CASE: [*MEMORY_OPERATIONS, *(f"memory.{each}" for each in MEMORY_OPERATIONS)],
    },
    MARK_ONE_OR_MANY: True,
}
MemoryOperations: TypeAlias = Annotated[
    list[str], ONE_OR_MANY, AfterValidator(_memory_operations), WithJsonSchema(_OPERATIONS_SCHEMA)
]


class AgentMemory(Model):
    """Which memory the agent has, and what it may do with it."""

    rules: ClassVar = (implies(given("allow"), given("ref")),)

    ref: Name = Field(default="", description="The Memory, in the agent's namespace.")
    allow: MemoryOperations = Field(
        default_factory=list[str], description="What the agent may do: read, write, search, list, ingest."
    )
    type: str = Field(default="", description="Kept for display.")
    provider: str = Field(default="", description="Kept for display.")

    def problems(self) -> Iterator[Problem]:
        if self.allow and not self.ref:
            yield problem("ref", message="{field} is required when spec.memory.allow is set")


class AgentExecution(Model):
    """How the agent's loop behaves."""

    rules: ClassVar = (implies(says("profile", "contract"), given("tool_sequence")),)

    profile: Annotated[Literal["dynamic", "contract"], ANY_CASE] = Field(
        default="dynamic", description="`contract` demands that every tool of tool_sequence was called."
    )
    tool_sequence: WordList = Field(
        default_factory=list[str], description="The tools that a contract demands, in any order."
    )
    required_output_markers: ExactList = Field(
        default_factory=list[str], description="Texts that the final answer must hold."
    )
    duplicate_tool_call_policy: Annotated[Literal["short_circuit", "deny", "allow"], ANY_CASE] = Field(
        default="short_circuit",
        description="A successful call again, with the same arguments: give the earlier result, refuse, or run it. "
        "Under a contract `deny` is a violation.",
    )
    on_contract_violation: Annotated[Literal["observe", "non_retryable_error"], ANY_CASE] = Field(
        default="non_retryable_error",
        description="Only record what a contract misses, at no further question, or end the run.",
    )
    tool_use_behavior: Annotated[Literal["run_llm_again", "stop_on_first_tool"], ANY_CASE] = Field(
        default="run_llm_again", description="Whether the model sees tool results, or the first result is the answer."
    )

    on_denied: Annotated[Literal["tell", "fail"], ANY_CASE] | None = Field(
        default=None,
        description="A call that was not permitted or not approved: tell the model (the default), or end the run.",
    )
    on_expiry: Annotated[Literal["tell", "fail"], ANY_CASE] | None = Field(
        default=None,
        description="A call that nobody approved in time: tell the model, or end the run; as on_denied when not given.",
    )

    budget_notes: bool | None = Field(
        default=None, description="Whether the model is told with each question how many of its steps are used."
    )

    def problems(self) -> Iterator[Problem]:
        if self.profile == "contract" and not self.tool_sequence:
            yield problem("tool_sequence", message="{field} is required when spec.execution.profile=contract")


class AgentLimits(Model):
    """How far one run may go. What is reached first ends it; what is not given is not limited."""

    max_steps: Count = Field(default=MAX_STEPS, description="Model answers in one run; 0 means the default of 10.")
    max_tokens: Positive | None = Field(default=None, description="Tokens in and out, over all answers of a run.")
    max_cost_usd: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="US dollars for answers of models."
    )
    max_tool_calls: Count | None = Field(default=None, description="Tool calls in one run; 0 allows none.")
    timeout: Timeout | None = Field(
        default=None, description="Time at work, such as 5m; not what is spent waiting for people."
    )

    def complete(self) -> None:
        self.max_steps = self.max_steps or MAX_STEPS


MOST_CALLS: Final = 1000
LONGEST_PROGRAM: Final = 3600.0


class AgentCode(Model):
    """How programs run that the agent writes with the tool `code`."""

    runs_in: Annotated[Literal["interpreter", "sandbox"], ANY_CASE] = Field(
        default="interpreter",
        description="`interpreter` has a part of Python and nothing outside; `sandbox` is all of Python, fenced.",
    )
    max_calls: Annotated[Positive, Field(le=MOST_CALLS)] = Field(
        default=100, description="Calls of tools that one program may make; at most 1000."
    )
    timeout: Timeout = Field(default="10s", description="How long a program may compute between two calls; at most 1h.")

    def problems(self) -> Iterator[Problem]:
        if seconds(self.timeout) > LONGEST_PROGRAM:
            yield problem("timeout", message="{field} must be at most 1h", expected="a duration up to 1h")


def _tool_choice(value: str) -> str:
    """One of three words in any case, or the name of a tool as it is."""
    word = value.lower()
    return word if word in TOOL_CHOICES else check_tool_name(value)


ToolChoice: TypeAlias = Annotated[
    str,
    AfterValidator(_tool_choice),
    WithJsonSchema({**TOOL_NAME_SCHEMA, "examples": [*TOOL_CHOICES, "search"]}),
]


class ModelSettings(Model):
    """Knobs that providers share; `extra` goes into the provider's request as it is."""

    max_output_tokens: Positive | None = Field(default=None, description="The longest answer, in tokens.")
    temperature: Annotated[float, Field(ge=0)] | None = Field(default=None, description="How freely the model chooses.")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="The share of likely words to use."
    )
    stop: ExactList = Field(default_factory=list[str], description="Texts at which the answer ends.")
    seed: Whole | None = Field(default=None, description="Asks the provider for repeatable answers.")
    reasoning_effort: Annotated[Effort, ANY_CASE] | None = Field(
        default=None, description="How long a reasoning model may think."
    )
    tool_choice: ToolChoice | None = Field(
        default=None,
        description="Whether the model may (auto), must not (none) or must (required) call a tool, or its name.",
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="Whether one answer may call several tools; the provider decides when not given."
    )
    strict_tools: bool | None = Field(
        default=None, description="Holds the model to the schemas of its tools, where the provider can."
    )
    extra: dict[str, Any] = Field(default_factory=dict[str, Any], description="The provider's own settings.")


def _source(value: str) -> str:
    """An absolute path without `..`, in one form."""
    if not value:
        return value
    if not value.startswith("/") or ".." in value.split("/") or not value.isprintable():
        raise refusal(f'invalid path "{value[:80]}": expected an absolute path', expected="an absolute path")
    return "/" + "/".join(part for part in value.split("/") if part not in ("", "."))


class AgentCompaction(Model):
    """The rules by which conversations of the agent are summarised."""

    max_tokens: Whole | None = Field(
        default=None,
        description="Above so many tokens it is, before the next question. When not given or 0, three quarters of the "
        "model's window, or 80000; a negative number switches that off.",
    )
    keep_tail: Count = Field(
        default=KEEP_TAIL, description="The newest messages that stay as they were said; 0 means the default of 20."
    )
    model: Ref = Field(
        default="", description="The ModelEndpoint that writes summaries, a fast one; the agent's own when not given."
    )

    def complete(self) -> None:
        self.keep_tail = self.keep_tail or KEEP_TAIL


class AgentInbox(Model):
    """The rules of the inboxes of the agent's sessions: what happens to messages that come while it works."""

    debounce: Duration | None = Field(
        default=None,
        description="The silence after which collected messages are answered, such as 2s; 500ms when not given, at "
        "most 1h.",
    )
    cap: Annotated[Positive, Field(le=LARGEST_CAP)] | None = Field(
        default=None, description="The most messages of a mode that wait; 20 when not given."
    )
    drop: Annotated[Literal["old", "new", "summarize"], ANY_CASE] | None = Field(
        default=None,
        description="What becomes of one more: the oldest is dropped (old), it is refused (new), or a line of the "
        "oldest stands before the next turn (summarize, when not given).",
    )

    def problems(self) -> Iterator[Problem]:
        if self.debounce is not None and seconds(self.debounce) > LONGEST_DEBOUNCE:
            yield problem("debounce", message="{field} must be at most 1h", expected="a duration up to 1h")


class AgentWorkspace(Model):
    """The folder that runs of the agent work on. Each has its own, kept with its journal."""

    access: Annotated[Literal["read_write", "read_only", "none"], ANY_CASE] = Field(
        default="read_write", description="What its tools may do with files there."
    )
    source: Annotated[str, AfterValidator(_source)] = Field(
        default="", description="A folder on the worker's machine that is copied when a run begins."
    )
    quota: Annotated[int, Field(gt=0, le=1024**4)] | None = Field(
        default=None, description="The most that its files may have, in bytes; 1 GiB when not given."
    )
    max_files: Annotated[int, Field(gt=0, le=1_000_000)] | None = Field(
        default=None, description="The most files and folders; 100,000 when not given."
    )
    mode: Annotated[Literal["run", "shared"], ANY_CASE] | None = Field(
        default=None,
        description="`run` for a folder of each run, `shared` for that of FOLIOT_WORKSPACE, of which nothing is kept; "
        "when not given, the shared one where there is one.",
    )

    data: Annotated[Literal["user", "none"], ANY_CASE] | None = Field(
        default=None,
        description="`user` keeps `data/` for each user over all sessions and runs; `none` keeps it with the run, as "
        "all else. When not given, `user`, but `none` for an agent with a source.",
    )

    def problems(self) -> Iterator[Problem]:
        if self.source and self.mode == "shared":
            yield problem("source", message="{field} is for a folder of each run, and spec.workspace.mode is shared")


HookPoint: TypeAlias = Annotated[
    Literal[
        "before_run",
        "after_run",
        "before_message",
        "after_message",
        "before_model",
        "after_model",
        "before_tool",
        "after_tool",
        "before_compaction",
        "after_compaction",
    ],
    ANY_CASE,
]
LONGEST_HOOK: Final = 300.0


class HookAddress(Model):
    """The server that a hook is asked at."""

    required: ClassVar = {"url": ""}

    url: Url = Field(default="", description="Acts are posted there as JSON; the answer says what is to be different.")
    secret_ref: SecretRef = Field(
        default="",
        serialization_alias="secretRef",
        description="The Secret that is sent along as a bearer token: [namespace/]name[:key], key `value`.",
    )


class AgentHook(Model):
    """Code that is asked before and after what runs of the agent do: of a plug-in, or behind an address."""

    required: ClassVar = {"name": ""}

    name: Name = Field(default="", description="How it is named in traces and errors.")
    points: list[HookPoint] = Field(
        default_factory=list[HookPoint],
        description="Where it is asked; all points of a plug-in's hook when not given.",
    )
    plugin: Name = Field(default="", description="A hook of an enabled plug-in, by its name.")
    http: HookAddress | None = Field(default=None, description="A server that is asked.")
    order: Whole = Field(default=100, description="Ascending; equal ones go by name.")
    timeout: Timeout = Field(default="5s", description="How long it may take; at most 5m.")
    on_failure: Annotated[Literal["ignore", "block", "abort"], ANY_CASE] = Field(
        default="ignore", description="When it fails or is late: skip it, refuse the act, or end the run."
    )

    def problems(self) -> Iterator[Problem]:
        if bool(self.plugin) == (self.http is not None):
            yield problem("plugin", message="{field} or http is required, and not both", expected="one of the two")
        if self.http is not None and not self.points:
            yield problem("points", message="{field} is required for a hook behind an address")
        if seconds(self.timeout) > LONGEST_HOOK:
            yield problem("timeout", message="{field} must be at most 5m", expected="a duration up to 5m")


class AgentSpec(Model):
    """The specification of an agent."""

    required: ClassVar = {"model_ref": ""}
    excused: ClassVar = {"model_ref": present("runner")}
    removed: ClassVar = {"model": "spec.model_ref"}
    rules: ClassVar = (implies(present("runner"), no(either(given("model_ref"), given("fallbacks")))),)

    model_ref: Ref = Field(default="", description="The ModelEndpoint to ask: name or namespace/name.")
    model_name: str = Field(default="", description="A model of that endpoint other than its default.")
    model_settings: ModelSettings = Field(default_factory=ModelSettings, description="How to ask the model.")
    fallbacks: RefList = Field(
        default_factory=list[str], description="ModelEndpoints to ask, in this order, when the first fails."
    )
    description: str = Field(default="", description="What the agent is for, in a sentence.")
    active: bool = Field(
        default=True, description="Whether it takes new work; what it has begun goes on, and what waits for it waits."
    )
    prompt: RawText = Field(default="", description="The instructions that stand before every conversation.")
    tools: ToolList = Field(
        default_factory=list[str],
        description="The tools the model may choose from: name or name@version (search@^1.2).",
    )
    allowed_tools: WordList = Field(
        default_factory=list[str], description="Tools that need no further permission or approval."
    )
    allowed_commands: ExactList = Field(
        default_factory=list[str],
        description="Shell commands that an execution policy lets through by its allowlist, such as `git log *`.",
    )
    roles: RefList = Field(default_factory=list[str], description="AgentRoles: name or namespace/name.")
    memory: AgentMemory = Field(default_factory=AgentMemory, description="What the agent remembers in.")
    skills: NameList = Field(
        default_factory=list[str],
        description="Skills, by name: its prompt says what each is for.",
    )
    execution: AgentExecution = Field(default_factory=AgentExecution, description="How its loop behaves.")
    limits: AgentLimits = Field(default_factory=AgentLimits, description="How far one run may go.")
    max_concurrency: Positive | None = Field(
        default=None, description="Runs of tasks that may be at work at once, over all workers; not limited without it."
    )
    code: AgentCode | None = Field(default=None, description="How programs of the tool `code` run.")
    delegation: Annotated[AgentDelegation | None, EVEN_EMPTY] = Field(
        default=None,
        description="How it gives tasks to copies of itself and to other agents, with the tool `delegate`.",
    )
    runner: AgentRunner | None = Field(
        default=None, description="A program that does the work of the agent, in the place of a model."
    )
    compaction: AgentCompaction | None = Field(
        default=None, description="When long conversations are summarised; by default when they outgrow the model."
    )
    inbox: AgentInbox | None = Field(
        default=None,
        description="What happens to messages that come while it works; the options of a session go before it.",
    )
    output_schema: JsonSchema = Field(
        default_factory=dict[str, Any], description="A JSON Schema that the final answer must satisfy."
    )
    workspace: AgentWorkspace | None = Field(
        default=None,
        description="The files that its runs work on: access, what they begin with, how much there may be.",
    )
    sandbox: SandboxSpec | None = Field(
        default=None,
        description="What is around commands and code that the agent writes (bash, python): network, mounts, limits.",
    )
    hooks: list[AgentHook] = Field(
        default_factory=list[AgentHook],
        description="What is asked before and after the acts of its runs, and of those of its delegates.",
    )
    execution_policy: ExecutionPolicy | None = Field(
        default=None, description="How programs of its runs are executed: what they may reach, and who is asked."
    )

    def _missing(self) -> Iterator[Problem]:
        return iter(()) if self.runner is not None else super()._missing()

    def problems(self) -> Iterator[Problem]:
        for field in ("model_ref", "fallbacks") if self.runner is not None else ():
            if getattr(self, field):
                hint = "leave one of the two out; spec.model_name is the model that the program is told to use"
                yield problem(field, message="{field} and spec.runner exclude each other", hint=hint)
        names = [each.name for each in self.hooks]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield problem("hooks", index, "name", message=f'{{field}} "{name}" is the name of another hook too')
        for field in ("image", "runtime"):
            if self.sandbox is not None and getattr(self.sandbox, field):
                hint = "spec.execution_policy.runtime_type has commands of an agent run in a container"
                yield problem("sandbox", field, message="{field} is only for Tools that run in a container", hint=hint)
        choice = self.model_settings.tool_choice
        names = [tool.partition("@")[0] for tool in self.tools]
        if choice is None or choice in TOOL_CHOICES or choice in names:
            return
        yield problem(
            "model_settings",
            "tool_choice",
            message=f'{{field}} "{choice[:80]}" is no tool of spec.tools',
            expected="auto, none, required, or the name of a tool in spec.tools",
            hint=suggestion(choice, [*TOOL_CHOICES, *names], "add it to spec.tools, or write required for any of them"),
        )


class Agent(Resource[AgentSpec, Status]):
    """One model-backed worker."""
