"""Everything that a runtime is made of, put together from its settings, and taken apart again."""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from foliot.bus.base import Ticket, Transport
from foliot.common.process import is_gone
from foliot.common.waits import LEASE_SECONDS, Waits
from foliot.engine.approval.questions import Questions
from foliot.engine.approval.records import DecisionLog
from foliot.engine.approval.service import ApprovalService
from foliot.engine.audit.completion import Completion
from foliot.engine.audit.log import AuditTrail, open_audit
from foliot.engine.base import Clock, Settlement, Watcher
from foliot.engine.budgets.run_budget import RunBudgets, open_budgets
from foliot.engine.code.conversation import REFERENCE
from foliot.engine.code.fenced import FencedPython
from foliot.engine.code.gateway import CodeGateway
from foliot.engine.code.interpreter import Interpreter
from foliot.engine.definition.backends import Backends, can_fence
from foliot.engine.definition.endpoints import RunModels, stored_secrets
from foliot.engine.definition.freeze import FENCED_MODES
from foliot.engine.definition.governance import ModelGate, governed
from foliot.engine.definition.grants import OperatorGrants
from foliot.engine.definition.references import References
from foliot.engine.definition.task_memory import TaskMemory
from foliot.engine.driver.doubts import Doubts
from foliot.engine.driver.intake import caller_of
from foliot.engine.driver.runs import Runs
from foliot.engine.hooks.base import Hook
from foliot.engine.hooks.http import HttpHooks
from foliot.engine.hooks.registry import HookRegistry
from foliot.engine.limits.shared import Limiting, open_limiting
from foliot.engine.live.hub import RunHub
from foliot.engine.plugins import Plugins
from foliot.engine.runners.gateway import RunnerGateway
from foliot.engine.runners.profile import REFERENCE as RUNNER_MODEL
from foliot.engine.workspaces.folders import UserFolders
from foliot.engine.workspaces.workspaces import RunWorkspaces
from foliot.errors import UsageError
from foliot.kernel.run.spec import RunSpec
from foliot.resources.digest import definition_digest
from foliot.resources.references import Origin
from foliot.runtime.assembly import Assembly
from foliot.runtime.delegation import Delegator
from foliot.sandbox.base import SandboxSession
from foliot.sessions.base import TurnRuns
from foliot.sessions.service import SessionService
from foliot.settings.settings import RULES, Given, Settings, load_settings
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import Database, Document, Key, NextChange, Notices, ResourceStore
from foliot.store.folders import SqlFolders
from foliot.store.incarnation import note_set_back
from foliot.store.journal.base import TASK_LABEL, Journal, Lease, RunInfo
from foliot.store.journal.database import SqlJournal
from foliot.store.journal.memory import MemoryJournal
from foliot.store.ledger.doubts import DoubtTable
from foliot.store.ledger.pushes import StoredPushes
from foliot.store.open import open_when_there
from foliot.store.queue.placement import Offer
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import load_keyring
from foliot.tools.backends.agent import RUNNING_CODE
from foliot.tools.backends.cli import CliFence, CliTool
from foliot.tools.backends.fenced_function import FencedFunction, FunctionFence
from foliot.tools.base import Tool
from foliot.tools.fences import FenceRequest, Fences, FenceSecret
from foliot.tools.governance.layers import ceilings_of
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.tools.registry import GLOBAL, ToolRegistry
from foliot.tools.secrets.secrets import Secrets
from foliot.tools.workspaces import FenceOwner
from foliot.work.housekeeping import Housekeeper, Retention
from foliot.work.tasks.plan import Bundles
from foliot.work.tasks.service import TaskService
from foliot.work.views.reader import Stories
from foliot.work.worker.performer import TaskPerformer
from foliot.work.worker.places import Places
from foliot.work.worker.timekeeper import Timekeeper
from foliot.work.worker.worker import Worker

if TYPE_CHECKING:
    from foliot.engine.live.relay import Relay

MEMORY = "memory:"


