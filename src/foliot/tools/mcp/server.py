"""What an McpServer resource says, in the form that connections use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from foliot.resources.digest import definition_digest
from foliot.resources.durations import seconds
from foliot.resources.powers import declared_by_operator, secret_targets
from foliot.tools.base import AuthSpec


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of a server's environment: a value, or the Secret that holds it."""

    name: str
    value: str = field(default="", repr=False)
    secret_ref: str = ""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server. `digest` changes with anything that was declared: another digest is another connection."""

    namespace: str
    name: str
    digest: str
    transport: Literal["stdio", "http"]
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()
    endpoint: str = ""
    auth: AuthSpec | None = None
    include: tuple[str, ...] = ()
    max_attempts: int = 3
    backoff: float = 2.0
    operator: bool = True  # whether the operator of the installation declared it

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    def __str__(self) -> str:
        return f"MCP server {self.name!r} in namespace {self.namespace!r}"


def server_spec(document: Mapping[str, Any]) -> ServerSpec:
    """The server of a normalised McpServer document."""
    metadata, spec = document["metadata"], document["spec"]
    reconnect = spec.get("reconnect", {})
    return ServerSpec(
        namespace=metadata.get("namespace", "default"),
        name=metadata["name"],
        digest=definition_digest(document),
        transport=spec["transport"],
        command=spec.get("command", ""),
        args=tuple(spec.get("args", ())),
        env=tuple(Variable(v["name"], v.get("value", ""), v.get("secretRef", "")) for v in spec.get("env", ())),
        endpoint=spec.get("endpoint", ""),
        auth=_auth(spec.get("auth"), secret_targets(document)),
        include=tuple(spec.get("tool_filter", {}).get("include", ())),
        max_attempts=reconnect.get("max_attempts", 3),
        backoff=seconds(reconnect.get("backoff", "2s")),
        operator=declared_by_operator(document),
    )


def _auth(given: Mapping[str, Any] | None, hosts: tuple[str, ...] | None) -> AuthSpec | None:
    if not given or not given.get("profile"):
        return None
    return AuthSpec(
        profile=given["profile"],
        secret_ref=given.get("secretRef", ""),
        header_name=given.get("headerName", ""),
        token_url=given.get("tokenURL", ""),
        scopes=tuple(given.get("scopes", ())),
        hosts=hosts,
    )
