"""The seam to tools: one governed call, one result.

A tool failure is data (`ToolResult.error`) and goes back to the model. Only what is broken in Foliot itself is raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from foliot.common.durations import LONGEST_SECONDS
from foliot.errors import FoliotError, InvalidInput
from foliot.kernel.backoff import RetryPolicy
from foliot.kernel.execution import ExecutionPolicy
from foliot.kernel.graph.plan import MOST_ATTEMPTS
from foliot.kernel.identity import Identity
from foliot.kernel.messages import ToolResult
from foliot.kernel.run.events import UnknownReason
from foliot.resources.agreed import operation_classes

Effect: TypeAlias = Literal["read", "idempotent", "once"]
OnUnknown: TypeAlias = Literal["ask", "fail", "retry"]
OnOutput: TypeAlias = Callable[[str], None]


class MayAct(Protocol):
    """Whether whoever makes a call still has the right to."""

    def holds(self) -> bool:
        """Whether that is certain without asking anybody. From any thread."""
        ...

    async def __call__(self) -> bool:
        """Asked after a wait and before an act."""
        ...


class Caller(Struct, frozen=True, gc=False):
    """The identity on whose behalf a call is made. The runtime fills this in; nothing a model writes ever reaches it.

    `allowed_tools` need no further permission; `advertised` are the tools this run was given (None: no run, no list).
    `user`, `by`, `via` and `ordered_by` are those of `Identity`. `ancestors` are the agents above this one, the
    outermost first. `told_by` have told the run what to do since it began.
    It is done under a `task` and its `template` (the Task it was made after), as `namespace/name`, and a `system`.
    `execution` is the execution policy of the run, in normal form; None where none was declared. `allowed_commands` are
    commands for shells that are on the agent's list besides its `allowed_tools`. `sandbox` is what the agent asks of
    the fence around commands and code that it writes; see tools/declared_fences.py. `excluded_tools` are what this run
    may not have, nor any run that it delegates to.
    """

    namespace: str = "default"
    agent: str = ""
    roles: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] = ()
    advertised: frozenset[str] | None = None
    model: str = ""
    task: str = ""
    system: str = ""
    user: str = ""
    depth: int = 0
    by: str = ""
    via: str = ""
    ancestors: tuple[str, ...] = ()
    template: str = ""
    told_by: tuple[str, ...] = ()
    ordered_by: tuple[str, ...] = ()
    execution: ExecutionPolicy | None = None
    allowed_commands: tuple[str, ...] = ()
    sandbox: Mapping[str, Any] = {}
    excluded_tools: tuple[str, ...] = ()

    @property
    def identity(self) -> Identity:
        """The identity of the run that calls."""
        return Identity(self.user, self.by, self.via, self.ordered_by)

    @property
    def people(self) -> tuple[str, ...]:
        """Everybody who has a part in what is asked for."""
        return (*self.identity.people, *(name for name in self.told_by if name))


class Invocation(Struct, frozen=True, gc=False):
    """One call as a tool receives it. `arguments` are parsed and were checked against the tool's schema.

    `idempotency_key` is the same for every attempt of the same call, across crashes and machines: a backend that
    remembers it can make a `once` tool safe to repeat. `grant` is the id of the approval it was given; `prior` are the
    tools that succeeded before in the same run; `deadline` is in seconds since 1970. `version` and `schema_digest` are
    what the run was locked to when it began; empty for a caller that has no lock. `trace` is the context of what the
    call begins elsewhere, in the form of `traceparent`, and `trace_id` its trace; both empty when nobody traces.
    `standing` is the standing grant that the call rests on, and who gave it. `ambiguity` is what only the text of the
    arguments shows to be wrong, such as a name that stands twice: then the call is refused.
    """

    run_id: str
    call_id: str
    tool: str
    arguments: dict[str, Any]
    idempotency_key: str
    caller: Caller = Caller()
    step: int = 0
    attempt: int = 1
    grant: str = ""
    prior: frozenset[str] = frozenset()
    deadline: float | None = None
    trace_id: str = ""
    version: str = ""
    schema_digest: str = ""
    trace: str = ""
    standing: tuple[str, str] = ("", "")
    ambiguity: str = ""

    @property
    def origin(self) -> tuple[str, str]:
        """The run and the call that its key is of: its own, or those of the earlier call that it stands for."""
        if self.idempotency_key in ("", f"{self.run_id}/{self.call_id}"):
            return self.run_id, self.call_id
        run_id, slash, call_id = self.idempotency_key.partition("/")
        return (run_id, call_id) if slash else (self.run_id, self.call_id)

    @property
    def namespace(self) -> str:
        return self.caller.namespace

    @property
    def agent(self) -> str:
        return self.caller.agent


# A tool that declares nothing is called once; one that declares attempts alone waits by these.
NO_RETRY = RetryPolicy(max_backoff=30.0, jitter="none")


def check_seconds(field: str, value: float | None, *, least: float = 0.0) -> None:
    """Raises `InvalidInput` for a length of time that makes no sense, with the field and its bounds."""
    if value is not None and not least <= value <= LONGEST_SECONDS:
        raise InvalidInput(f"{field} must be from {least:g} to {LONGEST_SECONDS:.0f} seconds, not {value!r}")


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`requests` in each `per` seconds, `burst` at once, `concurrency` at the same time. None: no limit."""

    requests: int | None = None
    per: float = 60.0
    burst: int | None = None
    concurrency: int | None = None


