"""The verbs of whoever runs an installation, over the connection to a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from msgspec import Struct

from foliot.client.http import Asking
from foliot.client.operations import (
    MOST_JUDGED,
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
from foliot.engine.audit.metering import By, Total
from foliot.store.audit.chain import Head
from foliot.store.audit.log import AuditFilter, AuditRecord, Verified
from foliot.store.base import Document
from foliot.store.queue.limits import ClassInfo, Limit, Scope
from foliot.store.queue.workers import WorkerInfo
from foliot.store.triggers import Delivery, Slot
from foliot.tools.governance.judge import Judgement, PolicyQuestion

if TYPE_CHECKING:
    from foliot.runtime.tools import Asker

AUDIT: Final = "/v1/audit"
LIMITS: Final = "/v1/limits"
CLASSES: Final = "/v1/run-classes"
# Walking a long log takes a while.
PATIENCE: Final = 600.0


class Records(Struct, frozen=True):
    records: list[AuditRecord]


class Totals(Struct, frozen=True):
    totals: list[Total]


class Workers(Struct, frozen=True):
    workers: list[WorkerInfo]


class Limits(Struct, frozen=True):
    limits: list[Limit]


class Classes(Struct, frozen=True):
    classes: list[ClassInfo]


class RemoteOperations(Asking):
    """Implements `Operations`."""

    async def audit_records(
        self, wanted: AuditFilter, *, limit: int = 50, before: int | None = None
    ) -> list[AuditRecord]:
        """See `Operations`."""
        return (await self._get(AUDIT, Records, **_params(wanted), limit=limit, before=before)).records

    async def audit_record(self, number: int) -> AuditRecord:
        return await self._get(f"{AUDIT}/{number}", AuditRecord)

    async def audit_export(self) -> AsyncGenerator[AuditRecord]:
        """See `Operations`."""
        after = 0
        while page := (await self._get(f"{AUDIT}/export", Records, after=after)).records:
            for record in page:
                yield record
            after = page[-1].seq

    async def audit_verify(self, anchor: Head | None = None) -> Verified:
        """See `Operations`. The server walks through its log."""
        head = None if anchor is None else str(anchor)
        return await self._post(f"{AUDIT}/verify", {"head": head}, Verified, repeatable=True, timeout=PATIENCE)

    async def audit_totals(self, wanted: AuditFilter, *, by: By) -> list[Total]:
        return (await self._get(f"{AUDIT}/totals", Totals, **_params(wanted), by=by)).totals

    async def budgets(self, namespace: str, *, name: str | None = None, limit: int = 1000) -> Budgets:
        return await self._get("/v1/budget-standings", Budgets, namespace=namespace, name=name, limit=limit)

    async def rule_defaults(self) -> RuleDefaults:
        return await self._get("/v1/policies/defaults", RuleDefaults)

    async def explain_call(self, namespace: str, asked: PolicyQuestion) -> PolicyAnswer:
        """See `Operations`. The server judges, by its rules."""
        path = "/v1/policies/explain"
        return await self._post(path, asked, PolicyAnswer, repeatable=True, namespace=namespace)

    async def simulate_calls(
        self, namespace: str, manifests: Sequence[Document], asked: Sequence[PolicyQuestion]
    ) -> list[Fate]:
        """See `Operations`. The server judges, by its rules."""
        found: list[Fate] = []
        for start in range(0, len(asked), MOST_JUDGED):
            order = Simulation(tuple(manifests), tuple(asked[start : start + MOST_JUDGED]))
            path = "/v1/policies/simulate"
            found += (await self._post(path, order, Fates, repeatable=True, namespace=namespace)).fates
        return found

    async def workers(self) -> list[WorkerInfo]:
        return (await self._get("/v1/work/workers", Workers)).workers

    async def limits(self) -> list[Limit]:
        return (await self._get(LIMITS, Limits)).limits

    async def set_limit(self, limit: Limit) -> None:
        await self._post(LIMITS, limit, Limits, repeatable=True)

    async def clear_limit(self, scope: Scope, name: str) -> None:
        await self._post(f"{LIMITS}/clear", {"scope": scope, "name": name}, Limits)

    async def failing_classes(self) -> list[ClassInfo]:
        return (await self._get(CLASSES, Classes)).classes

    async def mend_class(self, key: str) -> None:
        await self._post(f"{CLASSES}/mend", {"key": key}, Classes)


def _params(wanted: AuditFilter) -> dict[str, Any]:
    given = {
        "namespace": wanted.namespace,
        "agent": wanted.agent,
        "tool": wanted.tool,
        "run": wanted.run_id,
        "call": wanted.call_id,
        "moment": wanted.moment,
        "outcome": wanted.outcome,
        "since": wanted.since,
    }
    return {name: value for name, value in given.items() if value}


# --- remote triggers -------------------------------------------------------------------------------------------------

# The verbs on schedules and webhooks, over the connection to a server.

SCHEDULES: Final = "/v1/work/schedules"
WEBHOOKS: Final = "/v1/work/webhooks"
TASK_SCHEDULES: Final = "/v1/task-schedules"
TASK_WEBHOOKS: Final = "/v1/task-webhooks"


class Items(Struct, frozen=True):
    items: list[Document]


class Slots(Struct, frozen=True):
    slots: list[Slot]


class Deliveries(Struct, frozen=True):
    deliveries: list[Delivery]


class Replayed(Struct, frozen=True):
    task: str


class RemoteTriggers(Asking):
    """Implements `Triggers`."""

    async def schedule(self, namespace: str, name: str) -> Document:
        return await self._get(_at(SCHEDULES, name), Document, namespace=namespace)

    async def schedules(self, namespace: str | None) -> list[Document]:
        return (await self._get(SCHEDULES, Items, namespace=namespace)).items

    async def slots(self, namespace: str, name: str, *, limit: int) -> list[Slot]:
        return (await self._get(f"{_at(TASK_SCHEDULES, name)}/slots", Slots, namespace=namespace, limit=limit)).slots

    async def run_schedule(self, namespace: str, name: str, *, given: Mapping[str, str], by: str = "") -> Fired:
        body = {"by": by, "given": dict(given)}
        return await self._post(f"{_at(TASK_SCHEDULES, name)}/run", body, Fired, namespace=namespace)

    async def webhook(self, namespace: str, name: str) -> Document:
        return await self._get(_at(WEBHOOKS, name), Document, namespace=namespace)

    async def webhooks(self, namespace: str | None) -> list[Document]:
        return (await self._get(WEBHOOKS, Items, namespace=namespace)).items

    async def rotate_webhook(self, namespace: str, name: str, *, grace: float) -> Document:
        return await self._post(f"{_at(TASK_WEBHOOKS, name)}/rotate", {"grace": grace}, Document, namespace=namespace)

    async def deliveries(self, namespace: str, name: str, *, limit: int) -> list[Delivery]:
        path = f"{_at(TASK_WEBHOOKS, name)}/deliveries"
        return (await self._get(path, Deliveries, namespace=namespace, limit=limit)).deliveries

    async def delivery(self, namespace: str, name: str, id: str) -> Delivery:
        return await self._get(
            f"{_at(TASK_WEBHOOKS, name)}/deliveries/{quote(id, safe='')}", Delivery, namespace=namespace
        )

    async def replay_delivery(self, namespace: str, name: str, id: str, *, by: str = "") -> str:
        path = f"{_at(TASK_WEBHOOKS, name)}/deliveries/{quote(id, safe='')}/replay"
        return (await self._post(path, {"by": by}, Replayed, namespace=namespace)).task

    async def send_test(
        self, namespace: str, name: str, body: bytes, *, event_id: str, headers: Mapping[str, str], by: str = ""
    ) -> Sent:
        """See `Triggers`. The server signs: it has the secret, and knows who calls."""
        sent = {"body": body, "event_id": event_id, "headers": dict(headers)}
        return await self._post(f"{_at(TASK_WEBHOOKS, name)}/send-test", sent, Sent, namespace=namespace)


def _at(base: str, name: str) -> str:
    return f"{base}/{quote(name, safe='')}"


# --- remote tooling --------------------------------------------------------------------------------------------------

# The verbs on tools outside any run, over the connection to a server.

TOOLS: Final = "/v1/tools"
SERVERS: Final = "/v1/mcp-servers"
# A tool may take its time; the server ends a call when the tool's own limit is over.
CALL_PATIENCE: Final = 900.0


class RemoteTooling(Asking):
    """Implements `Tooling`."""

    async def toolset(self, namespace: str) -> Toolset:
        return await self._get("/v1/toolset", Toolset, namespace=namespace)

    async def tool(self, name: str, namespace: str) -> Document:
        return await self._get(f"{_remote_tooling_at(name)}/facts", Document, namespace=namespace)

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        asker: Asker,
        *,
        key: str = "",
        on_output: Callable[[str], None] | None = None,
    ) -> Called:
        """See `Tooling`. A call that has a key is asked for again when the connection breaks."""
        body = {
            "arguments": arguments,
            "agent": asker.agent,
            "user": asker.identity.user if asker.identity.by else "",
            "key": key,
        }
        path = f"{_remote_tooling_at(name)}/call"
        return await self._post(
            path, body, Called, namespace=asker.namespace, timeout=CALL_PATIENCE, repeatable=bool(key)
        )

    async def test_tool(self, name: str, arguments: dict[str, Any], asker: Asker) -> Judgement:
        body = {"arguments": arguments, "agent": asker.agent, "user": asker.identity.user if asker.identity.by else ""}
        return await self._post(
            f"{_remote_tooling_at(name)}/test", body, Judgement, namespace=asker.namespace, repeatable=True
        )

    async def offered_tools(self, server: str, namespace: str) -> list[Document]:
        """List the tools that an MCP server offers right now, compared with what was accepted."""
        path = f"{SERVERS}/{quote(server, safe='')}/tools"
        answer = await self._get(path, dict[str, list[Document]], namespace=namespace)
        return answer["tools"]

    async def accept_tool(self, server: str, tool: str, digest: str, levels: Document, *, namespace: str) -> str:
        """Agree to the definition of this digest; the name of the Tool is returned."""
        body = {"tool": tool, "digest": digest, **levels}
        path = f"{SERVERS}/{quote(server, safe='')}/accept"
        answer = await self._post(path, body, dict[str, str], namespace=namespace, timeout=CALL_PATIENCE)
        return answer["tool"]


def _remote_tooling_at(name: str) -> str:
    return f"{TOOLS}/{quote(name, safe='')}"
