"""Starting a stdio server: which command may be started, and what it finds in its environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from foliot.common.durations import seconds
from foliot.resources.digest import definition_digest
from foliot.resources.powers import declared_by_operator, secret_targets
from foliot.tools.base import AuthSpec, ToolDenied, ToolPolicyInvalid, ToolSecretMissing

if TYPE_CHECKING:
    from foliot.tools.mcp.http import Authorize
    from foliot.tools.secrets.auth import CallAuth, Credentials
    from foliot.tools.secrets.secrets import Secrets


# --- server ----------------------------------------------------------------------------------------------------------

# What an McpServer resource says, in the form that connections use.


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


# --- process ---------------------------------------------------------------------------------------------------------

ResolveSecret: TypeAlias = Callable[[str, str], Awaitable[str]]
"""`(reference, namespace)` to the clear value; raises `ToolSecretMissing` or another `FoliotError`."""

# What a program needs to find its way, and nothing that could be somebody's credential.
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=\*")
INHERITED: Final = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER")


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line that may be started. `secrets` are values that no message may repeat."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def mask(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "****")
        return text


async def prepare(
    server: ServerSpec, *, allowed: Collection[str], resolve_secret: ResolveSecret, environ: Mapping[str, str]
) -> Launch:
    """Builds the command line and the environment of a stdio server.

    Raises `ToolDenied` for a command that is not allowed here, `ToolPolicyInvalid` for one that cannot be found, and
    what `resolve_secret` raises.
    """
    words = _words(server.command)
    program = resolve_command(server, words[0], allowed=_programs(allowed), environ=environ)
    if not server.operator and not command_granted(server, allowed):
        raise ToolDenied(
            f"{server}: this command line, with these variables, may not be started here",
            hint="the operator can add all of it to the setting mcp_commands (FOLIOT_MCP_COMMANDS), "
            "or declare the server",
            layer="deployment",
            server=server.name,
        )
    environment = {name: environ[name] for name in INHERITED if name in environ}
    secrets: list[str] = []
    for variable in server.env:
        value = variable.value
        if variable.secret_ref:
            value = await resolve_secret(variable.secret_ref, server.namespace)
            secrets.append(value)
        environment[variable.name] = value
    # A very short value would mask half of every message, and cannot be much of a secret.
    hidden = tuple(sorted({value for value in secrets if len(value) >= 4}, key=len, reverse=True))
    return Launch((program, *words[1:], *server.args), environment, hidden)


def resolve_command(server: ServerSpec, word: str, *, allowed: Collection[str], environ: Mapping[str, str]) -> str:
    """The absolute path of an allowed command. Raises `ToolDenied`, `ToolPolicyInvalid`."""
    if "/" in word and not os.path.isabs(word):
        raise ToolPolicyInvalid(
            f"{server}: the command {word!r} is a relative path",
            hint="give an absolute path, or the name of a program on PATH",
            server=server.name,
        )
    found = shutil.which(word, path=environ.get("PATH", os.defpath))
    if word not in allowed and (found is None or found not in allowed):
        listed = ", ".join(sorted(allowed)) or "none"
        raise ToolDenied(
            f"{server}: the command {word!r} may not be started here; allowed commands: {listed}",
            hint="whoever runs this process can add it to the setting mcp_commands (FOLIOT_MCP_COMMANDS)",
            layer="deployment",
            server=server.name,
        )
    if found is None:
        raise ToolPolicyInvalid(
            f"{server}: there is no program {word!r}",
            hint="install it where the tools are called, or correct spec.command",
            server=server.name,
        )
    return os.path.abspath(found)


def missing_program(server: ServerSpec, environ: Mapping[str, str]) -> str:
    """The program that a stdio server is started with, if it is not installed on this machine; else nothing."""
    if server.transport != "stdio" or not server.command:
        return ""
    word = _words(server.command)[0]
    return "" if shutil.which(word, path=environ.get("PATH", os.defpath)) else word


def command_granted(server: ServerSpec, allowed: Collection[str]) -> bool:
    """Whether an entry holds the whole command line of a server, and every variable that it sets.

    An entry is a command line, with `NAME=*` in front for each variable; a `*` at its end stands for any arguments. A
    program alone is not enough: `npx` and `python` run whatever their arguments and variables name.
    """
    line = [*_words(server.command), *server.args]
    variables = {variable.name for variable in server.env}
    for entry in allowed:
        words = _words(entry)
        named = {word.removesuffix("=*") for word in words if _VARIABLE.fullmatch(word)}
        words = [word for word in words if not _VARIABLE.fullmatch(word)]
        fits = line[: len(words) - 1] == words[:-1] if words[-1:] == ["*"] else line == words
        if fits and words and variables <= named:
            return True
    return False


def _programs(allowed: Collection[str]) -> frozenset[str]:
    """The programs of the entries; what they may be started with is for `command_granted` to say."""
    lines = ([word for word in _words(entry) if not _VARIABLE.fullmatch(word)] for entry in allowed)
    return frozenset(words[0] for words in lines if words)


def _words(command: str) -> list[str]:
    """The command as a list: manifests may write `npx -y package` in one text. A path may hold spaces."""
    if os.path.isabs(command) and os.path.exists(command):
        return [command]
    try:
        return shlex.split(command) or [command]
    except ValueError:
        return [command]


# --- credentials -----------------------------------------------------------------------------------------------------

# From the tools' own secrets and credentials to what connections ask for.


def secret_values(secrets: Secrets) -> ResolveSecret:
    """Values for the environment of stdio servers, from the server's own namespace or one that has granted it."""

    async def resolve(reference: str, namespace: str) -> str:
        return await secrets.value(reference, namespace=namespace, by="McpServer")

    return resolve


def auth_headers(maker: CallAuth) -> Authorize:
    """Headers for HTTP servers. A token that was refused is thrown away and fetched anew."""
    shown: dict[tuple[AuthSpec, str], Credentials] = {}

    async def authorize(auth: AuthSpec, namespace: str, *, rejected: bool = False) -> Mapping[str, str]:
        before = shown.get((auth, namespace))
        if rejected and before is not None:
            maker.evict(auth, before)
        made = await maker.credentials(auth, namespace=namespace, tool="an MCP server", by="McpServer")
        shown[auth, namespace] = made
        return made.headers

    return authorize


async def no_secrets(reference: str, namespace: str) -> str:
    raise ToolSecretMissing(f"the secret {reference!r} cannot be looked up here", hint="open a store")


async def no_headers(auth: AuthSpec, namespace: str, *, rejected: bool = False) -> Mapping[str, str]:
    raise ToolPolicyInvalid(f"nobody here can make credentials for the profile {auth.profile!r}", hint="open a store")