# How the keys of files begin, among the resource keys of a tool.
FILE_KEYS: Final = "file:"


@dataclass(frozen=True, slots=True)
class AuthSpec:
    """How a tool is told who calls. The secret itself is looked up when the call is made, and never kept."""

    profile: Literal["bearer", "api_key_header", "basic", "oauth2_client_credentials"]
    secret_ref: str
    header_name: str = ""
    token_url: str = ""
    scopes: tuple[str, ...] = ()
    # The hosts that it goes to, which the Secret must be bound to; None when the operator declared the tool.
    hosts: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """The declaration of a tool. `schema` is a JSON Schema (2020-12) of the arguments, or None.

    `timeout` bounds the whole call with its retries, `attempt_timeout` each attempt, `idle_timeout` the silence of a
    tool that streams; in seconds, None for no bound. `type` and `isolation` choose the backend; `options` are what only
    that backend understands, by its name (`http`).
    `resource_keys` name what a call touches, such as `file:{path}` with an argument in braces: calls that share a key
    run one after another unless all of them only read. `record: required` refuses a call that cannot be recorded.
    `on_dependency_failure: run` runs a call although one that it comes `after` has failed. `deprecated_since` is the
    version since which another tool, `replaced_by`, should be used.
    `ends_run`: a result of this tool that is no failure is the answer of the run. `breaker: False` for a tool whose
    failures say nothing of its health, because each call goes to a place of its own (any file, any web address).
    `price` is what each attempt costs, in millionths of a US dollar. `other_names` are those that the same tool goes
    by: a rule about one of them is about it.
    `executes`: the tool runs programs or code that somebody gives it, although neither its type nor its isolation says
    so. `command_argument` is the argument that holds a shell command. `workspace` is what a tool does itself with files
    of the workspace, outside of any fence. `repeats`: the same call again means something else, because it works on
    what other calls change; it is made again, however often it succeeded before, unless the agent denies repeats.
    """

    name: str
    description: str = ""
    schema: Mapping[str, Any] | None = None
    effect: Effect = "once"
    on_unknown: OnUnknown = "ask"
    timeout: float | None = 30.0
    version: str = "0.1.0"
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    namespace: str = "default"
    type: str = "function"
    endpoint: str = ""
    isolation: str = "none"
    category: str = "uncategorised"
    risk: Literal["low", "medium", "high", "critical"] = "low"
    capabilities: tuple[str, ...] = ()
    operation_classes: tuple[str, ...] | None = None
    requires: tuple[str, ...] = ()
    requires_prior: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    resource_keys: tuple[str, ...] = ()
    on_dependency_failure: Literal["fail", "run"] = "fail"
    deprecated_since: str = ""
    replaced_by: str = ""
    record: Literal["best_effort", "required"] = "best_effort"
    attempt_timeout: float | None = None
    idle_timeout: float | None = None
    retry: RetryPolicy = NO_RETRY
    rate_limit: RateLimit | None = None
    auth: AuthSpec | None = None
    ends_run: bool = False
    breaker: bool = True
    price: int = 0
    other_names: tuple[str, ...] = ()
    executes: bool = False
    command_argument: str = ""
    workspace: Literal["none", "read_only", "read_write"] = "none"
    repeats: bool = False
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        """Raises `InvalidInput`."""
        for name in ("timeout", "attempt_timeout", "idle_timeout"):
            check_seconds(f"tool {self.name!r}: {name}", getattr(self, name))
        if not 1 <= (most := self.retry.max_attempts) <= MOST_ATTEMPTS:
            field = f"tool {self.name!r}: retry.max_attempts"
            raise InvalidInput(f"{field} must be from 1 to {MOST_ATTEMPTS}, not {most!r}")
        for name in ("backoff", "max_backoff"):
            check_seconds(f"tool {self.name!r}: retry.{name}", getattr(self.retry, name))
        if self.price < 0:
            raise InvalidInput(f"tool {self.name!r}: price must be 0 or more, not {self.price!r}")

    @property
    def classes(self) -> tuple[str, ...]:
        """Returns the classes by which operation rules decide: the declared ones, else those of its effect and risk."""
        return operation_classes(self.effect, self.risk) if self.operation_classes is None else self.operation_classes

    @property
    def fence_access(self) -> Literal["none", "read_only", "read_write"]:
        """The access that the fence of a call has to the files of its run, whatever its author says of the tool."""
        return getattr(self.options.get("sandbox"), "workspace", "none")

    @property
    def touches_files(self) -> bool:
        """Whether a call may see the files of its run, or change them: by its fence, or by what it declares."""
        return self.fence_access != "none" or self._declares_files

    @property
    def changes_files(self) -> bool:
        """Whether a call may change the files of its run."""
        return self.fence_access == "read_write" or (self.effect != "read" and self._declares_files)

    @property
    def _declares_files(self) -> bool:
        return self.workspace != "none" or any(key.startswith(FILE_KEYS) for key in self.resource_keys)

    @property
    def runs_programs(self) -> bool:
        """Whether a call runs a program, or code: what `security` of an execution policy is about.

        A tool of an MCP server counts, because the server may be a program and nothing here says whether it is.
        """
        return self.executes or self.isolation != "none" or self.type in ("cli", "mcp")


