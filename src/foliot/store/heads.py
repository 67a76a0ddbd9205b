"""The heads that all writers share, the revision and the end of the audit log, for bodies that share a transaction.

A head is read once for all bodies of the transaction: who comes second goes on from where the first has left it. And
records of the audit log, which bodies rarely read again, are put off and added together, in two statements: a hundred
accepted tasks move its head once. They are due when a statement could see that they are missing, and at the end.

Both shells ask the same three things of every statement:

    answers    the results, when it need not be done at all
    due        what has to be done before it
    done       where it has left a head

and after the last of them for `rest`.

Used by:  postgres/batches.py and sqlite/writer.py, for one transaction each.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from foliot.store import queries
from foliot.store.transaction import Statement

_OF_THE_LOG: Final = re.compile(r"\baudit(_head)?\b")


class Heads:
    """The heads that the bodies of one transaction share, as the last of them has left them.

    A head is locked by the first who asks, and changed by this transaction alone until its end. Queries whose names are
    not among `names` have nothing to do with it. Records that come as many as `at_once` are not put off: where a
    statement costs no round trip, that saves nothing but holds them all.
    """

    def __init__(self, at_once: int = sys.maxsize) -> None:
        self.names = of_heads()
        self._at_once = at_once
        self._known: dict[str, list[dict[str, Any]]] = {}
        self._records: list[Any] = []
        self._advance: Statement | None = None

    def answers(self, statements: Sequence[Statement]) -> list[Any] | None:
        """Returns the results of statements of one name that need not be done now; None when they have to be."""
        match statements[0].name:
            case "revision_lock" | "audit_turn" as name:
                return None if (known := self._known.get(name)) is None else [known] * len(statements)
            case "audit_add":
                if any(len(each.params) >= self._at_once for each in statements):
                    return None
                for each in statements:
                    self._records.extend(each.params)
                return [None] * len(statements)
            case "audit_advance":
                self._advance = statements[-1]
                params: Any = self._advance.params
                self._known["audit_turn"] = [{"seq": params["seq"], "hash": params["hash"]}]
                return [1] * len(statements)
            case _:
                return None

    def due(self, name: str) -> list[Statement]:
        """Takes what was put off and is due before a query of this name, which may read the log or move its head."""
        return self.rest() if name in self.names else []

    def done(self, statements: Sequence[Statement]) -> None:
        """Notices where statements of one name, which were done, have left a head."""
        if statements[0].name == "revision_set":
            params: Any = statements[-1].params
            self._known["revision_lock"] = [{"revision": params["revision"]}]

    def rest(self) -> list[Statement]:
        """Takes everything that was put off: at the end of the transaction."""
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