@dataclass
class RuntimeParts:
    """The parts of an open runtime. In memory there is no database, and what needs one is missing."""

    runs: Runs
    assembly: Assembly
    questions: Questions
    clock: Clock
    plugins: Plugins
    settings: Settings | None = None
    database: Database | None = None
    resources: ResourceStore | None = None
    approvals: ApprovalService | None = None
    audit: AuditTrail | None = None
    budgets: RunBudgets | None = None
    limiting: Limiting | None = None
    wall: Clock | None = None
    workspaces: RunWorkspaces | None = None
    sessions: SessionService | None = None

    @property
    def _waits(self) -> Waits:
        return Waits(self.runs.lease_seconds)

    @cached_property
    def tasking(self) -> Tasking:
        """Tasks, made when they are first needed. Raises `UsageError` in memory."""
        from foliot.bus.open import OpenedLater, open_transport, over_database

        if self.database is None or self.resources is None or self.settings is None:
            raise UsageError("a runtime in memory keeps no tasks", hint="give the runtime a store, such as a path")
        opening = partial(open_transport, self.settings, self.database, clock=self.clock, waits=self._waits)
        over_nats = self.settings.nats is not None
        transport = OpenedLater(opening) if over_nats else over_database(self.database, clock=self.clock)
        return Tasking(
            self.database,
            self.resources,
            self.runs,
            self.assembly,
            transport,
            clock=self.clock,
            wall=self.wall,
            relay=self.relay,
            workspaces=self.workspaces,
        )

    @cached_property
    def relay(self) -> Relay | None:
        """The relay that shows runs to other processes; None where there are no others, or no way to them."""
        hub = self.runs.watcher
        if self.settings is None or self.database is None or not isinstance(hub, RunHub):
            return None
        if self.settings.nats is None and not isinstance(self.database, Notices):
            return None
        from foliot.bus.open import open_live
        from foliot.engine.live.relay import Relay

        return Relay(hub, partial(open_live, self.settings, self.database, waits=self._waits))

    async def settlement(self, lease: Lease) -> Settlement:
        """The task that a queued run belongs to."""
        return await self.tasking.performer.settlement(lease)

    async def close(self) -> None:
        """Closes the parts in the order in which they need each other."""
        if "tasking" in self.__dict__:
            await self.tasking.close()
        await self.assembly.leave_children()
        await self.runs.close()
        if (relay := self.__dict__.get("relay")) is not None:
            await relay.close()
        await self.plugins.close()
        await self.assembly.close()
        if self.workspaces is not None:
            await self.workspaces.close()
        if self.budgets is not None:
            await self.budgets.close()
        if self.limiting is not None:
            await self.limiting.close()
        if self.audit is not None:
            await self.audit.close()
        if self.database is not None:
            await self.database.close()


async def compose(
    url: str | None,
    settings: Settings | None,
    *,
    tools: Iterable[Tool],
    workspace: Path | None,
    watcher: Watcher,
    next_change: NextChange,
    turns: TurnRuns,
    clock: Clock | None,
    lease_seconds: float | None,
    store_wait: float = 0.0,
    hooks: Iterable[Hook] = (),
) -> RuntimeParts:
    """Open the store that the settings name, and put everything else on top of it. Raises `FoliotError`.

    Without a `clock` times are those of the store, so that processes on machines whose clocks differ agree.
    """
    around = _Around(tools, workspace, watcher, next_change, turns, clock, hooks)
    if url == MEMORY:
        journal: Journal = MemoryJournal(takes_turns=True)
        lease_seconds = LEASE_SECONDS if lease_seconds is None else lease_seconds
        return _assembled(None, None, journal, settings, around, lease_seconds)
    if settings is None:
        if url is not None:  # a complaint names what the program gave: there is no flag here
            RULES["store"].parse(Given(url, "Runtime", Path.cwd()))
        settings = load_settings({"store": url})
    lease_seconds = settings.lease if lease_seconds is None else lease_seconds
    patience = store_wait if settings.store_wait is None else float(settings.store_wait)
    database = await open_when_there(settings.store, Waits(lease_seconds), patience=patience)
    resources = SqlResourceStore(
        database, partial(load_keyring, settings), existing=partial(load_keyring, settings, create=False)
    )
    journal = SqlJournal(database, clock=clock or database.clock)
    try:
        return _assembled(database, resources, journal, settings, around, lease_seconds)
    except BaseException:
        await database.close()
        raise


