"""Audit records of decisions: each is written in the transaction that stores the decision.

A decision that cannot be recorded is not made. Where nobody decides in time the rule does, and the record names
`SYSTEM`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from foliot.engine.audit.entry import decision_entry
from foliot.engine.audit.log import AuditTrail
from foliot.engine.audit.words import Decided
from foliot.errors import InvalidInput, Unavailable
from foliot.kernel.run.state import Call, State
from foliot.store.audit.log import AuditRecord, append_records
from foliot.store.base import Document, Written
from foliot.store.journal.base import LockingBody, TransactionBody
from foliot.store.transaction import Tx

SYSTEM: Final = "system"


class DecisionLog:
    """Decisions about approvals and answers to questions, in one audit log; without a trail none are kept."""

    def __init__(self, trail: AuditTrail | None = None) -> None:
        self._trail = trail

    def new(
        self, outcome: Decided, by: str, at: float, *, actor: str = "", in_transaction: TransactionBody | None = None
    ) -> DecisionRecord:
        """The record of a decision that is about to be stored, in the name of `by`.

        `in_transaction` is written with it. `actor` is who made it when that is somebody else.
        """
        return DecisionRecord(self._trail, outcome, by, at, actor, in_transaction)


class DecisionRecord:
    """Hand `body_for` or `stored` to whoever stores the decision; afterwards `tell` those who listen to the log."""

    def __init__(
        self,
        trail: AuditTrail | None,
        outcome: Decided,
        by: str,
        at: float,
        actor: str,
        in_transaction: TransactionBody | None,
    ) -> None:
        self._trail = trail
        self._outcome: Decided = outcome
        self._by = by
        self._at = at
        self._actor = actor
        self._in_transaction = in_transaction
        self._kept: list[AuditRecord] = []

    def stored(self, written: Sequence[Written]) -> Tx[None]:
        """Appends the record with the approval as it is stored, inside the store's transaction."""
        return self._append(written[-1].document)

    def body_for(self, document: Document) -> TransactionBody | None:
        """Returns the record of a decision that is stored apart from this document; None when there is nothing to
        write.
        """
        if self._trail is None and self._in_transaction is None:
            return None
        append = partial(self._append, document)
        return (
            LockingBody(self._in_transaction.locks, append) if isinstance(self._in_transaction, LockingBody) else append
        )

    def tell(self) -> None:
        if self._kept and self._trail is not None:
            self._trail.appended(self._kept)

    def _append(self, document: Document) -> Tx[None]:
        if self._in_transaction is not None:
            yield from self._in_transaction()
        if self._trail is not None:
            entry = decision_entry(document, self._outcome, self._by, self._at, self._actor)
            try:
                # Whoever runs this again begins anew: only the records of the run that was stored are told.
                self._kept = yield from append_records([entry], told=self._trail.fed)
            except InvalidInput as error:
                raise Unavailable(
                    f"it cannot be recorded, and was not done: {error.message}", hint=error.hint
                ) from None


def call_document(state: State, call: Call, name: str, **status: str) -> Document:
    """A decision about a call in the shape of a decided approval, which is what the audit log keeps decisions as."""
    spec = {"agent": state.spec.agent, "tool": call.name, "run": state.run_id, "call_id": call.id}
    if call.approval is not None:
        spec["arguments_digest"] = call.approval.digest
    return {"metadata": {"name": name, "namespace": state.spec.namespace}, "spec": spec, "status": {**status}}
