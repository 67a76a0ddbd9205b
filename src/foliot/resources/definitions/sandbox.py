"""Sandbox fields: what a tool, a tool server or an external agent asks of its fence, and the most that a policy allows.

`SandboxSpec` is what is asked for; `SandboxCeiling` takes away. `tools/declared_fences.py` makes of them what
`tools/fences.py` opens. Without `network` there is no network, without `mounts` no file of the machine is seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from foliot.common import hosts as host_names
from foliot.common import sizes
from foliot.common.mounts import target_problems
from foliot.common.suggestions import suggestion
from foliot.common.variables import SECRET_VARIABLE, secret_variable_problem
from foliot.resources.base import Model, problem
from foliot.resources.fields import (
    ANY_CASE,
    ONE_OR_MANY,
    Positive,
    SecretRef,
    StringMap,
    as_whole,
    distinct,
    refusal,
)
from foliot.resources.problems import Problem

WorkspaceAccess: TypeAlias = Annotated[Literal["none", "read_only", "read_write"], ANY_CASE]
# The names of `sandbox.base.FEATURES`.
Feature: TypeAlias = Annotated[
    Literal[
        "filesystem", "network", "processes", "user", "seccomp", "landlock", "memory", "pids", "cpu", "cpu_seconds",
        "file_size", "tmp_size", "open_files", "owner",
    ],
    ANY_CASE,
]  # fmt: skip

_VARIABLE: Final = r"[A-Za-z_][A-Za-z0-9_]{0,127}"
# The methods that rules are about: of HTTP, of its registered extensions (WebDAV, CalDAV, versions), and of caches and
# UPnP. Not TRACE, which sends back what the broker put in, and CONNECT, which would be a tunnel in a tunnel.
METHODS: Final = (
    "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "QUERY",
    "PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "SEARCH", "ACL", "BIND", "REBIND", "UNBIND",
    "MKCALENDAR", "MKREDIRECTREF", "UPDATEREDIRECTREF", "ORDERPATCH", "REPORT", "LINK", "UNLINK",
    "BASELINE-CONTROL", "CHECKIN", "CHECKOUT", "LABEL", "MERGE", "MKACTIVITY", "MKWORKSPACE", "UNCHECKOUT", "UPDATE",
    "VERSION-CONTROL", "PURGE", "M-SEARCH", "NOTIFY", "SUBSCRIBE", "UNSUBSCRIBE",
)  # fmt: skip
_PATH: Final = r"/[^\x00-\x1f]*"
_IMAGE: Final = r"([A-Za-z0-9][A-Za-z0-9._:/-]{0,255}@)?sha256:[0-9a-f]{64}"
# The least that makes sense, as the sandbox itself holds it.
LEAST: Final = {"memory": 16 * 1024**2, "tmp_size": 4 * 1024, "file_size": 1, "output": 0, "open_files": 16}


def _size(value: Any) -> Any:
    value = as_whole(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return value
    try:
        return sizes.canonical(sizes.bytes_of(value))
    except ValueError as error:
        raise refusal(f'invalid {{field}} "{value[:40]}": {error}', expected="a size such as 512Mi") from None


def _host_patterns(values: list[str]) -> list[str]:
    found: list[str] = []
    for index, value in enumerate(values):
        if not value:
            continue
        host = host_names.normal_pattern(value)
        if host is None:
            expected = "a host such as api.example, *.example, 192.0.2.7, 2001:db8::1 or *, without a port"
            raise refusal("{field} is no host", expected=expected, path=(index,))
        found.append(host)
    return distinct(found)


def _methods(values: list[str]) -> list[str]:
    for index, value in enumerate(values):
        if value and value.upper() not in METHODS:
            raise refusal(
                f'{{field}} "{value[:40]}" is not a method to rule on',
                expected=f"one of {', '.join(METHODS)}",
                hint=suggestion(value, METHODS),
                path=(index,),
            )
    return distinct(value.upper() for value in values)


def _distinct_ports(values: list[int]) -> list[int]:
    return list(dict.fromkeys(values))


def _path(value: str) -> str:
    if not re.fullmatch(_PATH, value) or {"", ".", ".."} & {*value.removesuffix("/").split("/")[1:]}:
        expected = "an absolute path without '.', '..' and empty parts"
        raise refusal(f"{{field}} is not {expected}", expected=expected)
    return value.rstrip("/") or "/"


def _image(value: str) -> str:
    if not re.fullmatch(_IMAGE, value):
        expected = "name@sha256: and 64 hexadecimal digits in lower case"
        raise refusal(f'invalid {{field}} "{value[:80]}": expected {expected}', expected=expected)
    return value


def check_variables(variables: dict[str, str]) -> dict[str, str]:
    for name, value in variables.items():
        if not re.fullmatch(_VARIABLE, name, re.ASCII) or "\0" in value:
            raise refusal("{field} is not the name of a variable, or its value holds a NUL", path=(name,))
    return variables


_SIZE_SCHEMA: Final = {
    "type": ["string", "integer"],
    "pattern": rf"^\s*{sizes.PATTERN}\s*$",
    "minimum": 0,
    "examples": ["512Mi", "1Gi", 65536],
}
Size: TypeAlias = Annotated[str, BeforeValidator(_size), WithJsonSchema(_SIZE_SCHEMA)]
"""A number of bytes as people write it."""
HostPatterns: TypeAlias = Annotated[list[str], ONE_OR_MANY, AfterValidator(_host_patterns)]
Port: TypeAlias = Annotated[int, Field(ge=1, le=65535), BeforeValidator(as_whole)]
Ports: TypeAlias = Annotated[list[Port], AfterValidator(_distinct_ports)]
Methods: TypeAlias = Annotated[list[str], ONE_OR_MANY, AfterValidator(_methods)]
AbsolutePath: TypeAlias = Annotated[
    str, AfterValidator(_path), WithJsonSchema({"type": "string", "pattern": rf"^\s*{_PATH}\s*$"})
]
Image: TypeAlias = Annotated[
    str, AfterValidator(_image), WithJsonSchema({"type": "string", "pattern": rf"^\s*{_IMAGE}\s*$"})
]
Variables: TypeAlias = Annotated[StringMap, AfterValidator(check_variables)]
VariableName: TypeAlias = Annotated[
    str, WithJsonSchema({"type": "string", "pattern": rf"^\s*({SECRET_VARIABLE})?\s*$"})
]
Features: TypeAlias = Annotated[list[Feature], ONE_OR_MANY, AfterValidator(distinct)]
Share: TypeAlias = Annotated[float, Field(gt=0, le=4096)]


class NetworkRule(Model):
    """Hosts that may be reached through the egress broker. A rule with `deny` wins over all that allow."""

    required: ClassVar = {"hosts": ""}

    hosts: HostPatterns = Field(
        default_factory=list[str], description="api.example, *.example for names below it, an address, * for any name."
    )
    ports: Ports = Field(default_factory=lambda: [443], description="The ports.")
    methods: Methods = Field(
        default_factory=list[str], description="Only these HTTP methods; TLS is opened by the broker then."
    )
    deny: bool = Field(default=False, description="Refuse what the rule holds for, instead of allowing it.")

    def complete(self) -> None:
        self.ports = self.ports or [443]


class SandboxSecret(Model):
    """A Secret that code inside uses by a placeholder. The broker puts the value into headers for these hosts."""

    required: ClassVar = {"secret_ref": "", "hosts": ""}

    secret_ref: SecretRef = Field(
        default="", serialization_alias="secretRef", description="The Secret: [namespace/]name[:key], key `value`."
    )
    hosts: HostPatterns = Field(
        default_factory=list[str], description="Where it is sent; `network` has to allow them as well. Not *."
    )
    ports: Ports = Field(default_factory=lambda: [443], description="The ports of these hosts.")
    variable: VariableName = Field(
        default="", description="The variable that holds the placeholder inside; FOLIOT_SECRET_NAME when not given."
    )
    cleartext: bool = Field(default=False, description="Send it without TLS too: others on the way can read it.")

    def complete(self) -> None:
        self.ports = self.ports or [443]

    def problems(self) -> Iterator[Problem]:
        if host_names.EVERY_NAME in self.hosts:
            yield problem("hosts", message="{field}: a secret is meant for hosts that are named")
        if self.variable and (wrong := secret_variable_problem(self.variable)):
            yield problem("variable", message=f"{{field}}: {wrong}", hint="such as SERVICE_TOKEN")


class SandboxMount(Model):
    """A file or folder of the machine that is seen inside."""

    required: ClassVar = {"source": "", "target": ""}

    source: AbsolutePath = Field(default="", description="Its path on the machine of the worker.")
    target: AbsolutePath = Field(default="", description="Its path inside.")
    writable: bool = Field(default=False, description="Whether it can be changed from inside.")


class SandboxLimits(Model):
    """The bounds of one fence. Sizes are written as 512Mi."""

    memory: Size | None = Field(default=None, description="Memory of all processes together; 512Mi when not given.")
    processes: Positive | None = Field(default=None, description="Processes at once; 256 when not given.")
    cpus: Share | None = Field(default=None, description="A share of processors: 0.5 is half of one.")
    cpu_seconds: Positive | None = Field(default=None, description="Processor time of each process.")
    file_size: Size | None = Field(default=None, description="The largest file; 1Gi when not given.")
    tmp_size: Size | None = Field(default=None, description="The size of /tmp; 256Mi when not given.")
    open_files: Positive | None = Field(default=None, description="Open files of a process; 1024 when not given.")
    output: Size | None = Field(default=None, description="What is kept of each stream of a call; 1Mi when not given.")
    seconds: Annotated[float, Field(gt=0, le=31_622_400)] | None = Field(
        default=None, description="The longest that one program runs, beside runtime.timeout."
    )

    def problems(self) -> Iterator[Problem]:
        for name, least in LEAST.items():
            value: str | int | None = getattr(self, name)
            size = sizes.bytes_of(value) if isinstance(value, str) else value
            if size is not None and size < least:
                shown = sizes.canonical(least) if isinstance(value, str) else least
                yield problem(name, message=f"{{field}} must be {shown} or more", expected=f"{shown} or more")


class SandboxSpec(Model):
    """The fence that something asks for. Policies may take away from it."""

    network: list[NetworkRule] = Field(
        default_factory=list[NetworkRule], description="What may be reached; nothing when there is no rule."
    )
    secrets: list[SandboxSecret] = Field(
        default_factory=list[SandboxSecret], description="Secrets that are used by placeholder and never seen inside."
    )
    mounts: list[SandboxMount] = Field(
        default_factory=list[SandboxMount], description="Files and folders of the machine that are seen inside."
    )
    limits: SandboxLimits = Field(default_factory=SandboxLimits, description="Bounds of the fence.")
    require: Features = Field(
        default_factory=list[Any], description="What must really be enforced: refused where it cannot be."
    )
    image: Image = Field(
        default="", description="The image of a container: name@sha256:…. Not in spec.sandbox of an Agent."
    )
    runtime: Annotated[Literal["gvisor"], ANY_CASE] | None = Field(
        default=None, description="gvisor: the container runs under that kernel. Not in spec.sandbox of an Agent."
    )
    workspace: WorkspaceAccess | None = Field(
        default=None, description="Whether it sees the workspace of the run, at /workspace; none when not given."
    )
    env: Variables = Field(
        default_factory=dict[str, str], description="Variables inside. Never a credential: the code could print them."
    )

    def problems(self) -> Iterator[Problem]:
        if self.secrets and not self.network:
            yield problem("network", message="{field} is required when there are secrets: they are sent over it")
        names, variables = list[str](), [*self.env]
        for index, secret in enumerate(self.secrets):
            # As `FenceSecret.name` makes it: two that read alike could be taken for each other.
            name = re.sub(r"[^a-z0-9]", "_", secret.secret_ref.lower())
            if name in names:
                yield problem(
                    "secrets", index, "secretRef", message="the secret, or one that reads alike, is given twice"
                )
            if secret.variable and secret.variable in variables:
                message = f"the variable {secret.variable} is given twice"
                yield problem("secrets", index, "variable", message=message)
            names.append(name)
            variables.append(secret.variable)
        for index, why in target_problems([mount.target for mount in self.mounts]):
            yield problem("mounts", index, "target", message=why, hint="choose a folder of its own")


class SandboxCeiling(Model):
    """The most that fences under a policy may be. What is not given is not bounded; policies only take away."""

    isolation: Annotated[Literal["none", "sandboxed", "container", "gvisor"], ANY_CASE] | None = Field(
        default=None, description="The weakest isolation that tools may have: none, sandboxed, container or gvisor."
    )
    network: list[NetworkRule] | None = Field(
        default=None, description="Rules that must allow a request as well; [] for no network."
    )
    workspace: WorkspaceAccess | None = Field(default=None, description="The most that fences do with the workspace.")
    mounts: Annotated[list[AbsolutePath], ONE_OR_MANY, AfterValidator(distinct)] | None = Field(
        default=None, description="Folders of the machine: only what lies in them may be seen; [] for nothing."
    )
    limits: SandboxLimits = Field(default_factory=SandboxLimits, description="The most of each bound.")
    require: Features = Field(default_factory=list[Any], description="What must really be enforced.")
