"""Which backend serves a declared tool: chosen by its type and isolation, made when it is first needed.

One set for each runtime: its tools share the guard on the way out, the caches of tokens and connections, and one
masker that hides every secret that was ever looked up. Nothing is opened for a runtime that only calls functions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from foliot.common.waits import Waits
from foliot.engine.definition.endpoints import bound_hosts
from foliot.engine.definition.freeze import FENCED_MODES, FENCED_TYPES, tool_definition
from foliot.engine.definition.functions import fenced_definition, function_tool
from foliot.engine.definition.grants import NOTHING_GRANTED, OperatorGrants, not_granted
from foliot.engine.definition.references import References
from foliot.engine.definition.skills import StoredDrafts
from foliot.errors import Denied, NotHere
from foliot.resources.agreed import Agreed
from foliot.sandbox import bubblewrap
from foliot.sandbox.base import Enforcement, SandboxError
from foliot.store.base import Document, Key, ResourceStore
from foliot.store.journal.base import TERMINAL
from foliot.tools.base import Tool, ToolDefinition, ToolIsolationMissing, ToolSecretMissing, ToolUnsupported
from foliot.tools.fences import BACKENDS, Backend, Fences
from foliot.tools.isolation import NONE, Isolations
from foliot.tools.secrets.secrets import Secrets
from foliot.tools.workspaces import SharedWorkspace

if TYPE_CHECKING:
    from foliot.bus.nats_link import NatsLink, NatsOptions
    from foliot.sandbox.base import Sandbox
    from foliot.store.journal.base import Journal
    from foliot.tools.backends.agent import Agents
    from foliot.tools.backends.callbacks import Shared
    from foliot.tools.backends.grpc import GrpcChannels
    from foliot.tools.backends.http import Web
    from foliot.tools.builtin.memory import SharedMemory
    from foliot.tools.builtin.run_processes import RunProcesses, RunRow
    from foliot.tools.mcp.connections import McpConnections
    from foliot.tools.nats_worker.callers import Signer
    from foliot.tools.workspaces import WorkspaceFolders

log = logging.getLogger(__name__)

# Seconds that a sandbox may take to say what it enforces: a daemon of containers may not answer.
LONGEST_LOOK: Final = 10.0
OVER_HTTP = ("http", "external", "webhook-callback")


def _make_sandbox(backend: Backend, container_cli: str, container_runtime: str) -> Sandbox:
    if backend == "process":
        from foliot.sandbox.process import ProcessSandbox

        return ProcessSandbox()
    from foliot.sandbox.container import ContainerSandbox
    from foliot.sandbox.container_cli import RUNSC

    return ContainerSandbox(cli=container_cli, runtime=RUNSC if backend == "gvisor" else container_runtime)


async def _rows_of(journal: Journal, run_ids: Sequence[str]) -> Mapping[str, RunRow]:
    """The claims of runs; those that have ended or are not there are missing."""
    from foliot.tools.builtin.run_processes import RunRow

    found = await journal.many(run_ids)
    return {info.id: RunRow(info.epoch, info.worker) for info in found if info.phase not in TERMINAL}


def can_fence(mode: str = "sandboxed", container_cli: str = "") -> bool:
    """Whether programs can be fenced here as far as can be seen without trying: the program that does it is there."""
    if mode == "container":
        from foliot.sandbox.container_cli import find

        return find(container_cli) is not None
    return bubblewrap.find() is not None


def _not_contained(definition: ToolDefinition) -> ToolIsolationMissing:
    """The refusal of a tool whose isolation is not here, or cannot be anywhere for its type."""
    what = f"tool {definition.name!r} of the type {definition.type!r} must run {definition.isolation!r}"
    if definition.type in FENCED_TYPES and definition.isolation in FENCED_MODES:
        missing = "`foliot doctor` says what is missing"
        if definition.isolation == "container":
            missing = "install podman or docker where the run is driven, or set isolation_mode: sandboxed"
        return ToolIsolationMissing(f"{what}, and there is no such sandbox here", hint=missing)
    fenced = " and ".join(f"`{each}`" for each in sorted(FENCED_TYPES))
    why = "its code runs elsewhere, so there is nothing here to put into a sandbox"
    if definition.type == "mcp":
        why = "its program is put into a sandbox by the McpServer"
    risky = f"; it is {definition.isolation!r} by default because its risk is {definition.risk!r}"
    return ToolIsolationMissing(
        f"{what}, and {why}{risky if definition.risk in ('high', 'critical') else ''}",
        hint=f"only {fenced} tools can be fenced: set spec.runtime.isolation_mode: none, and have calls approved by a "
        "ToolPermission if they are risky",
    )


class Backends:
    """`grants` are what the operator allows: modules of tools, MCP servers that may be started, hosts inside.

    Built-in tools read `journal`, and files of `workspace`, which belongs to one `namespace`.
    """

    def __init__(
        self,
        secrets: Secrets,
        store: ResourceStore | None,
        *,
        grants: OperatorGrants = NOTHING_GRANTED,
        nats: NatsOptions | None = None,
        signer: Signer | None = None,
        public_url: str | None = None,
        environ: Mapping[str, str],
        journal: Journal | None = None,
        workspace: Path | None = None,
        workspaces: WorkspaceFolders | None = None,
        namespace: str = "default",
        references: References | None = None,
        memory: SharedMemory | None = None,
        pushes: Shared | None = None,
        waits: Waits | None = None,
        container_cli: str = "",
        container_runtime: str = "",
    ) -> None:
        """`memory` is what the agents of one task share, `pushes` what tools push to any process of the installation.

        Both need a database.
        """
        self._waits = waits or Waits()
        self._secrets = secrets
        self._store = store
        self._references = references or References(store)
        self.grants = grants
        self._nats_options = nats
        self._signer = signer
        self._public_url = public_url
        self._environ = environ
        self._journal = journal
        self.memory = memory
        self._pushes = pushes
        self._workspace = workspace
        self._namespace = namespace
        self._web: Web | None = None
        self._grpc: GrpcChannels | None = None
        self._nats: NatsLink | None = None
        self._mcp: McpConnections | None = None
        self._sandboxes: dict[str, Sandbox] = {}
        self._processes: RunProcesses | None = None
        self._containers = container_cli, container_runtime
        # What opens the fences of calls. The composition root sets one that is governed.
        self.fences = Fences(self.sandbox_of, workspaces=workspaces or SharedWorkspace(workspace, namespace))
        # The isolations of declared tools. Set up by the composition root; a tool whose mode is not in it is refused.
        self.isolations = Isolations()
        # Who runs agents for agents. Set by whoever puts a runtime together; without it there are none.
        self.agents: Agents | None = None

    def tool(self, document: Document) -> Tool:
        """The tool that a normalised Tool document declares.

        Raises `ToolUnsupported` for a type without a backend, `ToolIsolationMissing` for an isolation that is not
        there: a tool is never run in something weaker than what it declares.
        """
        definition = tool_definition(document)
        if definition.type == "mcp":
            return self._mcp_tool(document, definition)
        if definition.isolation == "wasm":
            definition = self._wasm_definition(document, definition)
        if definition.isolation != NONE:
            return self._contained(document, definition)
        make = {
            "function": self._function,
            "grpc": self._grpc_tool,
            "queue": self._nats_tool,
            **dict.fromkeys(OVER_HTTP, self._http_tool),
        }.get(definition.type)
        if make is None:
            raise ToolUnsupported(
                f"tool {definition.name!r} has the type {definition.type!r}, which nothing here serves"
            )
        return make(document, definition)

    async def looked_up(self, document: Document) -> Tool:
        """Make the tool with what only the store knows: a tool of an MCP server has the isolation of that server.

        Raises as `tool`.
        """
        made = self.tool(document)
        if document["spec"]["type"] != "mcp":
            return made
        from foliot.tools.mcp.tool import McpTool, stronger

        if not isinstance(made, McpTool) or (server := await made.server()) is None:
            return made  # which a call is told of
        options = dict(made.definition.options)
        if server.mode in FENCED_MODES:
            options["sandbox"] = server.fence
        isolation = stronger(made.definition.isolation, server.mode)
        definition = replace(made.definition, isolation=isolation, options=options)
        return self._mcp_tool(document, definition, server.mode)

    def workspace_of(self, namespace: str) -> Path | None:
        """The files that tools of a namespace work on. Namespaces are kept apart: only one has them."""
        return self._workspace if namespace == self._namespace else None

    def data_notes(self, tools: Iterable[Tool], namespace: str, agent: str, rules: Mapping[str, Any]) -> dict[str, str]:
        """Returns what tools of a run tell a model of `data/`, by their names; nothing where it is not kept."""
        if self.fences.workspaces is None or not self.fences.workspaces.keeps_data(namespace, agent, rules):
            return {}
        return {tool.definition.name: note for tool in tools if (note := getattr(tool, "data_note", ""))}

    def builtin(self, namespace: str, name: str, definitions: Callable[[], Iterable[ToolDefinition]]) -> Tool | None:
        """The built-in tool of that name; `definitions` are all tools of the run. Raises `InvalidInput`."""
        from foliot.tools.builtin.catalogue import NAMES, BuiltinServices, builtin_tool
        from foliot.tools.builtin.workspace import RunFiles

        if name not in NAMES:
            return None
        fenced = can_fence()
        around = BuiltinServices(
            call_files=RunFiles(self.fences),
            outbound=lambda: self.web.client,
            journal=self._journal,
            agents=self.agents,
            memory=self.memory,
            sandbox=(lambda: self.sandbox) if fenced else None,
            fences=self.fences if fenced else None,
            processes=self.processes if fenced else None,
            mounts=self.grants.sandbox_mounts,
            drafts=None if self._store is None else StoredDrafts(self._store),
        )
        return builtin_tool(name, around, definitions)

    async def lacks(self, tool: Tool) -> str:
        """Name what the tool needs, others may have, and this process has not: a program or a secret. Else nothing."""
        from foliot.tools.builtin.code import Code

        if isinstance(tool, Code) and (lacks := tool.lacks):
            return lacks
        needed, by, space, auth = list[str](), "Tool", tool.definition.namespace, tool.definition.auth
        if self._mcp is not None:
            from foliot.tools.mcp.process import missing_program
            from foliot.tools.mcp.tool import McpTool

            if isinstance(tool, McpTool) and (server := await tool.server()) is not None:
                if program := missing_program(server, self._environ):
                    return f"command {program}"
                needed = [variable.secret_ref for variable in server.env if variable.secret_ref]
                by, space, auth = "McpServer", server.namespace, server.auth
        if auth is not None and auth.secret_ref:
            needed.append(auth.secret_ref)
        for reference in needed:
            try:
                await self._secrets.value(reference, namespace=space, by=by)
            except ToolSecretMissing as error:
                if error.details.get("cause") in ("not_found", "failed"):
                    return f"secret {reference}"
        return ""

    @property
    def processes(self) -> RunProcesses:
        """The processes that live between the calls of runs: jobs and interpreters."""
        if self._processes is None:
            from foliot.tools.builtin.run_processes import RunProcesses

            self._processes = RunProcesses(self.fences, self._journal)
            if self._journal is not None:
                self._processes.watch(partial(_rows_of, self._journal))
        return self._processes

    def live_processes(self) -> RunProcesses | None:
        """The same; None as long as no run of this process can have any."""
        return self._processes

    def forget(self, namespace: str, user: str) -> None:
        """Lets go of connections that were used for a user, once nobody uses them, and of access tokens."""
        if self._mcp is not None:
            self._mcp.renew(namespace, user)
        if self._web is not None:
            self._web.auth.forget()

    async def close(self) -> None:
        if self._processes is not None:
            await self._processes.close()
        await self.isolations.close()
        for part in (self._mcp, self._grpc, self._nats, self._web, *self._sandboxes.values()):
            if part is not None:
                await part.close()

    def sandbox_of(self, backend: Backend) -> Sandbox:
        """The sandbox of one kind, one for all tools of this runtime. Whether it can be used, it says itself."""
        if backend not in self._sandboxes:
            self._sandboxes[backend] = _make_sandbox(backend, *self._containers)
        return self._sandboxes[backend]

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of processes."""
        return self.sandbox_of("process")

    async def enforced(self, *, containers: bool = True) -> tuple[str, ...]:
        """Returns what can be enforced around programs here, in the words of `Needs.isolation`. Never raises."""
        found = {"wasm"} if find_spec("wasmtime") is not None else set[str]()
        for each in await asyncio.gather(*map(self._enforcement, BACKENDS if containers else BACKENDS[:1])):
            if each is None or not each.available:
                continue
            bounds = (name for name in ("memory", "cpu") if each.enforces(name))
            found.update((each.backend, *(f"{each.backend}+{name}" for name in bounds)))
        return tuple(sorted(found))

    async def _enforcement(self, backend: Backend) -> Enforcement | None:
        """Returns what one sandbox enforces; None when there is none, or it does not say so in time."""
        try:
            async with asyncio.timeout(LONGEST_LOOK):
                return msgspec.structs.replace(await self.sandbox_of(backend).enforces(), backend=backend)
        except (SandboxError, TimeoutError) as error:
            log.info("there is no sandbox %s here: %s", backend, error)
            return None

    def _wasm_definition(self, document: Document, definition: ToolDefinition) -> ToolDefinition:
        """The definition with the file of its module; raises what a tool without a grant is refused with."""
        from foliot.tools.backends.wasm import WasmIsolation, WasmTool

        if not self.isolations.serves(definition):
            self.isolations.register(WasmIsolation(), WasmTool)
        try:
            declared = self.grants.wasm_module(document)
        except Denied as denied:
            raise not_granted(document, denied) from None
        return replace(definition, options={**definition.options, "wasm": declared})

    def _contained(self, document: Document, definition: ToolDefinition) -> Tool:
        if not self.isolations.serves(definition):
            raise _not_contained(definition)
        if definition.type in FENCED_TYPES and definition.isolation in FENCED_MODES:
            definition = self._fenced(document, definition)

        def never() -> Tool:
            raise AssertionError("a tool that declares an isolation has no plain backend")

        return self.isolations.contained(definition, never)

    def _fenced(self, document: Document, definition: ToolDefinition) -> ToolDefinition:
        """The definition with what runs, and the fence around it, as whoever declared the tool may have both."""
        if definition.type == "function":
            definition = fenced_definition(document, self.grants)
        try:
            if definition.type == "cli":
                self.grants.check_program(document)
            fence = self.grants.fence(document)
        except Denied as denied:
            raise not_granted(document, denied) from None
        return replace(definition, options={**definition.options, "sandbox": fence})

    @property
    def web(self) -> Web:
        if self._web is None:
            from foliot.tools.backends.callbacks import Callbacks
            from foliot.tools.backends.http import Web
            from foliot.tools.outbound.guard import Outbound

            self._web = Web(
                self._secrets,
                Outbound(allow_hosts=self.grants.outbound_allow),
                callbacks=Callbacks(self._public_url or "", shared=self._pushes),
                waits=self._waits,
            )
        return self._web

    def _function(self, document: Document, definition: ToolDefinition) -> Tool:
        return function_tool(document, self.grants)

    def _http_tool(self, document: Document, definition: ToolDefinition) -> Tool:
        from foliot.tools.backends.http import http_backends

        return http_backends(self.web)[definition.type, definition.isolation](definition)

    def _grpc_tool(self, document: Document, definition: ToolDefinition) -> Tool:
        from foliot.tools.backends.grpc import GrpcChannels, GrpcTool

        if self._grpc is None:
            self._grpc = GrpcChannels(guard=self.web.guard)
        return GrpcTool(definition, self._grpc, auth=self.web.auth)

    def _nats_tool(self, document: Document, definition: ToolDefinition) -> Tool:
        from foliot.bus.nats_link import NatsLink
        from foliot.tools.backends.nats import NatsTool

        self.grants.check_subject(document)
        if self._nats is None:
            if self._nats_options is None:
                raise NotHere(
                    f"tool {definition.name!r} is served over NATS, and no NATS server is configured",
                    hint="set FOLIOT_NATS, or `nats` in the configuration file",
                    lacks="the setting nats",
                )
            self._nats_options.check()
            self._nats = NatsLink(self._nats_options)
        return NatsTool(definition, self._nats, signer=self._signer)

    def _mcp_tool(self, document: Document, definition: ToolDefinition, isolation: str | None = None) -> Tool:
        """Make a tool of an MCP server. Until its `isolation` is looked up, a call finds out whether it fits."""
        from foliot.tools.mcp.connections import McpConnections
        from foliot.tools.mcp.process import auth_headers, secret_values
        from foliot.tools.mcp.tool import McpTool

        if self._mcp is None:
            self._mcp = McpConnections(
                allowed_commands=self.grants.mcp_commands,
                fences=self.fences,
                granted_mounts=self.grants.sandbox_mounts,
                granted_images=self.grants.container_images,
                resolve_secret=secret_values(self._secrets),
                secret_hosts=None if self._store is None else partial(bound_hosts, self._store),
                authorize=auth_headers(self.web.auth),
                guard=self.web.guard.addresses,
                environ=self._environ,
            )
        return McpTool(
            definition,
            document,
            self._mcp,
            self._find_server,
            self._find_agreed,
            self._references.allow,
            isolation=definition.isolation if isolation is None else isolation,
        )

    async def _find_server(self, namespace: str, name: str) -> Document:
        assert self._store is not None, "the tool was declared in it"
        return await self._store.get(Key("McpServer", namespace, name))

    async def _find_agreed(self, namespace: str, server: str, tool: str) -> Agreed | None:
        assert self._store is not None, "the server was found in it"
        found = await self._store.agreed(namespace, server, tool)
        return found[0] if found else None
