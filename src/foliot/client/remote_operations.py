"""The verbs on the audit log, budgets, rules, workers, triggers and tools, over the connection to a server.

See runtime/groups/.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct, field

from foliot.client import wire
from foliot.client.http import RemoteGroup
from foliot.common.pages import read_first
from foliot.engine.audit.metering import By, Total
from foliot.errors import NotFound
from foliot.runtime.answers import (
    MOST_JUDGED,
    Acceptance,
    Budgets,
    Called,
    Fate,
    Fates,
    Fired,
    PolicyAnswer,
    RuleDefaults,
    Sent,
    Simulation,
    Toolset,
)
from foliot.runtime.groups.store import (
    AuditGroup,
    BudgetGroup,
    ChannelGroup,
    PolicyGroup,
    ScheduleGroup,
    WebhookGroup,
    WorkerGroup,
)
from foliot.runtime.groups.work import ToolGroup
from foliot.runtime.outcomes import SCHEDULE, WEBHOOK, no_trigger
from foliot.store.audit.chain import ChainHead
from foliot.store.audit.log import AuditFilter, AuditRecord, Verified
from foliot.store.base import Document, Key
from foliot.store.channel_links import ChannelLink
from foliot.store.channels import ChannelDelivery
from foliot.store.queue.limits import ClassInfo, Limit, Scope
from foliot.store.queue.workers import WorkerInfo
from foliot.store.triggers import Slot, WebhookDelivery
from foliot.tools.governance.judge import Judgement, PolicyQuestion
from foliot.tools.registry import split_request

AUDIT: Final = "/v1/audit"
LIMITS: Final = "/v1/limits"
CLASSES: Final = "/v1/run-classes"
# Walking a long log takes a while.
PATIENCE: Final = 600.0


class Records(Struct, frozen=True):
    """A page of records, as a `Paged`."""

    records: list[AuditRecord]
    cursor: str | None = field(default=None, name="continue")

    @property
    def items(self) -> list[AuditRecord]:
        return self.records


class Totals(Struct, frozen=True):
    totals: list[Total]


class Limits(Struct, frozen=True):
    limits: list[Limit]


class Classes(Struct, frozen=True):
    classes: list[ClassInfo]


# Where a verb is called `list`, the type of that name is hidden.
Rows = list


class RemoteAudit(RemoteGroup, AuditGroup):
    """Implements `AuditGroup`."""

    async def list(
        self, wanted: AuditFilter | None = None, *, limit: int = 50, before: int | None = None
    ) -> Rows[AuditRecord]:
        params = _params(wanted)

        async def ask(*, cursor: str | None, limit: int) -> Records:
            return await self._get(AUDIT, Records, **params, limit=limit, before=cursor)

        behind = None if before is None else str(before)
        return (await read_first(limit, ask, cursor=behind)).items

    async def get(self, number: int) -> AuditRecord:
        return await self._get(f"{AUDIT}/{number}", AuditRecord)

    async def export(self) -> AsyncGenerator[AuditRecord]:
        after = 0
        while page := (await self._get(f"{AUDIT}/export", Records, after=after)).records:
            for record in page:
                yield record
            after = page[-1].seq

    async def verify(self, anchor: ChainHead | None = None) -> Verified:
        """Verifies the log. The server walks through it."""
        head = None if anchor is None else str(anchor)
        return await self._post(f"{AUDIT}/verify", {"head": head}, Verified, repeatable=True, timeout=PATIENCE)

    async def totals(self, wanted: AuditFilter | None = None, *, by: By) -> Rows[Total]:
        return (await self._get(f"{AUDIT}/totals", Totals, **_params(wanted), by=by)).totals


def _params(wanted: AuditFilter | None) -> dict[str, Any]:
    if wanted is None:
        return {}
    said = [(each, getattr(wanted, each.name)) for each in fields(wanted)]
    return {each.metadata.get("called", each.name): value for each, value in said if value != each.default}


class RemoteBudgets(RemoteGroup, BudgetGroup):
    """Implements `BudgetGroup`."""

    async def list(self, *, namespace: str = "default", name: str | None = None, limit: int = 1000) -> Budgets:
        return await self._get("/v1/budget-usage", Budgets, namespace=namespace, name=name, limit=limit)


class RemotePolicies(RemoteGroup, PolicyGroup):
    """Implements `PolicyGroup`. The server judges, by its rules."""

    async def defaults(self) -> RuleDefaults:
        return await self._get("/v1/policies/defaults", RuleDefaults)

    async def explain(self, asked: PolicyQuestion, *, namespace: str = "default") -> PolicyAnswer:
        path = "/v1/policies/explain"
        return await self._post(path, asked, PolicyAnswer, repeatable=True, namespace=namespace)

    async def simulate(
        self, manifests: Sequence[Document], asked: Sequence[PolicyQuestion], *, namespace: str = "default"
    ) -> Rows[Fate]:
        found: list[Fate] = []
        for start in range(0, max(1, len(asked)), MOST_JUDGED):  # manifests are checked also without a question
            order = Simulation(tuple(manifests), tuple(asked[start : start + MOST_JUDGED]))
            path = "/v1/policies/simulate"
            found += (await self._post(path, order, Fates, repeatable=True, namespace=namespace)).fates
        return found


class RemoteWorkers(RemoteGroup, WorkerGroup):
    """Implements `WorkerGroup`."""

    async def list(self) -> Rows[WorkerInfo]:
        """Lists the workers that live. Workers that are only declared are left out."""
        found = (await self._get("/v1/workers", wire.Items)).items
        return wire.read_workers(each for each in found if each["status"].get("live"))

    async def limits(self) -> Rows[Limit]:
        return (await self._get(LIMITS, Limits)).limits

    async def set_limit(self, limit: Limit) -> None:
        await self._post(LIMITS, limit, Limits, repeatable=True)

    async def clear_limit(self, scope: Scope, name: str) -> None:
        await self._post(f"{LIMITS}/clear", {"scope": scope, "name": name}, Limits)

    async def failing_classes(self) -> Rows[ClassInfo]:
        return (await self._get(CLASSES, Classes)).classes

    async def mend_class(self, key: str) -> None:
        await self._post(f"{CLASSES}/mend", {"key": key}, Classes)


# --- triggers -----------------------------------------------------------------------------------------------------

SCHEDULES: Final = "/v1/task-schedules"
WEBHOOKS: Final = "/v1/task-webhooks"
CHANNELS: Final = "/v1/channels"
LINKS: Final = "/v1/channel-links"


class Slots(Struct, frozen=True):
    slots: list[Slot]


class Deliveries(Struct, frozen=True):
    deliveries: list[WebhookDelivery]


class ChannelDeliveries(Struct, frozen=True):
    deliveries: list[ChannelDelivery]


class ChannelLinkList(Struct, frozen=True):
    links: list[ChannelLink]


class Replayed(Struct, frozen=True):
    task: str


class RemoteSchedules(RemoteGroup, ScheduleGroup):
    """Implements `ScheduleGroup`."""

    async def list(self, *, namespace: str | None = "default") -> Rows[Document]:
        return await self._all(SCHEDULES, namespace)

    async def get(self, name: str, *, namespace: str = "default") -> Document:
        try:
            return await self._get(_at(SCHEDULES, name), Document, namespace=namespace)
        except NotFound:
            raise no_trigger(Key(SCHEDULE, namespace, name), await self.list(namespace=namespace)) from None

    async def slots(self, name: str, *, namespace: str = "default", limit: int = 20) -> Rows[Slot]:
        return (await self._get(f"{_at(SCHEDULES, name)}/slots", Slots, namespace=namespace, limit=limit)).slots

    async def run(
        self, name: str, *, namespace: str = "default", given: Mapping[str, str] | None = None, by: str = ""
    ) -> Fired:
        body = {"by": by, "given": dict(given or {})}
        return await self._post(f"{_at(SCHEDULES, name)}/run", body, Fired, namespace=namespace)


class RemoteChannels(RemoteGroup, ChannelGroup):
    """Implements `ChannelGroup`."""

    async def list(self, *, namespace: str | None = "default") -> Rows[Document]:
        return await self._all(CHANNELS, namespace)

    async def deliveries(
        self, name: str, *, namespace: str = "default", state: str = "", limit: int = 20
    ) -> Rows[ChannelDelivery]:
        path = f"{_at(CHANNELS, name)}/deliveries"
        asked = {"state": state} if state else {}
        return (await self._get(path, ChannelDeliveries, namespace=namespace, limit=limit, **asked)).deliveries

    async def retry(self, name: str, key: int, *, namespace: str = "default") -> None:
        path = f"{_at(f'{_at(CHANNELS, name)}/deliveries', str(key))}/retry"
        await self._post(path, {}, dict[str, int], namespace=namespace)

    async def link(self, code: str, *, namespace: str = "default") -> ChannelLink:
        return await self._post(LINKS, {"code": code}, ChannelLink, namespace=namespace)

    async def links(self, *, namespace: str = "default") -> Rows[ChannelLink]:
        return (await self._get(LINKS, ChannelLinkList, namespace=namespace)).links

    async def unlink(self, id: str, *, namespace: str = "default") -> None:
        await self._http.ask("POST", f"{_at(LINKS, id)}/delete", params={"namespace": namespace})


class RemoteWebhooks(RemoteGroup, WebhookGroup):
    """Implements `WebhookGroup`."""

    async def list(self, *, namespace: str | None = "default") -> Rows[Document]:
        return await self._all(WEBHOOKS, namespace)

    async def get(self, name: str, *, namespace: str = "default") -> Document:
        try:
            return await self._get(_at(WEBHOOKS, name), Document, namespace=namespace)
        except NotFound:
            raise no_trigger(Key(WEBHOOK, namespace, name), await self.list(namespace=namespace)) from None

    async def rotate(self, name: str, *, namespace: str = "default", grace: float = 0.0) -> Document:
        return await self._post(f"{_at(WEBHOOKS, name)}/rotate", {"grace": grace}, Document, namespace=namespace)

    async def deliveries(self, name: str, *, namespace: str = "default", limit: int = 20) -> Rows[WebhookDelivery]:
        path = f"{_at(WEBHOOKS, name)}/deliveries"
        return (await self._get(path, Deliveries, namespace=namespace, limit=limit)).deliveries

    async def delivery(self, name: str, id: str, *, namespace: str = "default") -> WebhookDelivery:
        return await self._get(_at(f"{_at(WEBHOOKS, name)}/deliveries", id), WebhookDelivery, namespace=namespace)

    async def replay(self, name: str, id: str, *, namespace: str = "default", by: str = "") -> str:
        path = f"{_at(f'{_at(WEBHOOKS, name)}/deliveries', id)}/replay"
        return (await self._post(path, {"by": by}, Replayed, namespace=namespace)).task

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
        """Sends a test delivery. The server signs it: it has the secret, and knows the caller."""
        sent = {"body": body, "event_id": event_id, "headers": dict(headers or {})}
        return await self._post(f"{_at(WEBHOOKS, name)}/send-test", sent, Sent, namespace=namespace)


def _at(base: str, name: str) -> str:
    return f"{base}/{quote(name, safe='')}"


# --- tools -----------------------------------------------------------------------------------------------------------

TOOLS: Final = "/v1/tools"
ALL_TOOLS: Final = "/v1/all-tools"
SERVERS: Final = "/v1/mcp-servers"
# A tool may take its time; the server ends a call when the tool's own limit is over.
CALL_PATIENCE: Final = 900.0


def _tool_path(name: str, root: str = TOOLS) -> str:
    """Raises `InvalidInput` for a blank name, whose path would be another route."""
    split_request(name)
    return _at(root, name)


class RemoteTools(RemoteGroup, ToolGroup):
    """Implements `ToolGroup`."""

    async def list(self, *, namespace: str = "default") -> Toolset:
        return await self._get(ALL_TOOLS, Toolset, namespace=namespace)

    async def get(self, name: str, *, namespace: str = "default") -> Document:
        return await self._get(_tool_path(name, ALL_TOOLS), Document, namespace=namespace)

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        namespace: str = "default",
        agent: str = "",
        user: str = "",
        key: str = "",
        on_output: Callable[[str], None] | None = None,
    ) -> Called:
        body = {"arguments": arguments, "agent": agent, "user": user, "key": key}
        return await self._post(
            f"{_tool_path(name)}/call",
            body,
            Called,
            namespace=namespace,
            timeout=CALL_PATIENCE,
        )

    async def test(
        self, name: str, arguments: dict[str, Any], *, namespace: str = "default", agent: str = "", user: str = ""
    ) -> Judgement:
        body = {"arguments": arguments, "agent": agent, "user": user}
        return await self._post(f"{_tool_path(name)}/test", body, Judgement, namespace=namespace, repeatable=True)

    async def offered(self, server: str, *, namespace: str = "default") -> Rows[Document]:
        answer = await self._get(f"{_at(SERVERS, server)}/tools", dict[str, Rows[Document]], namespace=namespace)
        return answer["tools"]

    async def accept(
        self, server: str, tool: str, digest: str, levels: Mapping[str, Any], *, namespace: str = "default"
    ) -> str:
        order = Acceptance.of(tool, digest, levels)
        body = {"tool": tool, "digest": digest, **order.levels()}
        path = f"{_at(SERVERS, server)}/accept"
        answer = await self._post(path, body, dict[str, str], namespace=namespace, timeout=CALL_PATIENCE)
        return answer["tool"]