class Tool(Protocol):
    """One backend behind one name."""

    @property
    def definition(self) -> ToolDefinition: ...

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """Do it. The value becomes the result: text as it is, `Text`/`Media` parts as parts, anything else as JSON.

        Raises `ToolError` to say precisely what went wrong; any other exception counts as `execution_failed`.
        """
        ...


class Asks(Protocol):
    """A tool whose result is what a person says. Its run waits for that without holding anything."""

    def question(self, call: Invocation) -> Question:
        """Returns the question to a person. Raises `ToolArgumentsInvalid`."""
        ...


class Admitted(Protocol):
    """A call that passed every gate. Nothing has acted yet."""

    async def run(self, *, on_output: OnOutput | None = None, may_act: MayAct | None = None) -> ToolResult:
        """Act. Exactly one result, whatever happens; raises only `asyncio.CancelledError`.

        `may_act` is asked before each further attempt, and after waiting for a turn: the answer no ends the call.
        """
        ...


class Question(Struct, frozen=True):
    """A question of a tool to a person. After `seconds` without an answer it is `default`, if any, or a failure.

    `client`: the program that began the run is asked instead.
    """

    text: str
    choices: tuple[str, ...] = ()
    default: str | None = None
    seconds: float | None = None
    client: bool = False


class Parked(Struct, frozen=True):
    """A call that a person has a say in first. `digest` names the arguments that it is about.

    With a `question` everything has allowed the call, and the answer is its result; otherwise consent is asked for.
    """

    approval_id: str
    digest: str
    reason: str
    approvers: tuple[str, ...] = ()
    expires_at: float | None = None
    question: Question | None = None
    required: int = 1
    four_eyes: bool = False