def _over_nats(settings: Settings, waits: Waits) -> dict[str, Any]:
    """How tools over NATS are reached, and what their calls are signed with. Raises `InvalidInput` for a bad key."""
    from foliot.bus.open import nats_options
    from foliot.tools.nats_worker.callers import Signer, read_key

    given: dict[str, Any] = {"nats": nats_options(settings, name="foliot-tools", waits=waits)}
    if settings.nats_caller_key is not None:
        given["signer"] = Signer(settings.nats_caller, read_key(settings.nats_caller_key, "FOLIOT_NATS_CALLER_KEY"))
    return given


class _Around(NamedTuple):
    """The caller's own parts: his tools, where files are, who watches, how to wait, how turns run, his clock."""

    tools: Iterable[Tool]
    workspace: Path | None
    watcher: Watcher
    next_change: NextChange
    turns: TurnRuns
    clock: Clock | None
    hooks: Iterable[Hook] = ()


def _assembled(
    database: Database | None,
    resources: SqlResourceStore | None,
    journal: Journal,
    settings: Settings | None,
    around: _Around,
    lease_seconds: float,
) -> RuntimeParts:
    """Makes every part of a runtime, each of those that it needs. Without a database much of it is missing.

    Raises `UsageError` for audit sinks that cannot be opened.
    """
    waits = Waits(lease_seconds)
    clock, lease_clock, wall = around.clock or time.time, around.clock, None
    if around.clock is None and database is not None:
        clock, lease_clock, wall = database.clock, database.lease_clock, time.time
    references = References(resources)
    # One set for all parts: what was looked up for a tool is hidden in the audit log too.
    secrets = stored_secrets(resources, os.environ, references)
    audit = open_audit(database, secrets, settings) if database is not None else None
    decisions = DecisionLog(audit)
    questions = Questions(journal, clock=clock, masker=secrets.masker, log=decisions)
    people = SqlTokens(database).person if database is not None else None
    approvals = (
        ApprovalService(resources, journal, clock=clock, masker=secrets.masker, log=decisions, people=people)
        if resources is not None
        else None
    )
    shared, namespace = around.workspace or (settings.workspace if settings else None), "default"
    if settings is not None:
        namespace = settings.namespace
    shared = None if shared is None else shared.absolute()
    root = settings.workspaces if settings is not None and database is not None else None
    home = settings.home if settings is not None and database is not None else None
    grants = OperatorGrants.of(settings)
    folders = UserFolders(journal, SqlFolders(database), clock=clock) if database is not None else None
    workspaces = RunWorkspaces(
        journal,
        root,
        home=home,
        shared=shared,
        namespace=namespace,
        sources=grants.workspace_sources,
        folders=folders,
        granted=grants.sandbox_limits,
    )
    backends = Backends(
        secrets,
        resources,
        grants=grants,
        **(_over_nats(settings, waits) if settings and settings.nats else {}),
        public_url=settings.public_url if settings else None,
        environ=os.environ,
        journal=journal,
        workspace=shared,
        workspaces=workspaces,
        namespace=namespace,
        references=references,
        memory=TaskMemory(database, clock=clock) if database is not None else None,
        pushes=StoredPushes(database, resources.keys) if database is not None and resources is not None else None,
        waits=waits,
        container_cli=settings.container_cli if settings else "",
        container_runtime=settings.container_runtime if settings else "",
    )
    engine = settings.container_cli if settings else ""
    for mode in (mode for mode in FENCED_MODES if can_fence(mode, engine)):
        backends.isolations.register(FunctionFence(lambda: backends.fences, mode), FencedFunction, type="function")
        backends.isolations.register(CliFence(lambda: backends.fences, mode), CliTool, type="cli")
    limiting = open_limiting(database, clock=clock, journal=journal) if database is not None else None
    models = RunModels(
        resources,
        clock=clock,
        environ=os.environ,
        secrets=secrets,
        outbound=lambda: backends.web.client,
        references=references,
        waits=waits,
        turns=limiting.turns if limiting is not None else None,
        circuits=limiting.circuits.of_model if limiting is not None else None,
    )
    models.reserve(RUNNER_MODEL, RunnerGateway(lambda: backends.fences, grants=backends.grants))
    budgets = (
        open_budgets(
            database, resources, journal, quote=models.quote, clock=clock, told=audit.budget if audit else None
        )
        if database is not None and resources is not None
        else None
    )
    governance = governed(
        resources,
        clock=clock,
        default_access=settings.default_tool_access if settings else "allow",
        allowed_tools=settings.allowed_tools if settings else None,
        store_blob=journal.put_blob,
        secrets=secrets,
        recorders=() if audit is None else (audit,),
        budgets=budgets.calls if budgets is not None else None,
        limiting=limiting,
        people=people,
    )
    backends.fences = Fences(
        backends.sandbox_of,
        workspaces=backends.fences.workspaces,
        ceilings=partial(ceilings_of, governance.rules),
        resolve=lambda host, port: backends.web.guard.addresses(host, port),
        record=audit.egress if audit is not None else None,
        reveal=partial(_revealed, secrets),
        default_image=settings.container_image if settings else "",
        granted_limits=settings.sandbox_limits if settings else None,
        unfenced=audit.unfenced if audit is not None else None,
    )
    gate = ModelGate(governance.rules, models.models_of)
    brought = ToolRegistry(parent=GLOBAL)
    hooks = HookRegistry(around.hooks, mask=secrets.masker.mask, http=HttpHooks(lambda: backends.web.client, secrets))
    runs = Runs(
        journal=journal,
        models=models,
        tools=Pipeline(),
        watcher=around.watcher,
        clock=clock,
        lease_clock=lease_clock,
        lease_seconds=lease_seconds,
        approvals=approvals,
        decisions=decisions,
        budgets=budgets,
        gate=gate,
        doubts=None
        if database is None
        else Doubts(DoubtTable(database), journal, clock=lease_clock or clock, is_gone=is_gone),
        folders=folders,
        taken_over=None
        if database is None or audit is None
        else Completion(database, masker=audit.masker, trail=audit).complete_run,
        set_back=partial(note_set_back, database, clock=clock) if database is not None else None,
        hooks=hooks,
    )

    async def fence_of_program(wanted: FenceRequest, run_id: str) -> SandboxSession:
        _, state = await runs.load(run_id)
        return await backends.fences.open(wanted, FenceOwner(RUNNING_CODE, caller_of(state), run_id))

    fenced = partial(FencedPython, fence_of_program) if can_fence() else None
    models.reserve(REFERENCE, CodeGateway(Interpreter, fenced))
    assembly = Assembly(models, resources, around.tools, backends, clock, governance, gate, hooks, brought)
    # Two circles are closed here: an agent that calls agents needs runs, and a run that is taken up its children.
    assembly.delegate = delegator = Delegator(runs, assembly, clock=clock, next_change=around.next_change)
    runs.taken_up = delegator.taken_up
    runs.processes = backends.live_processes
    runs.workspaces = workspaces
    sessions = None
    if database is not None:
        sessions = SessionService(database, journal, around.turns, clock=clock, questions=questions)
        runs.turn_settlement = sessions.keeper.settlement
        runs.turn_files = sessions.files.of_run
    return RuntimeParts(
        runs,
        assembly,
        questions,
        clock,
        Plugins(brought, hooks),
        settings,
        database,
        resources,
        approvals,
        audit,
        budgets,
        limiting,
        wall,
        workspaces,
        sessions,
    )


