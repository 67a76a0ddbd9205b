"""The verbs of whoever runs an installation: records, budgets, workers and their limits.

`LocalOperations` works on a store in this process, `RemoteOperations` asks a server; `cli/` cannot tell them apart.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from foliot.engine.audit.metering import By, Total
from foliot.engine.budgets.report import Standing
from foliot.kernel.messages import ToolResult
from foliot.store.audit.chain import Head
from foliot.store.audit.log import AuditFilter, AuditRecord, Verified
from foliot.store.base import Document
from foliot.store.queue.limits import ClassInfo, Limit, Scope
from foliot.store.queue.workers import WorkerInfo
from foliot.store.triggers import Delivery, Slot
from foliot.tools.governance.judge import Judgement, PolicyQuestion
from foliot.tools.governance.rules import Access

if TYPE_CHECKING:
    from foliot.runtime.tools import Asker

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


# --- triggers --------------------------------------------------------------------------------------------------------

# The verbs on schedules and webhooks: `LocalTriggers` on a store in this process, `RemoteTriggers` on a server.


class Fired(Struct, frozen=True):
    """A task that a schedule made right now: its id and phase; or, without one, why there is none."""

    task: str = ""
    phase: str = ""
    reason: str = ""


class Sent(Struct, frozen=True):
    """What a webhook answered to a delivery."""

    status: int
    document: dict[str, Any]


class Triggers(Protocol):
    async def schedule(self, namespace: str, name: str) -> Document:
        """A declared TaskSchedule. Raises `NotFound` that names what may be meant."""
        ...

    async def schedules(self, namespace: str | None) -> list[Document]: ...

    async def slots(self, namespace: str, name: str, *, limit: int) -> list[Slot]:
        """Every time it was due, newest first. Raises `NotFound`."""
        ...

    async def run_schedule(self, namespace: str, name: str, *, given: Mapping[str, str], by: str = "") -> Fired:
        """Make a task of the schedule now. Raises `NotFound`."""
        ...

    async def webhook(self, namespace: str, name: str) -> Document:
        """A declared TaskWebhook, which has an address from now on. Raises `NotFound`."""
        ...

    async def webhooks(self, namespace: str | None) -> list[Document]: ...

    async def rotate_webhook(self, namespace: str, name: str, *, grace: float) -> Document:
        """Give it another address; the old one goes on for `grace` seconds."""
        ...

    async def deliveries(self, namespace: str, name: str, *, limit: int) -> list[Delivery]:
        """Newest first, without their bodies."""
        ...

    async def delivery(self, namespace: str, name: str, id: str) -> Delivery:
        """One with its body, if that was kept. Raises `NotFound`."""
        ...

    async def replay_delivery(self, namespace: str, name: str, id: str, *, by: str = "") -> str:
        """Make a new task of a delivery; its name. Raises `NotFound`, `Conflict`."""
        ...

    async def send_test(
        self, namespace: str, name: str, body: bytes, *, event_id: str, headers: Mapping[str, str], by: str = ""
    ) -> Sent:
        """Deliver a body, signed as the sender would. `by` acts; over HTTP it is always the caller."""
        ...


# --- tooling ---------------------------------------------------------------------------------------------------------

# The verbs on tools outside any run: `LocalTooling` on a runtime in this process, `RemoteTooling` on a server.


class Toolset(Struct, frozen=True):
    """The facts of each tool as `tool_facts` tells them, and what the deployment has and lacks."""

    tools: list[Document]
    capabilities: dict[str, Any]


class Called(Struct, frozen=True):
    """What became of a call. `printed` is what came before its result."""

    result: ToolResult
    printed: str = ""


class Tooling(Protocol):
    async def toolset(self, namespace: str) -> Toolset:
        """All tools by name, whether or not they can be called there."""
        ...

    async def tool(self, name: str, namespace: str) -> Document:
        """One with its limits, its schema, and the rules that speak of it. Raises `NotFound`."""
        ...

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        asker: Asker,
        *,
        key: str = "",
        on_output: Callable[[str], None] | None = None,
    ) -> Called:
        """One governed and recorded call. Raises `NotFound`, `FoliotError` for a tool that cannot be called there,
        and `Denied` when a rule asks for an approval that nobody gave in advance: it is not made.

        `on_output` hears pieces as they come where the tool runs in this process; from a server they are `printed`.
        """
        ...

    async def test_tool(self, name: str, arguments: dict[str, Any], asker: Asker) -> Judgement:
        """What would become of that call. Nothing is run."""
        ...