class Toolbox(Protocol):
    """All tools that one runtime can call, behind the one pipeline.

    A call has two halves, so that its start can be made durable between them: `admit` decides and has no effect,
    `Admitted.run` acts.
    """

    def definition(self, name: str) -> ToolDefinition | None: ...

    async def admit(self, call: Invocation) -> Admitted | Parked | ToolResult:
        """The call, ready to act; the question that has to be answered first; or the result that refuses it.

        Raises `Unavailable` for a call of a run when what governs it cannot be looked up now: nothing was decided then,
        and whoever drives the run asks again.
        """
        ...


@runtime_checkable
class KeepsRecords(Protocol):
    """A toolbox that keeps a record of every call that is refused."""

    async def refused(self, call: Invocation, result: ToolResult) -> None:
        """Keep the record of a call that was refused before it came here. Never raises."""
        ...


class CheckedOutput(Struct, frozen=True):
    """The verdict of a Python type on an answer: its `value` as JSON, or the `problems` with it."""

    value: Any = None
    problems: Sequence[str] = ()


OutputCheck: TypeAlias = Callable[[str, str, float | None], Awaitable[CheckedOutput]]
"""Looks at the answer of a run, by its id and the text, within so many seconds. Never raises, but when cancelled."""


@runtime_checkable
class ChecksOutput(Protocol):
    """A toolbox of runs whose answers have more to fit than a schema."""

    @property
    def output_check(self) -> OutputCheck | None: ...


class ApprovalNeeded(Exception):
    """Raised by a gate: the call is neither refused nor allowed yet. Not an error; `parked` is what is asked."""

    def __init__(self, parked: Parked) -> None:
        super().__init__(parked.reason)
        self.parked = parked


class ToolError(FoliotError):
    """A tool call that did not succeed. `code` and `reason` are stable; `kind` is what retries and repairs go by.

    ToolError                  execution_failed / tool_backend_failure
    ├── ToolArgumentsInvalid   invalid_input / tool_invalid_input: the model can put it right
    ├── ToolUnsupported        unsupported_tool / tool_unsupported: no such tool, or no backend for its type
    ├── ToolPolicyInvalid      runtime_policy_invalid: the declaration itself cannot be carried out
    ├── ToolIsolationMissing   isolation_unavailable: never a weaker sandbox instead
    ├── ToolDenied             permission_denied: a rule says no; `details` name the layer and the rule
    ├── ToolSecretMissing      secret_resolution_failed
    ├── ToolAuthInvalid        auth_invalid: the tool's own server does not accept the credentials (401)
    ├── ToolAuthForbidden      auth_forbidden (403)
    ├── ToolPrecondition       invalid_input, kind precondition_failed or dependency_failed: something must come first
    ├── ToolVersionMismatch    unsupported_tool, kind version_mismatch: not the tool the run was locked to
    ├── ToolTimeout            timeout
    ├── ToolCancelled          canceled
    ├── ToolRateLimited        execution_failed, kind rate_limited; `retry_after` in seconds
    ├── ToolAnswerLost         execution_failed: there was an answer, and it cannot be read
    └── ToolUnreachable        execution_failed, kind network
        └── ToolCircuitOpen    kind circuit_open: it failed so often that it is left alone for `retry_after` seconds

    `before_effect` is set when the failure certainly came before the tool could act (a refused connection, a full
    rate limit): only then may a `once` call be tried again. `lost` says that the tool itself has not told how the call
    ended: it ran out of time, was cancelled, or its answer did not arrive. What is lost and not `before_effect` may
    have acted. `still_running` is set when the tool was told to end and has not been seen to: it may act even now.
    """

    code: ClassVar[str] = "execution_failed"
    reason: ClassVar[str] = "tool_backend_failure"
    kind: ClassVar[str] = "external"
    status: ClassVar[Literal["error", "denied"]] = "error"
    http = 502
    retryable = True
    retry_after: float | None = None
    before_effect: bool = False
    still_running: bool = False
    lost: bool = False

    @property
    def unknown(self) -> UnknownReason | None:
        """Why nobody knows whether the tool has acted; None when it has said so, or certainly has not."""
        if self.before_effect or not self.lost:
            return None
        return _UNKNOWN.get(self.kind, "connection_lost")