async def _revealed(secrets: Secrets, owner: FenceOwner, namespace: str, secret: FenceSecret) -> str:
    """The value that an egress broker sends. Raises `ToolSecretMissing`."""
    hosts = secret.hosts if secret.bound else None
    return await secrets.value(secret.ref, namespace=namespace, tool=owner.tool, hosts=hosts, by=secret.by)


# --- tasking ---------------------------------------------------------------------------------------------------------

# Tasks on top of a runtime: what the work room needs, put together from what a runtime has.

GRACE: Final = 30.0


class StoredDefinitions:
    """`Definitions` of a runtime: Python objects that it knows first, then what is in the store."""

    def __init__(self, assembly: Assembly, resources: ResourceStore) -> None:
        self._assembly = assembly
        self._resources = resources
        self._references = References(resources)

    async def version(self) -> Hashable:
        """Returns a value that changes with the declared resources; see `Definitions`."""
        return await self._resources.revision(), self._assembly.generation

    async def agent(self, namespace: str, name: str, *, user: str = "") -> tuple[RunSpec, str]:
        """Returns the frozen spec of an agent and its digest; see `Definitions`."""
        agent = self._assembly.known(namespace, name) or await self._assembly.agent(f"{namespace}/{name}")
        return await self._assembly.with_skills_of(await self._assembly.freeze(agent), user), agent.digest

    async def has_skills(self, namespace: str, user: str, version: Hashable) -> bool:
        """Returns whether a user has skills in a namespace; see `Definitions`."""
        revision, _ = cast("tuple[int, int]", version)
        return bool(await self._assembly.skills_of(user, namespace, revision=revision))

    async def system(self, namespace: str, name: str) -> tuple[Document, str]:
        """Returns the document of a system and its digest; see `Definitions`."""
        document = await self._resources.get(Key("AgentSystem", namespace, name))
        return document, definition_digest(document)

    async def template(self, ref: str, origin: Origin) -> Document:
        """Returns the Task template that `ref` names for `origin`; see `Definitions`."""
        return await self._resources.get(await self._references.resolve(origin, "Task", ref))


