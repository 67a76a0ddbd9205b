"""The verbs of whoever runs an installation, on a store in this process."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace as changed

from foliot.client.errors import not_found
from foliot.client.operations import Budgets, Fate, Fired, PolicyAnswer, RuleDefaults, Sent
from foliot.engine.audit.completion import Completion
from foliot.engine.audit.metering import By, Total, totals
from foliot.engine.budgets.report import standings
from foliot.engine.budgets.wakeups import paused_runs
from foliot.errors import NotFound
from foliot.kernel.identity import NOBODY, Identity
from foliot.store.audit.chain import Head
from foliot.store.audit.log import AuditFilter, AuditRecord, SqlAuditLog, Verified
from foliot.store.base import Database, Document, Filter, Key, ResourceStore
from foliot.store.journal.database import SqlJournal
from foliot.store.ledger.budgets import SqlBudgetLedger
from foliot.store.queue import limits as bounds
from foliot.store.queue.workers import WorkerInfo, list_workers
from foliot.store.triggers import Delivery, Slot, deliveries_of, delivery_of, slots_of
from foliot.tools.governance.judge import PolicyQuestion

if TYPE_CHECKING:
    from foliot.client.judge import Judging
    from foliot.settings.settings import Settings
    from foliot.work.tasks.base import Tasks

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
        from foliot.client.judge import Judging  # with every layer of the rules: loaded when somebody asks
        from foliot.engine.definition.grants import Grants

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


# --- local triggers --------------------------------------------------------------------------------------------------

# The verbs on schedules and webhooks, on a store in this process.

SCHEDULE = "TaskSchedule"
WEBHOOK = "TaskWebhook"


class LocalTriggers:
    """Implements `Triggers`. `tasks` opens what accepts work, when a task is made: looking does not need it."""

    def __init__(
        self, database: Database, store: ResourceStore, tasks: Callable[[], AbstractAsyncContextManager[Tasks]]
    ) -> None:
        self._db = database
        self._store = store
        self._tasks = tasks

    # --- schedules -----------------------------------------------------------------------------------------------

    async def schedule(self, namespace: str, name: str) -> Document:
        return await self._declared(SCHEDULE, namespace, name)

    async def schedules(self, namespace: str | None) -> list[Document]:
        return await self._all(SCHEDULE, namespace)

    async def slots(self, namespace: str, name: str, *, limit: int) -> list[Slot]:
        document = await self.schedule(namespace, name)
        return await slots_of(self._db, document["metadata"]["uid"], limit=limit)

    async def run_schedule(self, namespace: str, name: str, *, given: Mapping[str, str], by: str = "") -> Fired:
        """See `Triggers`."""
        from foliot.work.triggers.scheduler import Scheduler

        await self.schedule(namespace, name)
        async with self._tasks() as tasks:
            task = await Scheduler(self._db, self._store, tasks).run_now(namespace, name, by=by, given=given)
        if task is not None:
            return Fired(task.id, task.phase)
        (slot, *_) = await self.slots(namespace, name, limit=1)
        return Fired(reason=slot.reason.partition(": ")[2] or "it is tried again by whoever runs the scheduler")

    # --- webhooks ------------------------------------------------------------------------------------------------

    async def webhook(self, namespace: str, name: str) -> Document:
        from foliot.work.triggers.endpoints import WebhookEndpoints

        document = await self._declared(WEBHOOK, namespace, name)
        return await WebhookEndpoints(self._db, self._store).ensure(document)

    async def webhooks(self, namespace: str | None) -> list[Document]:
        from foliot.work.triggers.endpoints import WebhookEndpoints

        endpoints = WebhookEndpoints(self._db, self._store)
        return [await endpoints.ensure(document) for document in await self._all(WEBHOOK, namespace)]

    async def rotate_webhook(self, namespace: str, name: str, *, grace: float) -> Document:
        from foliot.work.triggers.endpoints import WebhookEndpoints

        document = await self._declared(WEBHOOK, namespace, name)
        return await WebhookEndpoints(self._db, self._store).rotate(document, grace=grace)

    async def deliveries(self, namespace: str, name: str, *, limit: int) -> list[Delivery]:
        found = await deliveries_of(self._db, await self._webhook_uid(namespace, name), limit=limit)
        return [changed(each, body=None, headers="{}") for each in found]

    async def delivery(self, namespace: str, name: str, id: str) -> Delivery:
        """See `Triggers`."""
        found = await delivery_of(self._db, await self._webhook_uid(namespace, name), id)
        if found is None:
            hint = f"`foliot webhook deliveries {name}` lists those that are remembered."
            raise NotFound(f"Webhook {name!r} remembers no delivery {id!r}.", hint=hint)
        return found

    async def replay_delivery(self, namespace: str, name: str, id: str, *, by: str = "") -> str:
        """See `Triggers`."""
        from foliot.work.triggers.deliveries import Webhooks
        from foliot.work.triggers.webhook import read_webhook

        read = read_webhook(await self._declared(WEBHOOK, namespace, name))
        async with self._tasks() as tasks:
            answer = await Webhooks(self._db, self._store, tasks).replay(read, id, time.time(), by=by)
        return answer.document["task"]

    async def send_test(
        self, namespace: str, name: str, body: bytes, *, event_id: str, headers: Mapping[str, str], by: str = ""
    ) -> Sent:
        """See `Triggers`."""
        from foliot.work.triggers.deliveries import Webhooks
        from foliot.work.triggers.webhook import read_webhook

        read = read_webhook(await self.webhook(namespace, name))
        async with self._tasks() as tasks:
            webhooks = Webhooks(self._db, self._store, tasks)
            answer = await webhooks.try_out(read, body, time.time(), event_id=event_id, headers=headers, by=by)
        return Sent(answer.status, dict(answer.document))

    # --- what is declared ----------------------------------------------------------------------------------------

    async def _webhook_uid(self, namespace: str, name: str) -> str:
        return (await self._declared(WEBHOOK, namespace, name))["metadata"]["uid"]

    async def _declared(self, kind: str, namespace: str, name: str) -> Document:
        try:
            return await self._store.get(Key(kind, namespace, name))
        except NotFound:
            page = await self._store.list(Filter(kind, namespace), limit=1000)
            names = [str(each["metadata"]["name"]) for each in page.items]
            near = difflib.get_close_matches(name, names, n=3) or names[:5]
            word = "schedule" if kind == SCHEDULE else "webhook"
            hint = f"There are: {', '.join(near)}." if near else f"There is none in this namespace: apply a {kind}."
            raise NotFound(f"There is no {word} {name!r} in namespace {namespace!r}.", hint=hint) from None

    async def _all(self, kind: str, namespace: str | None) -> list[Document]:
        page = await self._store.list(wanted := Filter(kind, namespace))
        found = [*page.items]
        while page.cursor is not None:
            page = await self._store.list(wanted, cursor=page.cursor)
            found += page.items
        return found


async def signed_headers(webhook: Document, store: ResourceStore, body: bytes, event_id: str) -> dict[str, str]:
    """The headers of a delivery that is signed now, with the first of the webhook's secrets. Raises `SecretError`."""
    from foliot.tools.secrets.secrets import EnvironmentSecrets
    from foliot.work.triggers import signatures
    from foliot.work.triggers.deliveries import signing_secrets
    from foliot.work.triggers.webhook import read_webhook

    read = read_webhook(webhook)
    (secret, *_) = await signing_secrets(read, store, EnvironmentSecrets(os.environ))
    return signatures.sign(read.scheme, secret, body, now=time.time(), event_id=event_id)
