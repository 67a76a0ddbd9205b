"""The heads that all writers share, the revision and the end of the audit log, for bodies that share a transaction.

A head is read once for all bodies of the transaction: who comes second goes on from where the first has left it. And
records of the audit log, which no body reads again, are added at the end, all in two statements: a hundred accepted
tasks move its head once.

Used by:  postgres/batches.py and sqlite/writer.py, for one transaction each.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from foliot.store import queries
from foliot.store.transaction import Statement

# The answer to a statement that has to be done.
ASK: Final = object()
_OF_THE_LOG: Final = re.compile(r"\baudit(_head)?\b")


class Heads:
    """The heads that the bodies of one transaction share, as the last of them has left them.

    A head is locked by the first who asks, and changed by this transaction alone until its end.
    """

    def __init__(self) -> None:
        self._known: dict[str, list[dict[str, Any]]] = {}
        self._records: list[Any] = []
        self._advance: Statement | None = None

    def answer(self, statement: Statement) -> Any:
        """The result of a statement that need not be done now, or `ASK`."""
        params: Any = statement.params
        match statement.name:
            case "revision_lock" | "audit_turn":
                return self._known.get(statement.name, ASK)
            case "audit_add":
                self._records.extend(params)
                return None
            case "audit_advance":
                self._known["audit_turn"] = [{"seq": params["seq"], "hash": params["hash"]}]
                self._advance = statement
                return 1
            case _:
                return ASK

    def done(self, statement: Statement) -> None:
        """Notice where a statement that was done has left a head."""
        if statement.name == "revision_set":
            params: Any = statement.params
            self._known["revision_lock"] = [{"revision": params["revision"]}]

    def take_rest(self) -> list[Statement]:
        """Takes the statements that were put off: for the end of the transaction, or before the log is read in it."""
        left = [Statement("audit_add", self._records, "many")] if self._records else []
        if self._advance is not None:
            left.append(self._advance)
        self._records, self._advance = [], None
        return left


@cache
def of_heads() -> frozenset[str]:
    """Returns the names of the queries that read or change a head, or what stands before it in the log."""
    found = {name for name, text in queries.load().items() if _OF_THE_LOG.search(text)}
    return frozenset({*found, "revision_lock", "revision_set"})
