"""McpServer: a server that speaks the Model Context Protocol and brings its own tools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, WithJsonSchema

from foliot.common.variables import reserved_variable
from foliot.resources.base import Model, Resource, Status, both, given, implies, no, present, problem, says
from foliot.resources.definitions.sandbox import SandboxSpec
from foliot.resources.definitions.shapes import ToolAuth
from foliot.resources.fields import (
    ANY_CASE,
    Attempts,
    Duration,
    ExactList,
    LooseText,
    SecretRef,
    TextList,
    Url,
)
from foliot.resources.problems import Problem

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class EnvironmentVariable(Model):
    """One variable of the server's environment. Its value may be secret and is never repeated in a message."""

    required: ClassVar = {"name": ""}
    rules: ClassVar = (no(given("value", "secret_ref")),)

    name: Annotated[str, WithJsonSchema({"type": "string", "pattern": r"^\s*[A-Za-z_][A-Za-z0-9_]*\s*$"})] = Field(
        default="", description="The variable's name."
    )
    value: LooseText = Field(default="", repr=False, description="Its value, for what is no secret.")
    secret_ref: SecretRef = Field(
        default="", serialization_alias="secretRef", description="The Secret that holds its value."
    )

    def problems(self) -> Iterator[Problem]:
        if self.name and not _VARIABLE.fullmatch(self.name):
            rule = "letters, digits and '_', not beginning with a digit"
            yield problem("name", message=f"{{field}} is no name of a variable: expected {rule}", expected=rule)
        elif self.secret_ref and (wrong := reserved_variable(self.name)):
            yield problem("name", message=f"{{field}}: {wrong}", hint="such as SERVICE_TOKEN")
        if self.value and self.secret_ref:
            yield problem("value", message="value and secretRef exclude each other", hint="keep one of the two")


class ToolFilter(Model):
    """Which of the server's tools become Tools."""

    include: ExactList = Field(default_factory=list[str], description="Their exact names; all when empty.")


class Reconnect(Model):
    """The rule for a connection that is lost."""

    max_attempts: Attempts = Field(default=3, description="Attempts before the server counts as failed; 0 for none.")
    backoff: Duration = Field(default="2s", description="The wait before the first, twice as long each time.")


class McpServerSpec(Model):
    """How the server is reached."""

    required: ClassVar = {"transport": " (stdio or http)"}
    rules: ClassVar = (
        implies(says("transport", "stdio"), given("command")),
        implies(says("transport", "http"), given("endpoint")),
        implies(says("isolation", "container", "none"), says("transport", "stdio")),
        implies(present("sandbox"), says("transport", "stdio")),
        no(both(present("sandbox"), says("isolation", "none"))),
    )

    transport: Annotated[Literal["stdio", "http"], ANY_CASE] | None = Field(
        default=None, description="A program that Foliot starts (stdio), or a server that runs (http)."
    )
    command: str = Field(default="", description="The program, for stdio.")
    args: TextList = Field(default_factory=list[str], description="Its arguments.")
    env: list[EnvironmentVariable] = Field(
        default_factory=list[EnvironmentVariable], description="Its environment, beside the few variables it needs."
    )
    isolation: Annotated[Literal["sandboxed", "container", "none"], ANY_CASE] | None = Field(
        default=None,
        description="What contains the program: `sandboxed` when not given. `none` gives it all rights of the worker.",
    )
    sandbox: SandboxSpec | None = Field(default=None, description="What the program sees and reaches in its fence.")
    endpoint: Url = Field(default="", description="The server's URL, for http.")
    auth: ToolAuth = Field(default_factory=ToolAuth, description="How the server is told who calls.")
    tool_filter: ToolFilter = Field(default_factory=ToolFilter, description="Which tools become Tools.")
    reconnect: Reconnect = Field(default_factory=Reconnect, description="When the connection is lost.")
    sync_interval: Duration | None = Field(
        default=None, description="How often a worker compares Tools and server; 5m when not given, 0 for never."
    )

    def complete(self) -> None:
        """The default says something of programs only, also when a server stops to be one."""
        if self.transport == "stdio" and self.isolation is None:
            self.isolation = "sandboxed"
        elif self.transport == "http" and self.isolation == "sandboxed":
            self.isolation = None

    def problems(self) -> Iterator[Problem]:
        for field in ("isolation", "sandbox"):
            if self.transport == "http" and getattr(self, field) is not None:
                yield problem(field, message="{field} is only for spec.transport=stdio: the server runs elsewhere")
        if self.isolation == "none" and self.sandbox is not None:
            yield problem("sandbox", message="{field}: there is no sandbox with spec.isolation=none")
        if self.transport == "stdio" and not self.command:
            yield problem("command", message="{field} is required when spec.transport=stdio")
        if self.transport == "http" and not self.endpoint:
            yield problem("endpoint", message="{field} is required when spec.transport=http")
        names = [variable.name for variable in self.env]
        inside = self.sandbox or SandboxSpec()
        taken = {*inside.env, *(secret.variable for secret in inside.secrets)}
        for index, name in enumerate(names):
            if name in names[:index] or name in taken:
                yield problem("env", index, "name", message=f'the variable "{name[:80]}" is given twice')


class McpServerStatus(Status):
    """The observed state of the server."""

    discovered_tools: list[Any] = Field(default_factory=list[Any], description="What the server offers.")
    generated_tools: list[Any] = Field(default_factory=list[Any], description="The Tools made for it.")
    last_synced_at: str = Field(default="", description="When the two were last compared.")


class McpServer(Resource[McpServerSpec, McpServerStatus]):
    """A server that speaks the Model Context Protocol."""