_UNKNOWN: Mapping[str, UnknownReason] = {"timeout": "timeout", "cancelled": "cancelled", "internal": "broken"}


@contextmanager
def before_effect() -> Generator[None]:
    """Around what is checked and prepared before a call leaves: what fails in there cannot have acted."""
    try:
        yield
    except ToolError as error:
        error.before_effect = True
        raise
    except FoliotError as error:  # a store or a server of messages that is away
        failure = ToolError(error.message, hint=error.hint, retryable=error.retryable)
        failure.before_effect = True
        raise failure from error


class ToolArgumentsInvalid(ToolError):
    code, reason, kind = "invalid_input", "tool_invalid_input", "invalid_arguments"
    retryable = False


class ToolUnsupported(ToolError):
    code, reason, kind = "unsupported_tool", "tool_unsupported", "unknown_tool"
    retryable = False


class ToolPolicyInvalid(ToolError):
    code, reason, kind = "runtime_policy_invalid", "tool_runtime_policy_invalid", "policy_denied"
    retryable = False


class ToolIsolationMissing(ToolError):
    code, reason, kind = "isolation_unavailable", "tool_isolation_unavailable", "policy_denied"
    http, exit_code = 403, 6
    retryable = False


class ToolDenied(ToolError):
    code, reason, kind = "permission_denied", "tool_permission_denied", "denied"
    status = "denied"
    http = 403
    retryable = False


class ToolSecretMissing(ToolError):
    code, reason, kind = "secret_resolution_failed", "tool_secret_resolution_failed", "internal"
    retryable = False


class ToolAuthInvalid(ToolError):
    code, reason, kind = "auth_invalid", "tool_auth_invalid", "permission"
    retryable = False


class ToolAuthForbidden(ToolError):
    code, reason, kind = "auth_forbidden", "tool_auth_forbidden", "permission"
    retryable = False


class ToolPrecondition(ToolError):
    code, reason, kind = "invalid_input", "tool_precondition_failed", "precondition_failed"
    http = 409
    retryable = False


class ToolDependencyFailed(ToolPrecondition):
    kind = "dependency_failed"


class ToolVersionMismatch(ToolError):
    code, reason, kind = "unsupported_tool", "tool_version_mismatch", "version_mismatch"
    retryable = False


class ToolTimeout(ToolError):
    code, reason, kind = "timeout", "tool_execution_timeout", "timeout"
    retryable = True
    lost = True


class ToolCancelled(ToolError):
    code, reason, kind = "canceled", "tool_execution_canceled", "cancelled"
    retryable = False
    lost = True


class ToolRateLimited(ToolError):
    kind = "rate_limited"
    retryable = True
    before_effect = True


class ToolUnreachable(ToolError):
    kind = "network"
    retryable = True
    lost = True


class ToolAnswerLost(ToolError):
    lost = True


class ToolCircuitOpen(ToolUnreachable):
    kind = "circuit_open"
    before_effect = True
