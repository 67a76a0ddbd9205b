"""The verbs of whoever runs an installation: records, budgets, workers and their limits.

`LocalOperations` works on a store in this process, `RemoteOperations` asks a server; `cli/` cannot tell them apart.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final, Protocol

from msgspec import Struct

from foliot.engine.budgets.report import Standing
from foliot.engine.records.metering import By, Total
from foliot.store.audit import AuditFilter, AuditRecord, Verified
from foliot.store.audit_chain import Head
from foliot.store.base import Document
from foliot.store.bounds import ClassInfo, Limit, Scope
from foliot.store.workers import WorkerInfo
from foliot.tools.judge import Judgement, PolicyQuestion
from foliot.tools.rules import Access

# How many calls are judged at once.
MOST_JUDGED: Final = 500


class Budgets(Struct, frozen=True):
    """How budgets stand: each account of a current window, how many are declared, and the runs that wait for room."""

    standings: list[Standing]
    declared: int
    waiting: list[str] = []


class RuleDefaults(Struct, frozen=True):
    """What holds for tool calls that no resource speaks of; see the settings of the same names."""

    default_tool_access: Access
    allowed_tools: tuple[str, ...] | None = None


class PolicyAnswer(Struct, frozen=True):
    """What would become of it. A tool that is not `declared` was judged by its name alone.

    `user` is the person on whose behalf it was judged; `notes` say what was taken for granted.
    """

    judgement: Judgement
    declared: bool
    user: str = ""
    notes: tuple[str, ...] = ()


class Fate(Struct, frozen=True):
    """One call under the rules as they are, and as they would be."""

    before: Judgement
    after: Judgement
    user: str = ""
    notes: tuple[str, ...] = ()


class Simulation(Struct, frozen=True):
    """Calls to judge as things are, and as they would be with these manifests."""

    manifests: tuple[Document, ...]
    calls: tuple[PolicyQuestion, ...]


class Fates(Struct, frozen=True):
    """What would become of each call, in their order."""

    fates: list[Fate]


class Operations(Protocol):
    # --- records -------------------------------------------------------------------------------------------------

    async def audit_records(
        self, wanted: AuditFilter, *, limit: int = 50, before: int | None = None
    ) -> list[AuditRecord]:
        """Newest first. `before` is the number of the last record of the page before."""
        ...

    async def audit_record(self, number: int) -> AuditRecord:
        """Raises `NotFound`."""
        ...

    def audit_export(self) -> AsyncGenerator[AuditRecord]:
        """Every record that is kept, oldest first."""
        ...

    async def audit_verify(self, anchor: Head | None = None) -> Verified:
        """Walk the whole log. `anchor` is a head that was noted before."""
        ...

    async def audit_totals(self, wanted: AuditFilter, *, by: By) -> list[Total]: ...

    # --- budgets and rules ---------------------------------------------------------------------------------------

    async def budgets(self, namespace: str, *, name: str | None = None, limit: int = 1000) -> Budgets:
        """Those of a namespace, or one of them with who waits for it. Raises `NotFound`."""
        ...

    async def rule_defaults(self) -> RuleDefaults: ...

    async def explain_call(self, namespace: str, asked: PolicyQuestion) -> PolicyAnswer:
        """What would become of a tool call, by the rules of where it would be made. Raises `NotFound` (the agent)."""
        ...

    async def simulate_calls(
        self, namespace: str, manifests: Sequence[Document], asked: Sequence[PolicyQuestion]
    ) -> list[Fate]:
        """What would become of calls now, and if the manifests were applied. Raises `ManifestError`, `InvalidInput`."""
        ...

    # --- workers -------------------------------------------------------------------------------------------------

    async def workers(self) -> list[WorkerInfo]: ...

    async def limits(self) -> list[Limit]: ...

    async def set_limit(self, limit: Limit) -> None:
        """Raises `InvalidInput`."""
        ...

    async def clear_limit(self, scope: Scope, name: str) -> None:
        """Raises `InvalidInput`, `NotFound`."""
        ...

    async def failing_classes(self) -> list[ClassInfo]: ...

    async def mend_class(self, key: str) -> None:
        """Begin runs of a class again that was held back. Raises `NotFound`."""
        ...
