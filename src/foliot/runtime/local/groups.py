"""The groups of verbs on a store in this process: those that need no engine, and all of them on a runtime.

Every group is made when it is asked for, and its module loaded then: a command that lists resources loads no engine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from foliot.kernel.identity import NOBODY, Identity
from foliot.runtime.groups.groups import Groups, StoreGroups
from foliot.store.base import Database, DeclaredBy, ResourceStore

if TYPE_CHECKING:
    from foliot.engine.definition.missing import Brings
    from foliot.resources.references import Reference
    from foliot.runtime.inside import Inside
    from foliot.runtime.local.declared_work import DeclaredWork
    from foliot.runtime.local.folders import LocalFolders
    from foliot.runtime.local.operations import (
        LocalAudit,
        LocalBudgets,
        LocalChannels,
        LocalPolicies,
        LocalSchedules,
        LocalWebhooks,
        LocalWorkers,
    )
    from foliot.runtime.local.resources import LocalResources
    from foliot.runtime.local.sessions import LocalSessions
    from foliot.runtime.local.tools import LocalTools
    from foliot.runtime.local.work import LocalApprovals, LocalQuestions, LocalRuns, LocalTasks
    from foliot.settings.settings import Settings
    from foliot.store.secrets.sealing import Sealer
    from foliot.tools.registry import ToolRegistry


class PluginParts:
    """The tools that enabled plug-ins bring. They are loaded when a tool is named that nobody declared."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tools: ToolRegistry | None = None

    async def brings(self, reference: Reference) -> bool:
        if reference.kind != "Tool" or not self._settings.plugins:
            return False
        if self._tools is None:
            from foliot.engine.hooks.registry import HookRegistry
            from foliot.engine.plugins import Plugins
            from foliot.tools.registry import ToolRegistry

            self._tools = ToolRegistry()
            await Plugins(self._tools, HookRegistry(), quiet=True).use(self._settings.plugins)
        return reference.name in self._tools


class StoredGroups(StoreGroups):
    """The groups that need no engine. Whoever opened the database closes it."""

    def __init__(
        self,
        database: Database,
        store: ResourceStore,
        settings: Settings,
        *,
        inside: Callable[[], AbstractAsyncContextManager[Inside]],
        caller: Identity = NOBODY,
        brings: Brings | None = None,
    ) -> None:
        """`inside` opens what accepts and ends work, when that is needed; `caller` is who uses the verbs.

        `brings` says what there is without a declaration; without it, what plug-ins bring that are enabled.
        """
        self._brings = brings or PluginParts(settings).brings
        self.database = database
        self.store = store
        self._settings = settings
        self._inside = inside
        self._caller = caller

    @property
    def resources(self) -> LocalResources:
        from foliot.runtime.local.resources import LocalResources

        # Whoever can open the store can do anything to it.
        by = DeclaredBy(self._caller.user, operator=True) if self._caller.user else None
        return LocalResources(
            self.store,
            budgets_changed=self._budgets_changed,
            models_changed=self._models_changed,
            work=self._declared_work,
            by=by,
            caller=self._caller,
            brings=self._brings,
        )

    async def _budgets_changed(self, namespace: str) -> None:
        from time import time

        from foliot.engine.budgets.wakeups import wake_paused
        from foliot.store.journal.database import SqlJournal

        await wake_paused(SqlJournal(self.database), namespace, clock=time)

    async def _models_changed(self, namespace: str) -> None:
        from time import time

        from foliot.engine.budgets.wakeups import models_changed

        await models_changed(self.database, namespace, clock=time)

    def _declared_work(self) -> DeclaredWork:
        from foliot.runtime.local.declared_work import DeclaredWork

        return DeclaredWork(self.database, self._inside)

    @property
    def schedules(self) -> LocalSchedules:
        from foliot.runtime.local.operations import LocalSchedules

        return LocalSchedules(self.database, self.store, self._inside)

    @property
    def channels(self) -> LocalChannels:
        from foliot.runtime.local.operations import LocalChannels

        return LocalChannels(self.database, self.store, self._inside, caller=self._caller)

    @property
    def webhooks(self) -> LocalWebhooks:
        from foliot.runtime.local.operations import LocalWebhooks

        return LocalWebhooks(self.database, self.store, self._inside)

    @property
    def audit(self) -> LocalAudit:
        from foliot.runtime.local.operations import LocalAudit

        return LocalAudit(self.database)

    @property
    def budgets(self) -> LocalBudgets:
        from foliot.runtime.local.operations import LocalBudgets

        return LocalBudgets(self.database, self.store)

    @property
    def policies(self) -> LocalPolicies:
        from foliot.runtime.local.operations import LocalPolicies

        return LocalPolicies(self.database, self.store, self._settings, caller=self._caller)

    @property
    def workers(self) -> LocalWorkers:
        from foliot.runtime.local.operations import LocalWorkers

        return LocalWorkers(self.database)


