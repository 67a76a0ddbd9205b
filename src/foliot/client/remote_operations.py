"""The verbs of whoever runs an installation, over the connection to a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from msgspec import Struct

from foliot.client.asking import Asking
from foliot.client.operations import MOST_JUDGED, Budgets, Fate, Fates, PolicyAnswer, RuleDefaults, Simulation
from foliot.engine.records.metering import By, Total
from foliot.store.audit import AuditFilter, AuditRecord, Verified
from foliot.store.audit_chain import Head
from foliot.store.base import Document
from foliot.store.bounds import ClassInfo, Limit, Scope
from foliot.store.workers import WorkerInfo
from foliot.tools.judge import PolicyQuestion

AUDIT: Final = "/v1/audit"
LIMITS: Final = "/v1/work/limits"
CLASSES: Final = "/v1/work/classes"
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
        return await self._get("/v1/work/budgets", Budgets, namespace=namespace, name=name, limit=limit)

    async def rule_defaults(self) -> RuleDefaults:
        return await self._get("/v1/work/rules", RuleDefaults)

    async def explain_call(self, namespace: str, asked: PolicyQuestion) -> PolicyAnswer:
        """See `Operations`. The server judges, by its rules."""
        path = "/v1/work/rules/explain"
        return await self._post(path, asked, PolicyAnswer, repeatable=True, namespace=namespace)

    async def simulate_calls(
        self, namespace: str, manifests: Sequence[Document], asked: Sequence[PolicyQuestion]
    ) -> list[Fate]:
        """See `Operations`. The server judges, by its rules."""
        found: list[Fate] = []
        for start in range(0, len(asked), MOST_JUDGED):
            order = Simulation(tuple(manifests), tuple(asked[start : start + MOST_JUDGED]))
            path = "/v1/work/rules/simulate"
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
