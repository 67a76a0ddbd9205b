"""The verbs on the audit log, budgets, rules, workers and triggers, on a store in this process; see groups/store.py."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, get_args

import msgspec
from msgspec.structs import replace as changed

from foliot.common.suggestions import check_word
from foliot.engine.audit.completion import Completion
from foliot.engine.audit.entry import act_entry
from foliot.engine.audit.metering import By, Total, totals
from foliot.engine.audit.words import Act, check_filter
from foliot.engine.budgets.declared import standings
from foliot.engine.budgets.wakeups import paused_runs
from foliot.engine.definition.references import list_all
from foliot.errors import NotFound
from foliot.kernel.identity import NOBODY, Identity
from foliot.runtime.answers import Budgets, Fate, Fired, PolicyAnswer, RuleDefaults, Sent
from foliot.runtime.groups.store import (
    AuditGroup,
    BudgetGroup,
    ChannelGroup,
    PolicyGroup,
    ScheduleGroup,
    WebhookGroup,
    WorkerGroup,
)
from foliot.runtime.outcomes import CHANNEL, SCHEDULE, WEBHOOK, no_trigger, not_found
from foliot.store.audit.chain import ChainHead
from foliot.store.audit.log import AuditFilter, AuditRecord, SqlAuditLog, Verified, append_records
from foliot.store.base import Database, Document, Filter, Key, ResourceStore
from foliot.store.channel_links import ChannelLink, ChannelLinks, make_link_id
from foliot.store.channels import ChannelDelivery, DeliveryState, Outbox, shown
from foliot.store.journal.base import TransactionBody
from foliot.store.journal.database import SqlJournal
from foliot.store.ledger.budgets import SqlBudgetLedger
from foliot.store.queue import limits as bounds
from foliot.store.queue.limits import ClassInfo, Limit, Scope
from foliot.store.queue.workers import WorkerInfo, list_workers
from foliot.store.transaction import Tx
from foliot.store.triggers import Slot, WebhookDelivery, deliveries_of, delivery_of, slots_of
from foliot.tools.governance.judge import PolicyQuestion

if TYPE_CHECKING:
    from foliot.runtime.inside import Inside
    from foliot.runtime.local.judge import Judging
    from foliot.settings.settings import Settings

EXPORTED_AT_ONCE: Final = 500


# Where a verb is called `list`, the type of that name is hidden.
Rows = list


class LocalAudit(AuditGroup):
    """Implements `AuditGroup`."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._log = SqlAuditLog(database)

    async def list(
        self, wanted: AuditFilter | None = None, *, limit: int = 50, before: int | None = None
    ) -> Rows[AuditRecord]:
        wanted = wanted or AuditFilter()
        check_filter(wanted)
        return await self._log.find(wanted, limit=limit, before=before)

    async def get(self, number: int) -> AuditRecord:
        return await self._log.get(number)

    async def export(self) -> AsyncGenerator[AuditRecord]:
        after = 0
        while page := await audit_page(self._db, after):
            for record in page:
                yield record
            after = page[-1].seq

    async def verify(self, anchor: ChainHead | None = None) -> Verified:
        missing = await Completion(self._db).missing(now=time.time())
        verified = await self._log.verify(anchor)
        return replace(verified, missing=tuple(f"{each.run_id}/{each.call_id}" for each in missing))

    async def totals(self, wanted: AuditFilter | None = None, *, by: By) -> Rows[Total]:
        wanted = wanted or AuditFilter()
        check_filter(wanted)
        return await totals(self._log, wanted, by=by)


async def audit_page(database: Database, after: int, *, limit: int = EXPORTED_AT_ONCE) -> list[AuditRecord]:
    """List the records behind a number, oldest first."""
    rows = await database.read("audit_read", after=after, count=limit)
    return [AuditRecord(row["seq"], row["hash"], msgspec.json.decode(row["data"])) for row in rows]


class LocalBudgets(BudgetGroup):
    """Implements `BudgetGroup`."""

    def __init__(self, database: Database, store: ResourceStore) -> None:
        self._db = database
        self._store = store

    async def list(self, *, namespace: str = "default", name: str | None = None, limit: int = 1000) -> Budgets:
        now = time.time()
        documents = (
            await list_all(self._store, Filter("Budget", namespace))
            if name is None
            else [await self._budget(namespace, name)]
        )
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