class LocalGroups(Groups):
    """All groups, on a runtime. Whoever opened it closes it.

    `caller` is who uses the verbs; `wakes` is whether runs that were told something go on in the background of it.
    """

    def __init__(self, inside: Inside, *, caller: Identity = NOBODY, wakes: bool = True) -> None:
        self.inside = inside
        self._caller = caller
        self._wakes = wakes

    @property
    def _stored(self) -> StoredGroups:
        inside = self.inside
        return StoredGroups(
            inside.database,
            inside.resources,
            inside.settings,
            inside=lambda: nullcontext(inside),  # most of what is declared has nothing to do with them
            caller=self._caller,
            brings=inside.brings,
        )

    @property
    def runs(self) -> LocalRuns:
        from foliot.runtime.local.work import LocalRuns

        return LocalRuns(self.inside, caller=self._caller, wakes=self._wakes)

    @property
    def tasks(self) -> LocalTasks:
        from foliot.runtime.local.work import LocalTasks

        return LocalTasks(self.inside, caller=self._caller, wakes=self._wakes)

    @property
    def approvals(self) -> LocalApprovals:
        from foliot.runtime.local.work import LocalApprovals

        return LocalApprovals(self.inside, caller=self._caller, wakes=self._wakes)

    @property
    def questions(self) -> LocalQuestions:
        from foliot.runtime.local.work import LocalQuestions

        return LocalQuestions(self.inside, caller=self._caller, wakes=self._wakes)

    @property
    def sessions(self) -> LocalSessions:
        from foliot.runtime.local.sessions import LocalSessions

        return LocalSessions(self.inside, caller=self._caller)

    @property
    def folders(self) -> LocalFolders:
        from foliot.runtime.local.folders import LocalFolders

        return LocalFolders(self.inside, caller=self._caller)

    @property
    def tools(self) -> LocalTools:
        from foliot.runtime.local.tools import LocalTools

        return LocalTools(self.inside, caller=self._caller)

    @property
    def resources(self) -> LocalResources:
        return self._stored.resources

    @property
    def schedules(self) -> LocalSchedules:
        return self._stored.schedules

    @property
    def channels(self) -> LocalChannels:
        return self._stored.channels

    @property
    def webhooks(self) -> LocalWebhooks:
        return self._stored.webhooks

    @property
    def audit(self) -> LocalAudit:
        return self._stored.audit

    @property
    def budgets(self) -> LocalBudgets:
        return self._stored.budgets

    @property
    def policies(self) -> LocalPolicies:
        return self._stored.policies

    @property
    def workers(self) -> LocalWorkers:
        return self._stored.workers


def whoami() -> str:
    """The name of the person at the keyboard, as the operating system has it; blank when it has none."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


# --- opening ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened_store(
    settings: Settings,
    *,
    inside: Callable[[], AbstractAsyncContextManager[Inside]] | None = None,
    caller: Identity = NOBODY,
) -> AsyncGenerator[StoredGroups]:
    """The groups that need no engine, on the store that the settings name. `inside` and `caller` are as there.

    Raises `UsageError` for a store that cannot be named so, `Unavailable` when it does not answer.
    """
    from foliot.store.open import open_database
    from foliot.store.resources.database import SqlResourceStore

    def keyring(*, create: bool = True) -> Sealer:
        # Most commands never touch a secret value, and loading this takes a sixth of the time that they may take.
        from foliot.store.secrets.keyring import load_keyring

        return load_keyring(settings, create=create)

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Inside]:
        from foliot.runtime.runtime import Runtime

        async with Runtime(settings=settings) as runtime:
            yield runtime.inside

    database = await open_database(settings.store)
    try:
        store = SqlResourceStore(database, keyring, existing=partial(keyring, create=False))
        yield StoredGroups(database, store, settings, inside=inside or opened, caller=caller)
    finally:
        await database.close()
