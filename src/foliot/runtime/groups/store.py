"""The verbs on what is declared and recorded; see groups.py.

Resources, triggers, the audit log, budgets, rules and workers: whoever has the store needs no engine for them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from foliot.runtime.groups.arguments import Group

if TYPE_CHECKING:
    from foliot.engine.audit.metering import By, Total
    from foliot.runtime.answers import Budgets, Fate, Fired, PolicyAnswer, RuleDefaults, Sent
    from foliot.runtime.outcomes import Applied, Outcome, Taken
    from foliot.store.audit.chain import ChainHead
    from foliot.store.audit.log import AuditFilter, AuditRecord, Verified
    from foliot.store.base import Change, Document, Filter, Page, Requirement
    from foliot.store.channel_links import ChannelLink
    from foliot.store.channels import ChannelDelivery
    from foliot.store.queue.limits import ClassInfo, Limit, Scope
    from foliot.store.queue.workers import WorkerInfo
    from foliot.store.triggers import Slot, WebhookDelivery
    from foliot.tools.governance.judge import PolicyQuestion

MANAGER: Final = "foliot"
"""The manager that owns the fields which `apply` sets, unless another one is named."""

# Where a verb is called `list`, the type of that name is hidden.
Rows = list


class ResourceGroup(Group):
    """Resources: what is declared."""

    @abstractmethod
    async def get(self, kind: str, name: str, *, namespace: str = "default", show_owners: bool = False) -> Document:
        """Return a resource, with `metadata.managedFields` if `show_owners`.

        Raises `NotFound` with near names as its hint.
        """

    @abstractmethod
    async def list(
        self, filter: Filter, *, limit: int = 500, cursor: str | None = None, show_owners: bool = False
    ) -> Page:
        """List a page of the resources that match, in the order of their names."""

    @abstractmethod
    async def apply(
        self,
        documents: Sequence[Document],
        *,
        dry_run: bool = False,
        prune: tuple[Requirement, ...] | None = None,
        prune_namespace: str = "default",
        allow_empty: bool = False,
        allow_missing: bool = False,
        force: bool = False,
        field_manager: str = MANAGER,
        force_conflicts: bool = False,
    ) -> Applied:
        """Create or update all `documents` in one transaction.

        What a document says is set and owned by the manager; what the manager applied before and no longer says goes;
        what others own stays, and is a `FieldConflict` where a document says something else, unless `force_conflicts`.
        A document says what is in it: leave defaults out.

        References are checked against the store and the documents together: one to something that is not there is an
        error, and with `allow_missing` a warning. With `prune`, resources in
        `prune_namespace` that match the selector, were made by apply, and are not among the documents are deleted, as
        `delete` does it: the work of a Task ends, and what open tasks use is a `Conflict` unless `force`. When none of
        the documents matches the selector, nothing is deleted unless `allow_empty`. What other managers own fields of
        is kept with a warning, unless `force_conflicts`.
        Raises `ManifestError`, `Conflict`, `UsageError`.
        """

    @abstractmethod
    async def opposed(self, documents: Sequence[Document]) -> Sequence[Taken]:
        """Return the Tasks among these documents that ask for something else than the work accepted under their names.

        Each has its `Conflict` as its error.
        """

    @abstractmethod
    async def accept(self, documents: Sequence[Document]) -> Sequence[Taken]:
        """Have the Tasks of mode `run` among these documents done, once each, however often this is called."""

    @abstractmethod
    async def replace(self, document: Document, *, take_over: bool = False, dry_run: bool = False) -> Outcome:
        """Store an edited document; its resourceVersion must still be the current one, else `Conflict`.

        With `take_over`, what somebody else put there also counts as declared by whoever writes it.
        """

    @abstractmethod
    async def delete(
        self,
        kind: str,
        name: str,
        *,
        namespace: str = "default",
        version: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Document:
        """Delete a resource; return it as it was.

        Raises `NotFound`, and `Conflict` at another version, or while a task that has not ended uses it, unless
        `force`: the details of the error name the `tasks`.
        """

    @abstractmethod
    def watch(self, filter: Filter, *, after: int) -> AsyncGenerator[Change]:
        """Yield changes to resources that match, behind the revision `after`, as they come."""


class ScheduleGroup(Group):
    """Schedules, which make tasks at given times."""

    @abstractmethod
    async def list(self, *, namespace: str | None = "default") -> Rows[Document]:
        """List schedules, with when they were due last and are due next."""

    @abstractmethod
    async def get(self, name: str, *, namespace: str = "default") -> Document:
        """Return a schedule. Raises `NotFound` with near names as its hint."""

    @abstractmethod
    async def slots(self, name: str, *, namespace: str = "default", limit: int = 20) -> Rows[Slot]:
        """List the times it was due and what became of each, newest first. Raises `NotFound`."""

    @abstractmethod
    async def run(
        self, name: str, *, namespace: str = "default", given: Mapping[str, str] | None = None, by: str = ""
    ) -> Fired:
        """Make a task of the schedule now; `given` is input besides what the schedule gives. Raises `NotFound`."""


class WebhookGroup(Group):
    """Webhooks, which make tasks of what others deliver."""

    @abstractmethod
    async def list(self, *, namespace: str | None = "default") -> Rows[Document]:
        """List webhooks with their addresses."""

    @abstractmethod
    async def get(self, name: str, *, namespace: str = "default") -> Document:
        """Return a webhook, which has an address from now on. Raises `NotFound` with near names as its hint."""

    @abstractmethod
    async def rotate(self, name: str, *, namespace: str = "default", grace: float = 0.0) -> Document:
        """Give a webhook another address; the old one goes on for `grace` seconds. Raises `NotFound`."""

    @abstractmethod
    async def deliveries(self, name: str, *, namespace: str = "default", limit: int = 20) -> Rows[WebhookDelivery]:
        """List deliveries, newest first, without their bodies. Raises `NotFound`."""

    @abstractmethod
    async def delivery(self, name: str, id: str, *, namespace: str = "default") -> WebhookDelivery:
        """Return a delivery with its body, if that was kept. Raises `NotFound`."""

    @abstractmethod
    async def replay(self, name: str, id: str, *, namespace: str = "default", by: str = "") -> str:
        """Make a new task of a delivery; return its name. Raises `NotFound`, `Conflict`."""

    @abstractmethod
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
        """Deliver a body, signed as the sender would sign it. Raises `NotFound`, `SecretError`."""


class ChannelGroup(Group):
    """Channels, by which people outside talk to agents."""

    @abstractmethod
    async def list(self, *, namespace: str | None = "default") -> Rows[Document]:
        """List channels, with what went wrong last."""

    @abstractmethod
    async def deliveries(
        self, name: str, *, namespace: str = "default", state: str = "", limit: int = 20
    ) -> Rows[ChannelDelivery]:
        """List answers to be delivered and delivered, newest first, without their texts. Raises `NotFound`."""

    @abstractmethod
    async def retry(self, name: str, key: int, *, namespace: str = "default") -> None:
        """Deliver what was given up once more. Raises `NotFound`."""

    @abstractmethod
    async def link(self, code: str, *, namespace: str = "default") -> ChannelLink:
        """Link whom a channel showed this code with whoever calls: from then on they speak there as themselves.

        Raises `NotFound` for a code that is not good, `Conflict` after too many of them.
        """

    @abstractmethod
    async def links(self, *, namespace: str = "default") -> Rows[ChannelLink]:
        """List who has linked what they are called on channels: admins see all links, others their own."""

    @abstractmethod
    async def unlink(self, id: str, *, namespace: str = "default") -> None:
        """End a link at once. Raises `NotFound`."""


class AuditGroup(Group):
    """The audit log: who decided and did what."""

    @abstractmethod
    async def list(
        self, wanted: AuditFilter | None = None, *, limit: int = 50, before: int | None = None
    ) -> Rows[AuditRecord]:
        """List records, newest first. `before` is the number of the last record of the page before."""

    @abstractmethod
    async def get(self, number: int) -> AuditRecord:
        """Return a record by its number. Raises `NotFound`."""

    @abstractmethod
    def export(self) -> AsyncGenerator[AuditRecord]:
        """Yield every record that is kept, oldest first."""

    @abstractmethod
    async def verify(self, anchor: ChainHead | None = None) -> Verified:
        """Check the chain of the whole log. `anchor` is a head that was noted before."""

    @abstractmethod
    async def totals(self, wanted: AuditFilter | None = None, *, by: By) -> Rows[Total]:
        """Add up calls, tokens and cost by `tool`, `agent`, `day` or `run`. Raises `InvalidInput`."""


class BudgetGroup(Group):
    """Budgets as they stand."""

    @abstractmethod
    async def list(self, *, namespace: str = "default", name: str | None = None, limit: int = 1000) -> Budgets:
        """List what may be spent and what was; with `name` one budget, and who waits for it. Raises `NotFound`."""


class PolicyGroup(Group):
    """Rules on tool calls, explained and tried."""

    @abstractmethod
    async def defaults(self) -> RuleDefaults:
        """Return what holds for calls that no resource speaks of."""

    @abstractmethod
    async def explain(self, asked: PolicyQuestion, *, namespace: str = "default") -> PolicyAnswer:
        """Explain what would become of a tool call, layer by layer. Raises `NotFound` (the agent, the tool)."""

    @abstractmethod
    async def simulate(
        self, manifests: Sequence[Document], asked: Sequence[PolicyQuestion], *, namespace: str = "default"
    ) -> Rows[Fate]:
        """Return what becomes of calls now, and if the manifests were applied.

        Raises `ManifestError`, `InvalidInput`.
        """


class WorkerGroup(Group):
    """Workers, the limits on what they do at once, and kinds of runs that keep failing."""

    @abstractmethod
    async def list(self) -> Rows[WorkerInfo]:
        """List the workers that are there."""

    @abstractmethod
    async def limits(self) -> Rows[Limit]:
        """List how many runs may be at work at once."""

    @abstractmethod
    async def set_limit(self, limit: Limit) -> None:
        """Limit how many runs of a namespace, an agent or a lane are at work at once. Raises `InvalidInput`."""

    @abstractmethod
    async def clear_limit(self, scope: Scope, name: str) -> None:
        """Lift a limit. Raises `InvalidInput`, `NotFound`."""

    @abstractmethod
    async def failing_classes(self) -> Rows[ClassInfo]:
        """List kinds of runs of which the last ones failed."""

    @abstractmethod
    async def mend_class(self, key: str) -> None:
        """Start runs of a class again that was held back. Raises `NotFound`."""