class LocalPolicies(PolicyGroup):
    """Implements `PolicyGroup`. `caller` is on whose behalf calls are judged that name nobody."""

    def __init__(
        self, database: Database, store: ResourceStore, settings: Settings, *, caller: Identity = NOBODY
    ) -> None:
        self._db = database
        self._store = store
        self._settings = settings
        self._caller = caller

    async def defaults(self) -> RuleDefaults:
        return RuleDefaults(self._settings.default_tool_access, self._settings.allowed_tools)

    async def explain(self, asked: PolicyQuestion, *, namespace: str = "default") -> PolicyAnswer:
        return await (await self._judging()).explain(namespace, asked)

    async def simulate(
        self, manifests: Sequence[Document], asked: Sequence[PolicyQuestion], *, namespace: str = "default"
    ) -> Rows[Fate]:
        return await (await self._judging()).simulate(namespace, manifests, asked)

    async def _judging(self) -> Judging:
        from foliot.engine.definition.grants import OperatorGrants
        from foliot.runtime.local.judge import Judging  # with every layer of the rules: loaded when somebody asks

        defaults, granted = await self.defaults(), OperatorGrants.of(self._settings)
        return Judging(self._db, self._store, defaults, self._caller, granted)


class LocalWorkers(WorkerGroup):
    """Implements `WorkerGroup`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def list(self) -> Rows[WorkerInfo]:
        return await list_workers(self._db)

    async def limits(self) -> Rows[Limit]:
        return await bounds.list_limits(self._db)

    async def set_limit(self, limit: Limit) -> None:
        await bounds.set_limit(self._db, limit)

    async def clear_limit(self, scope: Scope, name: str) -> None:
        await bounds.clear_limit(self._db, scope, name)

    async def failing_classes(self) -> Rows[ClassInfo]:
        return await bounds.list_classes(self._db)

    async def mend_class(self, key: str) -> None:
        await bounds.close_class(self._db, key)


# --- triggers --------------------------------------------------------------------------------------------------------


class _Triggers:
    """The base of schedules and webhooks. `inside` opens what accepts work, only when something is accepted."""

    def __init__(
        self, database: Database, store: ResourceStore, inside: Callable[[], AbstractAsyncContextManager[Inside]]
    ) -> None:
        self._db = database
        self._store = store
        self._inside = inside

    async def _declared(self, kind: str, namespace: str, name: str) -> Document:
        try:
            return await self._store.get(Key(kind, namespace, name))
        except NotFound:
            page = await self._store.list(Filter(kind, namespace), limit=1000)
            raise no_trigger(Key(kind, namespace, name), page.items) from None


class LocalSchedules(_Triggers, ScheduleGroup):
    """Implements `ScheduleGroup`."""

    async def list(self, *, namespace: str | None = "default") -> Rows[Document]:
        return await list_all(self._store, Filter(SCHEDULE, namespace))

    async def get(self, name: str, *, namespace: str = "default") -> Document:
        return await self._declared(SCHEDULE, namespace, name)

    async def slots(self, name: str, *, namespace: str = "default", limit: int = 20) -> Rows[Slot]:
        document = await self.get(name, namespace=namespace)
        return await slots_of(self._db, document["metadata"]["uid"], limit=limit)

    async def run(
        self, name: str, *, namespace: str = "default", given: Mapping[str, str] | None = None, by: str = ""
    ) -> Fired:
        from foliot.runtime.session_posts import RuntimePosts
        from foliot.work.triggers.scheduler import Scheduler

        await self.get(name, namespace=namespace)
        async with self._inside() as inside:
            posts = RuntimePosts(inside.sessions, inside.database, clock=inside.clock)
            scheduler = Scheduler(self._db, self._store, inside.tasking.tasks, posts=posts)
            slot, task = await scheduler.run_now(namespace, name, by=by, given=given or {})
        if task is not None:
            return Fired(task.id, task.phase)
        return _fired(next(each for each in await self.slots(name, namespace=namespace) if each.slot == slot))


def _fired(slot: Slot) -> Fired:
    """Returns what a slot that made no task has come to."""
    if slot.state == "fired":
        return Fired(session=slot.reason.removeprefix("session "))
    return Fired(reason=slot.reason.partition(": ")[2] or "it is tried again by whatever keeps schedules")


class LocalChannels(_Triggers, ChannelGroup):
    """Implements `ChannelGroup`."""

    def __init__(
        self,
        database: Database,
        store: ResourceStore,
        inside: Callable[[], AbstractAsyncContextManager[Inside]],
        *,
        caller: Identity = NOBODY,
    ) -> None:
        super().__init__(database, store, inside)
        self._caller = caller

    @property
    def _me(self) -> str:
        from foliot.runtime.local.groups import whoami

        return self._caller.user or whoami()

    async def list(self, *, namespace: str | None = "default") -> Rows[Document]:
        return await list_all(self._store, Filter(CHANNEL, namespace))

    async def deliveries(
        self, name: str, *, namespace: str = "default", state: str = "", limit: int = 20
    ) -> Rows[ChannelDelivery]:
        if state:
            check_word("state", state, get_args(DeliveryState))
        await self._declared(CHANNEL, namespace, name)
        found = await Outbox(self._db).list(namespace, channel=name, state=state, limit=limit)
        return [shown(each) for each in found]

    async def retry(self, name: str, key: int, *, namespace: str = "default") -> None:
        await self._declared(CHANNEL, namespace, name)
        await Outbox(self._db).retry(namespace, key, channel=name, now=time.time())

    async def link(self, code: str, *, namespace: str = "default") -> ChannelLink:
        # Whoever can open the store can do anything to it; on behalf of somebody else it goes by their roles.
        me, owner, id = self._me, not self._caller.user, make_link_id()
        record = self._record("channel_linked", namespace, id)
        return await ChannelLinks(self._db).enter(
            code, id=id, namespace=namespace, user=me, owner=owner, now=time.time(), in_transaction=record
        )

    async def links(self, *, namespace: str = "default") -> Rows[ChannelLink]:
        return await ChannelLinks(self._db).list(namespace)

    async def unlink(self, id: str, *, namespace: str = "default") -> None:
        record = self._record("channel_unlinked", namespace, id)
        await ChannelLinks(self._db).delete(id, namespace=namespace, in_transaction=record)

    def _record(self, verb: Act, namespace: str, name: str) -> TransactionBody:
        entry = act_entry(self._me, "store", verb, "ChannelLink", namespace, name)

        def record() -> Tx[None]:
            yield from append_records([entry])

        return record


class LocalWebhooks(_Triggers, WebhookGroup):
    """Implements `WebhookGroup`."""

    async def list(self, *, namespace: str | None = "default") -> Rows[Document]:
        from foliot.work.triggers.endpoints import WebhookEndpoints

        endpoints = WebhookEndpoints(self._db, self._store)
        return [await endpoints.ensure(each) for each in await list_all(self._store, Filter(WEBHOOK, namespace))]

    async def get(self, name: str, *, namespace: str = "default") -> Document:
        from foliot.work.triggers.endpoints import WebhookEndpoints

        document = await self._declared(WEBHOOK, namespace, name)
        return await WebhookEndpoints(self._db, self._store).ensure(document)

    async def rotate(self, name: str, *, namespace: str = "default", grace: float = 0.0) -> Document:
        from foliot.work.triggers.endpoints import WebhookEndpoints

        document = await self._declared(WEBHOOK, namespace, name)
        return await WebhookEndpoints(self._db, self._store).rotate(document, grace=grace)

    async def deliveries(self, name: str, *, namespace: str = "default", limit: int = 20) -> Rows[WebhookDelivery]:
        found = await deliveries_of(self._db, await self._uid(namespace, name), limit=limit)
        return [changed(each, body=None, headers="{}") for each in found]

    async def delivery(self, name: str, id: str, *, namespace: str = "default") -> WebhookDelivery:
        found = await delivery_of(self._db, await self._uid(namespace, name), id)
        if found is None:
            hint = f"`foliot webhook deliveries {name}` lists those that are remembered."
            raise NotFound(f"Webhook {name!r} remembers no delivery {id!r}.", hint=hint)
        return found

    async def replay(self, name: str, id: str, *, namespace: str = "default", by: str = "") -> str:
        from foliot.work.triggers.deliveries import Webhooks
        from foliot.work.triggers.webhook import read_webhook

        read = read_webhook(await self._declared(WEBHOOK, namespace, name))
        async with self._inside() as inside:
            answer = await Webhooks(self._db, self._store, inside.tasking.tasks).replay(read, id, time.time(), by=by)
        return answer.document["task"]

    async def send_test(
        self,
        name: str,
        body: bytes,
        *,
        event_id: str,
        namespace: str = "default",
        headers: Mapping[str, str] | None = None,
        by: str = "",
    ) -> Sent:
        from foliot.work.triggers.deliveries import Webhooks
        from foliot.work.triggers.webhook import read_webhook

        read = read_webhook(await self.get(name, namespace=namespace))
        async with self._inside() as inside:
            webhooks = Webhooks(self._db, self._store, inside.tasking.tasks)
            answer = await webhooks.try_out(read, body, time.time(), event_id=event_id, headers=headers or {}, by=by)
        return Sent(answer.status, dict(answer.document))

    async def _uid(self, namespace: str, name: str) -> str:
        return (await self._declared(WEBHOOK, namespace, name))["metadata"]["uid"]


async def signed_headers(webhook: Document, store: ResourceStore, body: bytes, event_id: str) -> dict[str, str]:
    """The headers of a delivery that is signed now, with the first of the webhook's secrets. Raises `SecretError`."""
    from foliot.tools.secrets.secrets import EnvironmentSecrets
    from foliot.work.triggers import signatures
    from foliot.work.triggers.deliveries import signing_secrets
    from foliot.work.triggers.webhook import read_webhook

    read = read_webhook(webhook)
    (secret, *_) = await signing_secrets(read, store, EnvironmentSecrets(os.environ))
    return signatures.sign(read.scheme, secret, body, now=time.time(), event_id=event_id)
