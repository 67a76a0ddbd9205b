"""Starting a stdio server: which command may be started, in which fence, and what it finds in its environment.

In a fence no variable ever holds a secret: it holds a placeholder, and the egress broker sends the value to the hosts
that the secret is meant for. Only a server that says `isolation: none`, as the operator alone may, has values in clear.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from msgspec.structs import replace

from foliot.common.durations import seconds
from foliot.common.hosts import normal_pattern
from foliot.common.threads import on_thread
from foliot.common.variables import reserved_variable
from foliot.resources.digest import definition_digest
from foliot.resources.powers import declared_by_operator, secret_targets
from foliot.sandbox.bubblewrap import ENVIRONMENT
from foliot.tools.base import AuthSpec, ToolDenied, ToolPolicyInvalid, ToolSecretMissing
from foliot.tools.declared_fences import fence_request
from foliot.tools.fences import FenceRequest, FenceSecret, Narrowed
from foliot.tools.mcp.programs import shown_program

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
    isolation: Literal["sandboxed", "container", "none"] = "sandboxed"  # of stdio
    fence: FenceRequest = field(default_factory=FenceRequest)

    @property
    def fenced(self) -> bool:
        return self.transport == "stdio" and self.isolation != "none"

    @property
    def mode(self) -> str:
        """The isolation that its tools have: that of the program; none for a server that runs elsewhere."""
        return self.isolation if self.transport == "stdio" else "none"

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    def __str__(self) -> str:
        return f"MCP server {self.name!r} in namespace {self.namespace!r}"


def server_spec(document: Mapping[str, Any]) -> ServerSpec:
    """The server of a normalised McpServer document."""
    metadata, spec = document["metadata"], document["spec"]
    reconnect = spec.get("reconnect", {})
    namespace, operator = metadata.get("namespace", "default"), declared_by_operator(document)
    isolation = spec.get("isolation", "sandboxed")
    return ServerSpec(
        namespace=namespace,
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
        operator=operator,
        isolation=isolation,
        fence=_fence(spec.get("sandbox", {}), namespace, operator=operator, contained=isolation == "container"),
    )


def _fence(sandbox: Mapping[str, Any], namespace: str, *, operator: bool, contained: bool) -> FenceRequest:
    return fence_request(sandbox, namespace=namespace, bound=not operator, by="McpServer", contained=contained)


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

SecretHosts: TypeAlias = Callable[[str, str], Awaitable[Sequence[str] | None]]
"""`(reference, namespace)` to the hosts that a Secret is bound to; None for one that is not declared."""

# What a program needs to find its way, and nothing that could be somebody's credential.
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=\*")
INHERITED: Final = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER")


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line that may be started. `secrets` are values that no message may repeat.

    With `fence` it is started there, and `environment` is part of it. `unseen` are arguments that name something of
    this machine that is not in the fence.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    fence: Narrowed | None = None
    unseen: tuple[str, ...] = ()

    def mask(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "****")
        return text


async def prepare(
    server: ServerSpec,
    *,
    allowed: Collection[str],
    resolve_secret: ResolveSecret,
    environ: Mapping[str, str],
    fence: Narrowed | None = None,
    secret_hosts: SecretHosts | None = None,
) -> Launch:
    """Builds the command line and the environment of a stdio server; of a fenced one also what its fence shows.

    `fence` is what is left of `server.fence` for whoever calls. Raises `ToolDenied` for a command that is not allowed
    here, `ToolPolicyInvalid` for one that cannot be found, and what `resolve_secret` raises.
    """
    words = _words(server.command)
    in_image = fence is not None and fence.request.backend != "process"
    program = resolve_command(server, words[0], allowed=_programs(allowed), environ=environ, in_image=in_image)
    if not server.operator and not command_granted(server, allowed):
        raise ToolDenied(
            f"{server}: this command line, with these variables, may not be started here",
            hint="the operator can add all of it to the setting mcp_commands (FOLIOT_MCP_COMMANDS), "
            "or declare the server",
            layer="deployment",
            server=server.name,
        )
    if fence is None and not server.operator:
        raise ToolDenied(
            f"{server} says isolation: none, which only the operator may: it would have all rights of this process",
            hint="leave spec.isolation out, or have the operator declare the server",
            layer="deployment",
            server=server.name,
        )
    for variable in _secret(server):
        if wrong := reserved_variable(variable.name):
            raise ToolPolicyInvalid(
                f"{server}: {wrong}", hint="such as SERVICE_TOKEN", field="spec.env", server=server.name
            )
    # Looked up also when only placeholders go inside: a server whose secrets are not here is not started.
    secrets = {each.secret_ref: await resolve_secret(each.secret_ref, server.namespace) for each in _secret(server)}
    # A very short value would mask half of every message, and cannot be much of a secret.
    hidden = tuple(sorted({value for value in secrets.values() if len(value) >= 4}, key=len, reverse=True))
    args = (*words[1:], *server.args)
    if fence is None:
        environment = {name: environ[name] for name in INHERITED if name in environ}
        for variable in server.env:
            environment[variable.name] = secrets[variable.secret_ref] if variable.secret_ref else variable.value
        return Launch((program, *args), environment, hidden)
    return await _fenced(server, program, args, hidden, fence, allowed, environ, secret_hosts)


def secret_refs(server: ServerSpec) -> list[str]:
    """Returns the references to the secrets that its variables take."""
    return [variable.secret_ref for variable in _secret(server)]


def _secret(server: ServerSpec) -> list[Variable]:
    return [variable for variable in server.env if variable.secret_ref]


async def _fenced(
    server: ServerSpec,
    program: str,
    args: Sequence[str],
    hidden: tuple[str, ...],
    fence: Narrowed,
    allowed: Collection[str],
    environ: Mapping[str, str],
    secret_hosts: SecretHosts | None,
) -> Launch:
    wanted = fence.request
    variables = {variable.name: variable.value for variable in server.env if not variable.secret_ref}
    command, parts, unseen, environment = (program, *args), wanted.parts, (), {**wanted.environment, **variables}
    if wanted.backend == "process":
        shown = await on_thread(
            lambda: shown_program(
                program,
                args,
                mounts=wanted.mounts,
                search=environ.get("PATH", os.defpath),
                may_show=lambda path: server.operator or _spelled_out(server, allowed, path),
            )
        )
        command, parts, unseen = shown.command, (*parts, *shown.mounts), shown.unseen
        if shown.path:
            environment = {"PATH": ":".join((*shown.path, ENVIRONMENT["PATH"])), **environment}
    bound = [await _bound_secret(server, variable, secret_hosts) for variable in _secret(server)]
    if wanted.network:
        refs = {secret.ref for secret in bound}
        others = (each for each in wanted.secrets if each.variable or each.ref not in refs)
        wanted = replace(wanted, secrets=(*others, *bound))
    else:
        # A rule took the network away. What nobody swaps is still no secret, and the server finds its variable.
        environment |= {secret.variable: f"FOLIOT_SECRET_{secret.name}" for secret in bound}
    wanted = replace(wanted, parts=parts, environment=environment)
    return Launch(command, environment, hidden, replace(fence, request=wanted), unseen)


async def _bound_secret(server: ServerSpec, variable: Variable, secret_hosts: SecretHosts | None) -> FenceSecret:
    """The placeholder of a variable, and where the broker sends its value: as spec.sandbox.secrets says of the same
    Secret, else where the Secret itself is bound to. Raises `ToolPolicyInvalid` when that is nowhere.
    """
    ref, network = variable.secret_ref, server.fence.network
    for declared in server.fence.secrets:
        if declared.ref == ref:
            return replace(declared, variable=variable.name)
    found = await secret_hosts(ref, server.namespace) if secret_hosts is not None and network else None
    hosts = tuple(host for host in map(normal_pattern, found or ()) if host is not None and host != "*")
    if hosts:
        ports = sorted({port for rule in network if rule.verdict == "allow" for port in rule.ports})
        return FenceSecret(ref, hosts, tuple(ports) or (443,), variable.name, by="McpServer")
    raise ToolPolicyInvalid(
        f"{server}: the variable {variable.name} takes a Secret, and there is no host that it may be sent to: "
        "no secret goes into a sandbox in clear",
        hint="bind the Secret to hosts (spec.hosts) or name them in spec.sandbox.secrets, and allow them in "
        "spec.sandbox.network; or say isolation: none, as the operator, if the program itself needs the value",
        field="spec.env",
        server=server.name,
    )


def resolve_command(
    server: ServerSpec, word: str, *, allowed: Collection[str], environ: Mapping[str, str], in_image: bool = False
) -> str:
    """The absolute path of an allowed command; `in_image` its name, since it is found there.

    Raises `ToolDenied`, `ToolPolicyInvalid`.
    """
    if "/" in word and not os.path.isabs(word):
        raise ToolPolicyInvalid(
            f"{server}: the command {word!r} is a relative path",
            hint="give an absolute path, or the name of a program on PATH",
            server=server.name,
        )
    found = None if in_image else shutil.which(word, path=environ.get("PATH", os.defpath))
    if word not in allowed and (found is None or found not in allowed):
        listed = ", ".join(sorted(allowed)) or "none"
        raise ToolDenied(
            f"{server}: the command {word!r} may not be started here; allowed commands: {listed}",
            hint="whoever runs this process can add it to the setting mcp_commands (FOLIOT_MCP_COMMANDS)",
            layer="deployment",
            server=server.name,
        )
    if in_image:
        return word
    if found is None:
        raise ToolPolicyInvalid(
            f"{server}: there is no program {word!r}",
            hint="install it where the tools are called, or correct spec.command",
            server=server.name,
        )
    return os.path.abspath(found)


def missing_program(server: ServerSpec, environ: Mapping[str, str]) -> str:
    """The program that a stdio server is started with, if it is not installed on this machine; else nothing."""
    if server.transport != "stdio" or not server.command or server.isolation == "container":
        return ""
    word = _words(server.command)[0]
    return "" if shutil.which(word, path=environ.get("PATH", os.defpath)) else word


def command_granted(server: ServerSpec, allowed: Collection[str]) -> bool:
    """Whether an entry holds the whole command line of a server, and every variable that it sets.

    An entry is a command line, with `NAME=*` in front for each variable; a `*` at its end stands for any arguments. A
    program alone is not enough: `npx` and `python` run whatever their arguments and variables name.
    """
    return any(True for _ in _granting(server, allowed))


def _granting(server: ServerSpec, allowed: Collection[str]) -> Iterator[list[str]]:
    """The words of each entry that holds the command line of a server, without its variables."""
    line = [*_words(server.command), *server.args]
    variables = {variable.name for variable in server.env} | server.fence.environment.keys()
    variables |= {secret.variable for secret in server.fence.secrets if secret.variable}
    for entry in allowed:
        words = _words(entry)
        named = {word.removesuffix("=*") for word in words if _VARIABLE.fullmatch(word)}
        words = [word for word in words if not _VARIABLE.fullmatch(word)]
        fits = line[: len(words) - 1] == words[:-1] if words[-1:] == ["*"] else line == words
        if fits and words and variables <= named:
            yield words


def _spelled_out(server: ServerSpec, allowed: Collection[str], word: str) -> bool:
    """Whether a granted command line names this very argument: `*` grants no sight of files."""
    return any(word in words for words in _granting(server, allowed))


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
