"""Tool: something a model can call, with what it does to the world and how it is contained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from foliot.common import durations
from foliot.resources import command_template
from foliot.resources.agreed import DANGEROUS, operation_classes
from foliot.resources.base import (
    Model,
    Resource,
    Status,
    both,
    either,
    fits,
    given,
    implies,
    no,
    present,
    problem,
    says,
    within,
)
from foliot.resources.definitions.sandbox import SandboxSpec, Variables, WorkspaceAccess
from foliot.resources.definitions.shapes import CallRetry, Dollars, OperationClass, RateLimit, ToolAuth
from foliot.resources.fields import (
    ANY_CASE,
    ANY_JSON_SCHEMA,
    MARK_ANY_CASE,
    MARK_EXACT,
    ONE_OR_MANY,
    Count,
    ExactList,
    Forgiving,
    JsonSchema,
    Name,
    NameList,
    RawText,
    Ref,
    StringMap,
    TextList,
    Timeout,
    WordList,
    as_whole,
    check_url,
    distinct,
    refusal,
)
from foliot.resources.problems import Problem

_SEMVER: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-((0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*))?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
_IMPORT_PATH: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_CATEGORY: Final = re.compile(r"[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?")
_HOST_PORT: Final = re.compile(r"([^\s/:]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
# The types of tools whose code runs in a fence of processes or in a container.
_FENCED: Final = frozenset({"cli", "function"})
_CALLED_BY_URL: Final = frozenset({"http", "external", "webhook-callback"})
_TOTAL: Final = "30s"
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OWN_HEADERS: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect", "keep-alive"}
)
_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE"})


def _semver(value: str) -> str:
    if len(value) > 256 or not _SEMVER.fullmatch(value):
        raise refusal(
            f'invalid {{field}} "{value[:80]}": expected a version such as 1.4.0', expected="a version such as 1.4.0"
        )
    return value


def _category(value: str) -> str:
    if not _CATEGORY.fullmatch(value):
        rule = "up to 63 lower-case letters, digits, '-', '_' or '.'"
        raise refusal(f'invalid {{field}} "{value[:80]}": expected {rule}', expected=rule)
    return value


def _import_path(value: str) -> str:
    if not _IMPORT_PATH.fullmatch(value):
        expected = "package.module:name"
        raise refusal(f'invalid {{field}} "{value[:80]}": expected {expected}', expected=expected)
    return value


def _raised(value: Any) -> Any:
    return value.strip().upper() if isinstance(value, str) else value


def _headers(headers: dict[str, str]) -> dict[str, str]:
    """Names that a header may have, and values that stay on their line. A value may be secret: it is never repeated."""
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            raise refusal(f'"{name[:80]}" is not the name of an HTTP header', path=(name,))
        if name.lower() in _OWN_HEADERS:
            raise refusal(f"{name} is set by Foliot itself", path=(name,))
        if not value.isprintable():
            raise refusal("the value of a header is one line of printable characters", path=(name,))
    return headers


def _requirements(values: list[str]) -> list[str]:
    for index, value in enumerate(values):
        kind, colon, name = value.partition(":")
        if colon and (kind not in ("tool", "capability", "secret") or not name.strip()):
            expected = "a tool's name, or tool:…, capability:… or secret:…"
            raise refusal("{field} does not say what is required", expected=expected, path=(index,))
    return values


Requirements: TypeAlias = Annotated[WordList, AfterValidator(_requirements)]
OperationClasses: TypeAlias = Annotated[list[OperationClass], ONE_OR_MANY, AfterValidator(distinct)]


SemVer: TypeAlias = Annotated[
    str, AfterValidator(_semver), WithJsonSchema({"type": "string", "pattern": rf"^\s*{_SEMVER.pattern}\s*$"})
]
# Arguments have names.
ArgumentsSchema: TypeAlias = Annotated[
    JsonSchema,
    WithJsonSchema({"type": "object", MARK_EXACT: {**ANY_JSON_SCHEMA, "properties": {"type": {"const": "object"}}}}),
]


class ToolTimeouts(Model):
    """How long a call may take, by scope."""

    attempt: Timeout | None = Field(default=None, description="One attempt; the whole call when not given.")
    total: Timeout | None = Field(default=None, description="The whole call with its retries: runtime.timeout.")
    idle: Timeout | None = Field(default=None, description="The longest silence of a tool that streams.")


class ToolRuntime(Model):
    """How a call is carried out."""

    timeout: Timeout = Field(default=_TOTAL, description="The whole call, with its retries.")
    timeouts: ToolTimeouts = Field(default_factory=ToolTimeouts, description="Limits for parts of a call.")
    isolation_mode: Annotated[Literal["none", "sandboxed", "container", "wasm"], ANY_CASE] | None = Field(
        default=None,
        description="What contains it: `wasm` for that type, `sandboxed` for high and critical risk, else `none`.",
    )
    retry: CallRetry = Field(default_factory=CallRetry, description="When a failed call is tried again.")

    def complete(self) -> None:
        if self.timeouts.total == self.timeout and "timeout" in self.model_fields_set:
            self.timeouts.total = None

    def problems(self) -> Iterator[Problem]:
        """`timeouts.total` is another way to say `timeout`; only the latter is kept, and counts as said."""
        if self.timeouts.total is not None and "timeout" not in self.model_fields_set:
            self.timeout, self.timeouts.total = self.timeouts.total, None
        if self.timeouts.total is not None:
            yield problem(
                "timeouts", "total", message="{field} says something else than runtime.timeout", hint="give one"
            )
        for scope in ("attempt", "idle"):
            value = getattr(self.timeouts, scope)
            if value is not None and durations.nanoseconds(value) > durations.nanoseconds(self.timeout):
                yield problem("timeouts", scope, message=f"{{field}} is longer than runtime.timeout ({self.timeout})")


class HttpRequest(Model):
    """The request that an `http` tool makes of its arguments.

    `{name}` in the endpoint's path and query, in a header or in a query value stands for that argument. Arguments that
    are used nowhere else make the body, or the query when there is no body.
    """

    rules: ClassVar = (implies(both(says("method", "GET", "HEAD"), given("body")), says("body", "none")),)

    method: Annotated[Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"], Forgiving(_raised, MARK_ANY_CASE)] = (
        Field(default="POST", description="The method.")
    )
    headers: Annotated[StringMap, AfterValidator(_headers)] = Field(
        default_factory=dict[str, str], description="More headers. Secrets belong into auth."
    )
    query: StringMap = Field(default_factory=dict[str, str], description="More values for the query.")
    body: Annotated[Literal["json", "form", "none"], ANY_CASE] | None = Field(
        default=None, description="How arguments travel: `json`; `none` for GET, HEAD and DELETE."
    )

    def complete(self) -> None:
        if self.body is None:
            self.body = "none" if self.method in _BODILESS else "json"

    def problems(self) -> Iterator[Problem]:
        if self.method in ("GET", "HEAD") and self.body != "none":
            yield problem("body", message=f"{{field}}: a {self.method} request has no body", expected="none")


class GrpcService(Model):
    """How the service of a `grpc` tool is reached."""

    plaintext: bool = Field(
        default=False, description="Call grpc://… without TLS although the service is on another machine."
    )


_DIGEST: Final = r"sha256:[0-9a-f]{64}"


def _digest(value: str) -> str:
    if not re.fullmatch(_DIGEST, value):
        expected = "sha256: and 64 hexadecimal digits in lower case"
        raise refusal(
            f'invalid {{field}} "{value[:80]}": expected {expected}', expected=expected, hint="sha256sum FILE"
        )
    return value


def _folders(folders: dict[str, str]) -> dict[str, str]:
    for inside, outside in folders.items():
        for path in (inside, outside):
            if not path.startswith("/") or ".." in path.split("/") or not path.isprintable():
                rule = "absolute paths without '..'"
                raise refusal(f"a folder is given by {rule}: /path/inside: /path/of/the/machine", path=(inside,))
    return folders


class WasmCode(Model):
    """The WebAssembly module of a `wasm` tool, and what it may use. `runtime.timeout` bounds its time."""

    required: ClassVar = {"digest": " (sha256:…): a module runs only as it was declared"}

    module: str = Field(
        default="",
        description="The file. A relative path is looked for in the folders of the setting wasm_modules; without one, "
        "the digits of the digest with .wasm.",
    )
    digest: Annotated[
        str, AfterValidator(_digest), WithJsonSchema({"type": "string", "pattern": rf"^\s*{_DIGEST}\s*$"})
    ] = Field(default="", description="What the file must be: sha256:…; a file that changed is refused.")
    entrypoint: str = Field(default="", description="The function to call: `run`, or `_start` where there is none.")
    max_memory_bytes: Annotated[int, Field(ge=65_536, le=4_294_967_296), BeforeValidator(as_whole)] = Field(
        default=67_108_864, description="How much memory it may have."
    )
    fuel: Count = Field(default=0, description="How many instructions a call may take; 0 for no bound but time.")
    wasi: bool = Field(
        default=True,
        description="Whether it has the functions of WASI preview 1: its streams, random bytes, a clock. Without, it "
        "imports nothing.",
    )
    folders: Annotated[StringMap, AfterValidator(_folders)] = Field(
        default_factory=dict[str, str],
        description="Folders of the machine that it may read, by their paths inside: /data: /srv/data.",
    )


class CliCommand(Model):
    """The program that a `cli` tool starts, in a sandbox and without a shell.

    `{name}` stands for that argument of the call. Each element is one argument of the program: a value can neither add
    another nor become an option.
    """

    required: ClassVar = {"command": ""}

    command: TextList = Field(
        default_factory=list[str],
        description="The program, and its arguments; options as --name={argument}.",
    )
    stdin: RawText = Field(
        default="", description="Standard input: a text with {name} in it, or `json` for all arguments as JSON."
    )
    output: Annotated[Literal["text", "json"], ANY_CASE] = Field(
        default="text", description="What the program prints: text, or JSON that is checked."
    )
    workspace: WorkspaceAccess = Field(
        default="none", description="Whether the program sees the workspace, at /workspace."
    )
    env: Variables = Field(
        default_factory=dict[str, str],
        description="Variables for the program. Never a credential: it could print them.",
    )

    def problems(self) -> Iterator[Problem]:
        for place, message in command_template.wrong_elements(self.command):
            yield problem("command", place, message=message)
        if len(self.command) == 1 and len(words := self.command[0].split()) > 1:
            yield problem(
                "command",
                message="{field} is one text, which would be the name of one program: no shell takes it apart",
                expected=f"a list: [{', '.join(words)}]"[:200],
            )


_CATEGORY_SCHEMA: Final = {"type": "string", "pattern": r"^\s*[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\s*$"}
_PATH_SCHEMA: Final = {"type": "string", "pattern": rf"^\s*{_IMPORT_PATH.pattern}\s*$"}
_BY_URL: Final = either(no(given("type")), says("type", "http", "external", "webhook-callback"))
_GRPC_TARGET: Final = r"^\s*(grpcs?://)?([^\s/:]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}\s*$"


class ToolSpec(Model):
    """The specification of a tool."""

    rules: ClassVar = (
        implies(says("type", "mcp"), given("mcp_server_ref", "mcp_tool_name")),
        implies(says("type", "function"), given("function")),
        implies(given("function"), says("type", "function")),
        implies(both(present("http"), given("type")), says("type", "http")),
        implies(present("grpc"), says("type", "grpc")),
        implies(present("wasm"), says("type", "wasm")),
        implies(says("type", "cli"), present("cli")),
        implies(present("cli"), says("type", "cli")),
        implies(present("sandbox"), says("type", "cli", "function")),
        no(both(present("sandbox"), within("runtime", says("isolation_mode", "none", "wasm")))),
        implies(both(given("endpoint"), _BY_URL), fits("endpoint", r"^\s*[Hh][Tt][Tt][Pp][Ss]?://[^\s/:@?#]")),
        implies(both(given("endpoint"), says("type", "grpc")), fits("endpoint", _GRPC_TARGET)),
    )

    type: Annotated[
        Literal["http", "external", "grpc", "queue", "webhook-callback", "mcp", "wasm", "function", "cli"],
        ANY_CASE,
    ] = Field(default="http", description="How the tool is reached.")
    version: SemVer = Field(default="0.1.0", description="The tool's own version (semantic versioning).")
    category: Annotated[str, ANY_CASE, AfterValidator(_category), WithJsonSchema(_CATEGORY_SCHEMA)] = Field(
        default="uncategorised", description="The group by which roles may allow tools."
    )
    description: str = Field(default="", description="What the model is told of it.")
    endpoint: str = Field(default="", description="A URL; host:port for grpc; a subject for queue.")
    function: Annotated[str, AfterValidator(_import_path), WithJsonSchema(_PATH_SCHEMA)] = Field(
        default="", description="The Python function of a `function` tool: package.module:name."
    )
    http: HttpRequest | None = Field(default=None, description="The request of an `http` tool; a POST of JSON.")
    grpc: GrpcService | None = Field(default=None, description="How the service of a `grpc` tool is reached.")
    wasm: WasmCode | None = Field(default=None, description="The module of a `wasm` tool.")
    cli: CliCommand | None = Field(default=None, description="The program of a `cli` tool, which runs in a sandbox.")
    sandbox: SandboxSpec | None = Field(
        default=None, description="The fence around a `cli` or `function` tool: network, secrets, mounts, limits."
    )
    input_schema: ArgumentsSchema = Field(
        default_factory=dict[str, Any], description="The JSON Schema of the arguments, given to the model."
    )
    mcp_server_ref: Ref = Field(default="", description="The McpServer of an `mcp` tool.")
    mcp_tool_name: str = Field(default="", description="The tool's name on that server.")
    effect: Annotated[Literal["read", "idempotent", "once"], ANY_CASE] = Field(
        default="once",
        description="What a second execution would do: nothing (`read`), the same (`idempotent`), or harm (`once`).",
    )
    on_unknown: Annotated[Literal["ask", "fail", "retry"], ANY_CASE] = Field(
        default="ask",
        description="When nobody knows whether a `once` call took effect, after a crash or a time-out.",
    )
    capabilities: WordList = Field(default_factory=list[str], description="What roles must grant to use it.")
    operation_classes: OperationClasses = Field(
        default_factory=list[Literal["read", "write", "delete", "admin"]],
        description="What it does: read, write, delete, admin. By default `read` for `effect: read` of low or medium "
        "risk, else `write`.",
    )
    risk_level: Annotated[Literal["low", "medium", "high", "critical"], ANY_CASE] = Field(
        default="low", description="How much harm a wrong call could do."
    )
    requires: Requirements = Field(
        default_factory=list[str],
        description="What must be available with it: a tool, or tool:…, capability:…, secret:….",
    )
    requires_prior: NameList = Field(
        default_factory=list[str], description="Tools that must have succeeded earlier in the same run."
    )
    after: NameList = Field(
        default_factory=list[str], description="Tools that run before it when a model asks for both at once."
    )
    resource_keys: ExactList = Field(
        default_factory=list[str],
        description="What a call touches, such as file:{path}: calls that share a key do not run side by side.",
    )
    on_dependency_failure: Annotated[Literal["fail", "run"], ANY_CASE] | None = Field(
        default=None, description="When a tool that it comes after has failed: fail (the default), or run all the same."
    )
    deprecated_since: SemVer = Field(default="", description="The version since which it should not be used.")
    replaced_by: str = Field(default="", description="The tool that should be used instead.")
    record: Annotated[Literal["best_effort", "required"], ANY_CASE] | None = Field(
        default=None, description="`required` refuses a call that cannot be recorded; `best_effort` when not given."
    )
    rate_limit: RateLimit | None = Field(default=None, description="How often it may be called.")
    price_usd: Dollars = Field(default="", description="What each call costs, in US dollars; counted by Budgets.")
    runtime: ToolRuntime = Field(default_factory=ToolRuntime, description="How a call is carried out.")
    auth: ToolAuth = Field(default_factory=ToolAuth, description="How the tool is told who calls.")

    def complete(self) -> None:
        dangerous = self.risk_level in DANGEROUS
        if not self.operation_classes:
            self.operation_classes = list(operation_classes(self.effect, self.risk_level))
        if self.runtime.isolation_mode is None:
            # A module is contained by what runs it, and a program never without a fence.
            contained = "sandboxed" if dangerous or self.type == "cli" or self.sandbox is not None else "none"
            if self.sandbox is not None and (self.sandbox.image or self.sandbox.runtime):
                contained = "container"
            self.runtime.isolation_mode = "wasm" if self.type == "wasm" else contained

    def problems(self) -> Iterator[Problem]:
        if self.type == "mcp":
            for field in ("mcp_server_ref", "mcp_tool_name"):
                if not getattr(self, field):
                    yield problem(field, message="{field} is required when spec.type=mcp")
        if self.type == "function" and not self.function:
            yield problem("function", message="{field} is required when spec.type=function")
        elif self.function and self.type != "function":
            yield problem("function", message="{field} is only for spec.type=function")
        if self.http is not None and self.type != "http":
            yield problem("http", message="{field} is only for spec.type=http")
        if self.grpc is not None and self.type != "grpc":
            yield problem("grpc", message="{field} is only for spec.type=grpc")
        if self.wasm is not None and self.type != "wasm":
            yield problem("wasm", message="{field} is only for spec.type=wasm")
        yield from self._wrong_command()
        yield from self._wrong_sandbox()
        if self.input_schema.get("type", "object") != "object":
            yield problem("input_schema", "type", message="{field} must be object: arguments have names")
        yield from self._wrong_endpoint()

    def _wrong_command(self) -> Iterator[Problem]:
        if self.cli is None:
            if self.type == "cli":
                yield problem("cli", message="{field} is required when spec.type=cli")
            return
        if self.type != "cli":
            yield problem("cli", message="{field} is only for spec.type=cli")
        elif self.runtime.isolation_mode == "none":
            yield problem(
                "runtime",
                "isolation_mode",
                message="{field}: a program of a `cli` tool is always contained",
                expected="sandboxed",
            )
        known = self.input_schema.get("properties")
        for place, element in enumerate(self.cli.command):
            for name in command_template.placeholders(element):
                if isinstance(known, dict) and name not in known:
                    message = f"{{field}} names the argument {name!r}, which is not in spec.input_schema"
                    hint = f"write {{{{{name}}}}} for the text {{{name}}} itself"
                    yield problem("cli", "command", place, message=message, hint=hint)

    def _wrong_sandbox(self) -> Iterator[Problem]:
        if self.sandbox is None:
            return
        mode = self.runtime.isolation_mode
        if self.type not in _FENCED:
            yield problem("sandbox", message="{field} is only for spec.type=cli and spec.type=function")
        elif mode not in ("sandboxed", "container"):
            message = f"{{field}}: a tool that runs {mode!r} has no sandbox"
            yield problem("sandbox", message=message, hint="set spec.runtime.isolation_mode: sandboxed")
        elif mode == "sandboxed" and (self.sandbox.image or self.sandbox.runtime):
            field = "image" if self.sandbox.image else "runtime"
            hint = "set spec.runtime.isolation_mode: container"
            yield problem("sandbox", field, message="{field} is only for a tool that runs in a container", hint=hint)
        if self.cli is None:
            return
        if self.sandbox.workspace and self.cli.workspace not in ("none", self.sandbox.workspace):
            message = "{field} says something else than cli.workspace"
            yield problem("sandbox", "workspace", message=message, hint="give one")
        for name in self.sandbox.env.keys() & self.cli.env.keys():
            yield problem("sandbox", "env", name, message=f"the variable {name} is given twice", hint="give one")

    def _wrong_endpoint(self) -> Iterator[Problem]:
        """An address may hold a password, so it is never repeated."""
        if not self.endpoint:
            return
        if self.type in _CALLED_BY_URL:
            try:
                _check_endpoint(self.endpoint)
            except ValueError:
                expected = "http://… or https://…"
                yield problem("endpoint", message=f"{{field}} must be a URL: expected {expected}", expected=expected)
        elif self.type == "grpc":
            target = self.endpoint.removeprefix("grpc://").removeprefix("grpcs://")
            match = _HOST_PORT.fullmatch(target)
            if match is None or not 0 < int(match[2]) < 65536:
                yield problem("endpoint", message="{field} must be host:port when spec.type=grpc", expected="host:port")


_check_endpoint = check_url("http", "https")


class Tool(Resource[ToolSpec, Status]):
    """A tool that a model can call."""

    def problems(self) -> Iterator[Problem]:
        for field in ("requires_prior", "after"):
            names: list[Name] = getattr(self.spec, field)
            if self.metadata.name in names:
                place = names.index(self.metadata.name)
                yield problem("spec", field, place, message="a tool cannot wait for itself")
