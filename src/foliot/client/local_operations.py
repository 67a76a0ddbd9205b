"""The verbs of whoever runs an installation, on a store in this process."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from foliot.client.missing import not_found
from foliot.client.operations import Budgets, Fate, PolicyAnswer, RuleDefaults
from foliot.engine.budgets.report import standings
from foliot.engine.budgets.waking import paused_runs
from foliot.engine.records.completion import Completion
from foliot.engine.records.metering import By, Total, totals
from foliot.errors import NotFound
from foliot.kernel.identity import NOBODY, Identity
from foliot.store import bounds
from foliot.store.audit import AuditFilter, AuditRecord, SqlAuditLog, Verified
from foliot.store.audit_chain import Head
from foliot.store.base import Database, Document, Filter, Key, ResourceStore
from foliot.store.budgets import SqlBudgetLedger
from foliot.store.journal import SqlJournal
from foliot.store.workers import WorkerInfo, list_workers
from foliot.tools.judge import PolicyQuestion

if TYPE_CHECKING:
    from foliot.client.judging import Judging
    from foliot.settings import Settings

EXPORTED_AT_ONCE: Final = 500


class LocalOperations:
    """Implements `Operations`. The database stays the caller's to close."""

    def __init__(
        self, database: Database, store: ResourceStore, settings: Settings, *, caller: Identity = NOBODY
    ) -> None:
        """`caller` is on whose behalf calls are judged that name nobody."""
        self._caller = caller
        self._db = database
        self._store = store
        self._settings = settings
        self._log = SqlAuditLog(database)

    # --- records -------------------------------------------------------------------------------------------------

    async def audit_records(
        self, wanted: AuditFilter, *, limit: int = 50, before: int | None = None
    ) -> list[AuditRecord]:
        """See `Operations`."""
        return await self._log.find(wanted, limit=limit, before=before)

    async def audit_record(self, number: int) -> AuditRecord:
        return await self._log.get(number)

    async def audit_export(self) -> AsyncGenerator[AuditRecord]:
        """See `Operations`."""
        after = 0
        while page := await self.audit_page(after):
            for record in page:
                yield record
            after = page[-1].seq

    async def audit_page(self, after: int, *, limit: int = EXPORTED_AT_ONCE) -> list[AuditRecord]:
        """The records behind a number, oldest first."""
        rows = await self._db.read("audit_read", after=after, count=limit)
        return [AuditRecord(row["seq"], row["hash"], msgspec.json.decode(row["data"])) for row in rows]

    async def audit_verify(self, anchor: Head | None = None) -> Verified:
        """See `Operations`."""
        missing = await Completion(self._db).missing(now=time.time())
        verified = await self._log.verify(anchor)
        return replace(verified, missing=tuple(f"{each.run_id}/{each.call_id}" for each in missing))

    async def audit_totals(self, wanted: AuditFilter, *, by: By) -> list[Total]:
        return await totals(self._log, wanted, by=by)

    # --- budgets and rules ---------------------------------------------------------------------------------------

    async def budgets(self, namespace: str, *, name: str | None = None, limit: int = 1000) -> Budgets:
        """See `Operations`."""
        now = time.time()
        documents = await self._budgets(namespace) if name is None else [await self._budget(namespace, name)]
        ledger = SqlBudgetLedger(self._db)
        found = [each for document in documents for each in await standings(ledger, document, now=now, limit=limit)]
        waiting: list[str] = []
        if name is not None:
            paused = await paused_runs(SqlJournal(self._db), namespace)
            waiting = [info.id for info in paused if info.summary["waiting"].get("budget", name) == name]
        return Budgets(found, len(documents), waiting)

    async def _budget(self, namespace: str, name: str) -> Document:
        key = Key("Budget", namespace, name)
        try:
            return await self._store.get(key)
        except NotFound:
            raise await not_found(key, self._store.list, elsewhere=False) from None

    async def _budgets(self, namespace: str) -> list[Document]:
        page = await self._store.list(wanted := Filter("Budget", namespace))
        found = [*page.items]
        while page.cursor is not None:
            page = await self._store.list(wanted, cursor=page.cursor)
            found += page.items
        return found

    async def rule_defaults(self) -> RuleDefaults:
        return RuleDefaults(self._settings.default_tool_access, self._settings.allowed_tools)

    async def explain_call(self, namespace: str, asked: PolicyQuestion) -> PolicyAnswer:
        """See `Operations`."""
        return await (await self._judging()).explain(namespace, asked)

    async def simulate_calls(
        self, namespace: str, manifests: Sequence[Document], asked: Sequence[PolicyQuestion]
    ) -> list[Fate]:
        """See `Operations`."""
        return await (await self._judging()).simulate(namespace, manifests, asked)

    async def _judging(self) -> Judging:
        from foliot.client.judging import Judging  # with every layer of the rules: loaded when somebody asks
        from foliot.engine.powers import Grants

        defaults, granted = await self.rule_defaults(), Grants.of(self._settings)
        return Judging(self._db, self._store, defaults, self._caller, granted)

    # --- workers -------------------------------------------------------------------------------------------------

    async def workers(self) -> list[WorkerInfo]:
        return await list_workers(self._db)

    async def limits(self) -> list[bounds.Limit]:
        return await bounds.list_limits(self._db)

    async def set_limit(self, limit: bounds.Limit) -> None:
        await bounds.set_limit(self._db, limit)

    async def clear_limit(self, scope: bounds.Scope, name: str) -> None:
        await bounds.clear_limit(self._db, scope, name)

    async def failing_classes(self) -> list[bounds.ClassInfo]:
        return await bounds.list_classes(self._db)

    async def mend_class(self, key: str) -> None:
        await bounds.close_class(self._db, key)