class Tasking:
    """The tasks of one runtime, and whoever does their runs here. Closing it closes the transport."""

    def __init__(
        self,
        database: Database,
        resources: ResourceStore,
        runs: Runs,
        assembly: Assembly,
        transport: Transport,
        *,
        clock: Clock,
        wall: Clock | None = None,
        stream: bool = False,
        relay: Relay | None = None,
        workspaces: RunWorkspaces | None = None,
    ) -> None:
        """`wall` is the clock of this machine, for workers to tell by how much it is off."""
        self.transport = transport
        self._relay = relay
        self._workspaces = workspaces
        self.database = database
        bundles = Bundles(runs.journal)
        self.performer = TaskPerformer(
            database, runs, bundles, transport, toolbox=assembly.pipeline_here, clock=clock, stream=stream
        )
        self.tasks = TaskService(
            database,
            bundles,
            StoredDefinitions(assembly, resources),
            transport,
            clock=clock,
            wake=self._end_here,
            hear=runs.hear,
        )
        self.stories = Stories(self.tasks, runs, database, clock=clock)
        self._runs = runs
        self._assembly = assembly
        self._resources = resources
        self._clock = clock
        self._wall = wall

    def housekeeper(self, settings: Settings) -> Housekeeper:
        """Makes the housekeeper that deletes old rows of this store:

        `await housekeeper.run()` beside a worker or a server.
        """
        rules = Retention.of(settings)
        return Housekeeper(self.database, self._resources, rules, workspaces=self._workspaces, clock=self._clock)

    async def enforced(self, containers: bool = False) -> tuple[str, ...]:
        """Returns what workers in this process can enforce around programs; see `Offer.isolation`. Never raises.

        With `containers` one of each kind is started to see, which takes seconds.
        """
        return await self._assembly.backends.enforced(containers=containers)

    def worker(self, offer: Offer, *, grace: float = GRACE, once: bool = False, places: Places | None = None) -> Worker:
        """A worker in this process, for `await worker.run()`. The identity of the offer must be `Runs.worker`.

        Its runs can be read along from other processes. `places` are as in `Worker`.
        """
        if self._relay is not None:
            self._relay.start()
        return Worker(
            self.database,
            self.transport,
            self.performer,
            offer,
            timers=self._timers,
            clock=self._clock,
            lease_clock=self._runs.lease_clock,
            wall=self._wall,
            lease_seconds=self._runs.lease_seconds,
            grace=grace,
            once=once,
            lacking=self.performer.lacking,
            enforces=self.enforced,
            places=places,
        )

    def timekeeper(self) -> Timekeeper:
        """The timekeeper of a server without a worker of its own: `await timekeeper.run()`. Workers keep time too."""
        return Timekeeper(self._timers, clock=self._clock)

    async def _timers(self, now: float) -> float | None:
        await self._runs.sweep()
        return await self.tasks.timers(now)

    async def ring(self, info: RunInfo) -> None:
        """Notifies a worker that a run of a task was signalled and can continue."""
        now = self._clock()
        ticket = Ticket(f"{info.id}/{now}", info.id, info.namespace, info.agent, info.labels[TASK_LABEL], due_at=now)
        await self.transport.publish([ticket])

    async def _end_here(self, run_id: str) -> None:
        """Take a run that nobody holds and let it hear what it was told. Raises `Held`, `Conflict`."""
        now = self._runs.lease_clock()
        lease = await self._runs.journal.claim(
            run_id, worker=self._runs.worker, now=now, until=now + self._runs.lease_seconds
        )
        await self.performer.perform(lease)

    async def close(self) -> None:
        """Let go of the transport."""
        await self.transport.close()
