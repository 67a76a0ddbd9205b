"""Grants of the operator: Python and WebAssembly modules, command lines, internal hosts, and Secrets for hosts.

A resource that the operator declared needs no grant (`metadata.declaredBy.operator`). Any other is held against the
settings twice: when it is declared over HTTP, so that its author is told what to ask the operator for, and when it is
used, because settings, Secrets and resources change, and not everything in a store came through this server.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field as with_default
from functools import cached_property
from typing import Any, Final, TypeAlias

from foliot.common.hosts import shown_host
from foliot.engine.runners.adapters import resolved_runner
from foliot.engine.runners.profile import RunnerSpec
from foliot.engine.workspaces.folders import MOST_FILES, QUOTA
from foliot.errors import Denied, FoliotError, InvalidInput, NotHere
from foliot.models.registry import Provider, default_registry
from foliot.resources.powers import (
    Document,
    declared_addresses,
    declared_by_operator,
    host_of,
    secret_targets,
    spec_of,
)
from foliot.sandbox.base import Limits
from foliot.settings.settings import Settings
from foliot.tools.base import ToolDenied
from foliot.tools.declared_fences import AGENT_LIMITS, TOOL_LIMITS, WASM_MEMORY, limits_of, limits_within, tool_fence
from foliot.tools.fences import FenceRequest, image_granted, lies_in, limit_exceeded, mount_granted, shown_limit
from foliot.tools.mcp.process import ServerSpec, Variable, command_granted, server_spec
from foliot.tools.nats_worker.messages import EXECUTE
from foliot.tools.outbound.guard import Guard, Outbound, OutboundRefused, ToolUnreachable
from foliot.tools.secrets.secrets import WEBHOOK, takes_webhooks, unbound

SecretHosts: TypeAlias = Callable[[str, str], Awaitable[Sequence[str] | None]]
"""`(reference, namespace)` to the hosts that a Secret is bound to; None for a Secret that is not declared."""

_OURS: Final = "foliot.models."
# The most that a workspace has without a grant, by the field that asks for it.
WORKSPACE_ROOM: Final[Mapping[str, float]] = {"quota": QUOTA, "max_files": MOST_FILES}
_ASK: Final = "ask the operator of this installation (admin of all namespaces) to {}, or to declare this resource"


@dataclass(frozen=True)
class OperatorGrants:
    """The operator's grants that this process was started with: the settings of the same names."""

    tool_modules: tuple[str, ...] = ()
    mcp_commands: tuple[str, ...] = ()
    outbound_allow: tuple[str, ...] = ()
    nats_subjects: tuple[str, ...] = ()
    wasm_modules: tuple[str, ...] = ()
    wasm_folders: tuple[str, ...] = ()
    sandbox_mounts: tuple[str, ...] = ()
    sandbox_limits: Mapping[str, float] = with_default(default_factory=dict[str, float])
    container_images: tuple[str, ...] = ()
    workspace_sources: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings | None) -> OperatorGrants:
        if settings is None:
            return cls()
        return cls(
            settings.tool_modules,
            settings.mcp_commands,
            settings.outbound_allow,
            settings.nats_subjects,
            settings.wasm_modules,
            settings.wasm_folders,
            settings.sandbox_mounts,
            settings.sandbox_limits,
            settings.container_images,
            settings.workspace_sources,
        )

    # --- code ----------------------------------------------------------------------------------------------------

    def check_function(self, document: Document, path: str) -> None:
        """Raises `Denied` unless this `module:name` may be a tool, as far as its form tells. Nothing is imported.

        A name that leads on (`desk:os.system`) or is Python's own (`desk:__builtins__`) leaves the module.
        """
        module, _, attribute = path.partition(":")
        self.check_module(document, module)
        if declared_by_operator(document) or ("." not in attribute and not attribute.startswith("__")):
            return
        raise Denied(
            f"Tool/{document['metadata']['name']}: {path[:80]!r} leads out of the module {module!r}",
            hint=f"name a function that is written in {module} itself, as {module}:name; or "
            "ask the operator of this installation (admin of all namespaces) to declare this resource",
            field="spec.function",
        )

    def check_module(self, document: Document, module: str) -> None:
        """Raises `Denied` unless functions of this module may be tools of whoever declared the document."""
        if declared_by_operator(document) or module_granted(module, self.tool_modules):
            return
        name = document["metadata"]["name"]
        raise Denied(
            f"Tool/{name}: functions of the Python module {module!r} may not be tools here",
            hint=_ASK.format(f"add {module} to the setting tool_modules (FOLIOT_TOOL_MODULES)"),
            field="spec.function",
        )

    def check_wasm(self, document: Document) -> None:
        """Raises `Denied` unless the module of a tool and the folders that it reads are granted, by their paths.

        No file is looked at: whoever declares learns nothing of the files of this machine.
        """
        declared = _wasm(document)
        if declared is None or declared_by_operator(document):
            return
        given = str(declared.get("module", ""))
        # What is relative is looked for in granted folders only.
        if os.path.isabs(given) and not lies_in(os.path.normpath(given), self.wasm_modules):
            raise self._no_module(document)
        if not self.wasm_modules or ".." in given.split("/"):
            raise self._no_module(document)
        for outside in declared.get("folders", {}).values():
            if not lies_in(os.path.normpath(outside), self.wasm_folders):
                raise self._no_folder(document)
        asked = {"memory": float(declared.get("max_memory_bytes", WASM_MEMORY))}
        self._check_limits(document, asked, {"memory": WASM_MEMORY}, "spec.wasm", {"memory": "max_memory_bytes"})

    def wasm_module(self, document: Document) -> dict[str, Any]:
        """Returns `spec.wasm` with the file of its module, as it is on this machine.

        Raises `Denied` as `check_wasm`, also for a link that leads out of what is granted; `NotHere` when there is no
        such file here.
        """
        declared = _wasm(document)
        if declared is None:
            return {}
        self.check_wasm(document)
        operator = declared_by_operator(document)
        given = str(declared.get("module", "")) or f"{declared['digest'].removeprefix('sha256:')}.wasm"
        places = [*self.wasm_modules, *([os.getcwd()] if operator else [])]
        found = next(filter(os.path.isfile, (os.path.join(place, given) for place in places)), "")
        if os.path.isabs(given) and os.path.isfile(given):
            found = given
        if not found:
            name = document["metadata"]["name"]
            raise NotHere(
                f"the WebAssembly module of tool {name!r} is not here: {given}",
                hint="put the file where the run is driven; a relative path is looked for in the folders of the "
                "setting wasm_modules (FOLIOT_WASM_MODULES)",
                lacks=f"module {given}",
            )
        if not operator and not lies_in(os.path.realpath(found), map(os.path.realpath, self.wasm_modules)):
            raise self._no_module(document)
        granted = [*map(os.path.realpath, self.wasm_folders)]
        folders = {inside: os.path.realpath(outside) for inside, outside in declared.get("folders", {}).items()}
        if not operator and not all(lies_in(outside, granted) for outside in folders.values()):
            raise self._no_folder(document)
        return {**declared, "module": os.path.realpath(found), "folders": folders}

    def _no_module(self, document: Document) -> Denied:
        return Denied(
            f"Tool/{document['metadata']['name']}: this file may not be the module of a tool here",
            hint=_ASK.format("add it, or its folder, to the setting wasm_modules (FOLIOT_WASM_MODULES)"),
            field="spec.wasm.module",
        )

    def _no_folder(self, document: Document) -> Denied:
        return Denied(
            f"Tool/{document['metadata']['name']}: modules may not read this folder here",
            hint=_ASK.format("add it to the setting wasm_folders (FOLIOT_WASM_FOLDERS)"),
            field="spec.wasm.folders",
        )

    # --- files ---------------------------------------------------------------------------------------------------

    def check_workspace(self, document: Document) -> None:
        """Raises `Denied` unless the workspace of runs of an agent may be as large as it says, and begin as it says.

        No file is looked at. Where a link on the way leads is held against the same folders when a run begins.
        """
        workspace: Mapping[str, Any] = spec_of(document).get("workspace") or {}
        if declared_by_operator(document):
            return
        room = {name: value for name in WORKSPACE_ROOM if (value := workspace.get(name)) is not None}
        self._check_limits(document, room, WORKSPACE_ROOM, "spec.workspace")
        source = str(workspace.get("source", ""))
        if not source or lies_in(source, self.workspace_sources):
            return
        raise Denied(
            f"Agent/{document['metadata']['name']}: runs may not begin with a copy of this folder here",
            hint=_ASK.format("add it to the setting workspace_sources (FOLIOT_WORKSPACE_SOURCES)"),
            field="spec.workspace.source",
        )

    def check_watched(self, document: Document) -> None:
        """Raises `Denied` unless a hook may watch the folder that it names, by its path. No file is looked at."""
        path = str(spec_of(document).get("path", ""))
        if not path or declared_by_operator(document) or lies_in(path, self.workspace_sources):
            return
        raise Denied(
            f"TaskHook/{document['metadata']['name']}: this folder may not be watched here",
            hint=_ASK.format("add it to the setting workspace_sources (FOLIOT_WORKSPACE_SOURCES)"),
            field="spec.path",
        )

    # --- programs ------------------------------------------------------------------------------------------------

    def check_program(self, document: Document) -> None:
        """Raises `Denied` unless whoever declared a `cli` tool may have its command started, as it is written."""
        cli: Mapping[str, Any] = spec_of(document)["cli"]
        sandbox: Mapping[str, Any] = spec_of(document).get("sandbox", {})
        env = tuple(Variable(name) for name in (*cli.get("env", ()), *sandbox.get("env", ())))
        if not declared_by_operator(document):
            self._check_words(document, cli["command"], env)

    def check_runner(self, runner: RunnerSpec, agent: str) -> None:
        """Raises `Denied` unless whoever declared the agent may have its program started in its fence, as declared."""
        if runner.operator:
            return
        document = _fenced_agent(runner, agent)
        env = tuple(Variable(name) for name in runner.env)
        for more in dict.fromkeys(((), runner.resume, runner.resume_latest)):
            self._check_words(document, (*runner.command, *more), env)
        with _of_runner():
            self.check_fence(document, TOOL_LIMITS)

    # --- fences --------------------------------------------------------------------------------------------------

    def check_fence(self, document: Document, most: Limits | None = None) -> None:
        """Raises `Denied` unless whoever declared a resource may have what its `spec.sandbox` shows, runs and takes.

        `most` are the limits that it may have without a grant; those of its kind when not given.
        Mounts are held against the grants by their paths: whoever declares learns nothing of the files of this machine.
        What a link leads to is held against them when the fence is opened.
        """
        spec = spec_of(document)
        sandbox: Mapping[str, Any] = spec.get("sandbox", {})
        if not sandbox or declared_by_operator(document):
            return
        what = f"{document['kind']}/{document['metadata']['name']}"
        declared = limits_of(sandbox.get("limits", {}))
        usual = most or (AGENT_LIMITS if document["kind"] == "Agent" else TOOL_LIMITS)
        self._check_limits(document, declared, limits_within(declared, usual), "spec.sandbox.limits")
        for number, mount in enumerate(sandbox.get("mounts", ())):
            if not mount_granted(mount["source"], mount["writable"], self.sandbox_mounts):
                raise Denied(
                    f"{what}: this file or folder may not be shown in a sandbox here",
                    hint=_ASK.format(
                        "add it to the setting sandbox_mounts (FOLIOT_SANDBOX_MOUNTS), with :rw to be changed"
                    ),
                    field=f"spec.sandbox.mounts[{number}].source",
                )
        image = sandbox.get("image", "")
        if image and not any(image_granted(image, pattern) for pattern in self.container_images):
            raise Denied(
                f"{what}: this image may not be run here",
                hint=_ASK.format(f"add {image} to the setting container_images (FOLIOT_CONTAINER_IMAGES)"),
                field="spec.sandbox.image",
            )
        if sandbox.get("env") and spec.get("type") == "function":
            raise Denied(
                f"{what}: a variable can have other code run than the function that was granted",
                hint="leave spec.sandbox.env out, or ask the operator of this installation (admin of all namespaces) "
                "to declare this resource",
                field="spec.sandbox.env",
            )

    def _check_limits(
        self,
        document: Document,
        declared: Mapping[str, float],
        within: Mapping[str, float],
        place: str,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Raises `Denied` for a limit beyond what the operator grants. `names` are those that fields have instead."""
        if (found := limit_exceeded(declared, within, self.sandbox_limits)) is None:
            return
        name, most = found
        field = f"{place}.{(names or {}).get(name, name)}"
        raise Denied(
            f"{document['kind']}/{document['metadata']['name']}: {field} is more than the {shown_limit(name, most)} "
            "that may be declared here",
            hint=_ASK.format(f"raise {name} in the setting sandbox_limits (FOLIOT_SANDBOX_LIMITS)"),
            field=field,
        )

    def fence(self, document: Document) -> FenceRequest:
        """Returns the fence of a Tool as whoever declared it may have it. Raises `Denied` as `check_fence`."""
        self.check_fence(document)
        return tool_fence(document, self.sandbox_mounts)

    async def _check_reach(self, document: Document, secret_hosts: SecretHosts) -> None:
        """Raises `Denied` for an address inside that `spec.sandbox` names, and for a secret that is not bound."""
        sandbox: Mapping[str, Any] = spec_of(document).get("sandbox", {})
        for number, rule in enumerate(sandbox.get("network", ())):
            for host in rule["hosts"]:
                if "*" not in host and not rule["deny"]:
                    field = f"spec.sandbox.network[{number}].hosts"
                    await self._check_address(document, field, f"http://{shown_host(host)}/")
        for secret in sandbox.get("secrets", ()):
            hosts = await secret_hosts(secret["secretRef"], document["metadata"].get("namespace", "default"))
            _check_bound(document, secret["secretRef"], secret["hosts"], hosts)

    async def _check_hooks(self, document: Document, secret_hosts: SecretHosts) -> None:
        """Raises `Denied` for a hook at an address inside, and for a secret that is not bound to its host."""
        for number, hook in enumerate(spec_of(document).get("hooks", ())):
            http: Mapping[str, Any] = hook.get("http") or {}
            if not http or declared_by_operator(document):
                continue
            await self._check_address(document, f"spec.hooks[{number}].http.url", http["url"])
            if ref := http.get("secretRef"):
                hosts = await secret_hosts(ref, document["metadata"].get("namespace", "default"))
                _check_bound(document, ref, [host_of(http["url"])], hosts)

    # --- messages ------------------------------------------------------------------------------------------------

    def check_subject(self, document: Document) -> None:
        """Raises `Denied` unless a `queue` tool of whoever declared the document may publish where it says.

        Calls are published with the rights and the signature of the whole installation.
        """
        name, namespace = document["metadata"]["name"], document["metadata"].get("namespace", "default")
        subject = str(spec_of(document).get("endpoint", "")).strip()
        if subject in ("", f"{EXECUTE}.{name}") or declared_by_operator(document):
            return
        if any(subject_granted(subject, pattern, namespace) for pattern in self.nats_subjects):
            return
        raise Denied(
            f"Tool/{name}: calls may not be published on the subject {subject[:200]!r} here",
            hint=f"leave spec.endpoint out for {EXECUTE}.{name}, or "
            + _ASK.format("add the subject to the setting nats_subjects (FOLIOT_NATS_SUBJECTS)"),
            field="spec.endpoint",
        )

    # --- when it is declared ------------------------------------------------------------------------------------

    async def check(self, document: Document, secret_hosts: SecretHosts) -> None:
        """Hold a document that somebody else than the operator declares against everything here. Raises `Denied`."""
        kind, spec = document["kind"], spec_of(document)
        if kind == "Tool" and spec.get("function"):
            self.check_function(document, spec["function"])
        if kind == "Tool" and spec.get("wasm"):
            self.check_wasm(document)
        if kind == "Tool" and spec["type"] == "queue":
            self.check_subject(document)
        if kind == "Tool" and spec["type"] == "cli":
            self.check_program(document)
        if spec.get("sandbox") and kind != "AgentPolicy":
            self.check_fence(document)
            await self._check_reach(document, secret_hosts)
        if kind == "Agent":
            self.check_workspace(document)
            await self._check_hooks(document, secret_hosts)
        if kind == "TaskHook":
            self.check_watched(document)
        if kind == "Agent" and (runner := resolved_runner(document)) is not None:
            self.check_runner(runner, document["metadata"]["name"])
            with _of_runner():
                await self._check_reach(_fenced_agent(runner, **_place(document)), secret_hosts)
        if kind == "ModelEndpoint":
            if provider_of(document) is None:
                raise Denied(
                    f"ModelEndpoint/{document['metadata']['name']}: this server has no such provider",
                    hint=_ASK.format("install the package that brings the provider"),
                    field="spec.provider",
                )
            check_provider(document)
        if kind == "McpServer" and spec["transport"] == "stdio":
            self._check_command(document)
            _check_fenced(document)
        for field, url in addresses(document):
            await self._check_address(document, field, url)
        ref = spec.get("auth", {}).get("secretRef")
        if ref and kind in ("ModelEndpoint", "Tool", "McpServer", "Memory", "Channel"):
            await check_secret(document, ref, secret_hosts)
        if kind == "TaskWebhook":
            await _check_signing(document, secret_hosts)

    def _check_command(self, document: Document) -> None:
        self._check_line(document, server_spec(document))

    def _check_words(self, document: Document, words: Sequence[str], env: tuple[Variable, ...]) -> None:
        """Raises `Denied` unless the words of a command are granted. Each is one, also a program with a blank in it."""
        program, *args = words
        name = document["metadata"]["name"]
        self._check_line(document, ServerSpec("", name, "", "stdio", shlex.quote(program), tuple(args), env))

    def _check_line(self, document: Document, server: ServerSpec) -> None:
        if command_granted(server, self.mcp_commands):
            return
        line = " ".join((server.command, *server.args))
        raise Denied(
            f"{document['kind']}/{server.name}: this command line, with these variables, may not be started here",
            hint=_ASK.format(f"add `{line[:200]}` to the setting mcp_commands (FOLIOT_MCP_COMMANDS)"),
            field={"Tool": "spec.cli.command", "Agent": "spec.runner.command"}.get(document["kind"], "spec.command"),
        )

    async def _check_address(self, document: Document, field: str, url: str) -> None:
        try:
            await self._guard.check_url(url)
        except ToolUnreachable:
            return  # a name: what it leads to is checked whenever it is used
        except OutboundRefused as refused:
            raise Denied(
                f"{document['kind']}/{document['metadata']['name']}: {refused.message}",
                hint=_ASK.format("add the host to the setting outbound_allow (FOLIOT_OUTBOUND_ALLOW)"),
                field=field,
            ) from None

    @cached_property
    def _guard(self) -> Guard:
        return Guard(Outbound(allow_hosts=self.outbound_allow), lookup=_only_this_machine)


def _check_fenced(document: Document) -> None:
    """Raises `Denied` for a program without a sandbox that somebody else than the operator declares."""
    if spec_of(document).get("isolation") != "none" or declared_by_operator(document):
        return
    raise Denied(
        f"McpServer/{document['metadata']['name']}: only the operator has programs started without a sandbox",
        hint="leave spec.isolation out, or ask the operator of this installation (admin of all namespaces) "
        "to declare this resource",
        field="spec.isolation",
    )


NOTHING_GRANTED: Final = OperatorGrants()


def _fenced_agent(runner: RunnerSpec, name: str, namespace: str = "default") -> Document:
    """An agent of somebody else than the operator, with its fence where other kinds have theirs."""
    metadata = {"name": name, "namespace": namespace, "uid": name}
    return {"kind": "Agent", "metadata": metadata, "spec": {"sandbox": runner.sandbox}}


def _place(document: Document) -> dict[str, str]:
    metadata: Mapping[str, Any] = document["metadata"]
    return {"name": metadata["name"], "namespace": metadata.get("namespace", "default")}


@contextmanager
def _of_runner() -> Generator[None]:
    """Names the fields of a runner's fence in a refusal as they are declared."""
    try:
        yield
    except Denied as denied:
        if field := str(denied.details.get("field", "")):
            denied.details["field"] = field.replace("spec.sandbox", "spec.runner.sandbox")
        raise


def module_granted(module: str, patterns: Collection[str]) -> bool:
    """Whether a module is listed: by its name, or below a package as `package.*`, which holds the package too."""
    return any(
        module == pattern or (pattern.endswith(".*") and f"{module}.".startswith(pattern[:-1])) for pattern in patterns
    )


def not_granted(document: Document, denied: Denied) -> FoliotError:
    """The error of a tool that is used without what its declarer was not granted."""
    return ToolDenied(denied.message, hint=denied.hint, layer="deployment", tool=document["metadata"]["name"])


def _wasm(document: Document) -> Mapping[str, Any] | None:
    return spec_of(document).get("wasm") or None


def subject_granted(subject: str, pattern: str, namespace: str) -> bool:
    """Whether a pattern of `nats_subjects` holds a subject for the tools of one namespace.

    As in NATS, `*` is one word and `>` at the end one or more; `{namespace}` is the namespace of the tool. Words with a
    dollar sign belong to the NATS server itself, and are held only by a pattern that spells them out.
    """
    words, allowed = subject.split("."), pattern.split(".")
    open_end = allowed[-1] == ">"
    if open_end:
        allowed.pop()
    if len(words) < len(allowed) + open_end or (not open_end and len(words) > len(allowed)):
        return False
    for place, word in enumerate(words):
        wanted = allowed[place] if place < len(allowed) else "*"
        plain = bool(word) and not set(word) & set("$*>") and not any(map(str.isspace, word))
        if word != (namespace if wanted == "{namespace}" else wanted) and not (wanted == "*" and plain):
            return False
    return True


def check_provider(document: Document) -> None:
    """Raises `Denied` for a provider whose code chooses by itself where to connect and with which key."""
    provider = provider_of(document)
    if provider is None or declared_by_operator(document) or guarded(provider):
        return
    raise Denied(
        f"ModelEndpoint/{document['metadata']['name']}: the provider {provider.name!r} finds addresses and keys in "
        "the environment of this server",
        hint="ask the operator of this installation (admin of all namespaces) to declare this resource",
        field="spec.provider",
    )


def provider_of(document: Document) -> Provider | None:
    """The provider of a ModelEndpoint; None when it is not known here."""
    try:
        return default_registry().find(document["spec"]["provider"])
    except InvalidInput:
        return None


def guarded(provider: Provider) -> bool:
    """Whether its gateway is one of ours, which connect only where they are told."""
    return isinstance(provider.factory, str) and provider.factory.startswith(_OURS) and not provider.takes_model


def own_address(document: Document, environ: Mapping[str, str]) -> str | None:
    """The address that the operator's environment names for a ModelEndpoint which leaves it to the provider.

    None for an endpoint with an address of its own; "" when the environment names none.
    """
    provider = provider_of(document)
    base_url = str(document["spec"].get("base_url", "")).rstrip("/")
    if provider is None or base_url not in ("", provider.base_url.rstrip("/")):
        return None
    return provider.address_in(environ)


def chosen_address(document: Document, environ: Mapping[str, str] = os.environ) -> str:
    """The address of a ModelEndpoint that has to be granted; "" when the provider or the operator chose it.

    A provider on this machine (Ollama) that nobody configured is inside, whoever names it.
    """
    own, provider = own_address(document, environ), provider_of(document)
    if own or (own is not None and provider is not None and not provider.base_url.startswith("http:")):
        return ""
    return str(document["spec"].get("base_url", "")) or (provider.base_url if provider is not None else "")


def addresses(document: Document, environ: Mapping[str, str] = os.environ) -> list[tuple[str, str]]:
    """Returns the addresses that a resource has Foliot connect to, as URLs, each with its field."""
    if document["kind"] == "ModelEndpoint":
        chosen = chosen_address(document, environ)
        return [("spec.base_url", chosen)] if chosen else []
    return declared_addresses(document)


async def check_secret(document: Document, ref: str, secret_hosts: SecretHosts) -> None:
    """Raises `Denied` when whoever declared a resource chose an address that its Secret is not bound to."""
    targets = secret_targets(document, addresses(document))
    hosts = await secret_hosts(ref, document["metadata"].get("namespace", "default")) if targets else None
    if targets is not None:
        _check_bound(document, ref, targets, hosts)


def _check_bound(document: Document, ref: str, targets: Sequence[str], hosts: Sequence[str] | None) -> None:
    """Raises `Denied` for a Secret that is declared, and bound to other hosts than these."""
    if hosts is not None and (host := unbound(targets, hosts)) is not None:
        raise Denied(
            f"{document['kind']}/{document['metadata']['name']}: the Secret {ref!r} is not bound to the host {host!r}, "
            "and is not sent there",
            hint=f"an admin of the namespace, or whoever gives new values, adds {host} to spec.hosts of the Secret",
            host=host,
        )


async def _check_signing(document: Document, secret_hosts: SecretHosts) -> None:
    """Raises `Denied` when a webhook takes a Secret that is for something else: its declarer could try values out."""
    auth, metadata = spec_of(document).get("auth", {}), document["metadata"]
    for ref in (auth.get("secret_ref"), *auth.get("secret_refs", ())):
        hosts = await secret_hosts(ref, metadata.get("namespace", "default")) if ref else None
        if hosts is not None and not takes_webhooks(hosts):
            raise Denied(
                f"TaskWebhook/{metadata['name']}: the Secret {ref!r} is bound to hosts, and not for webhooks",
                hint=f"an admin of the namespace, or whoever gives new values, adds {WEBHOOK} to spec.hosts of it",
                field="spec.auth",
            )


async def _only_this_machine(host: str, port: int) -> Sequence[str]:
    """Names are not resolved for whoever declares: only the ones that mean this machine by definition."""
    if host.rstrip(".") == "localhost" or host.rstrip(".").endswith(".localhost"):
        return ["127.0.0.1"]
    raise OSError("not looked up")
