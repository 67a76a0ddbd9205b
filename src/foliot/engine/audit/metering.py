"""Totals of what calls used, added up from the audit log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from foliot.common.suggestions import check_word
from foliot.store.audit.log import AuditFilter, SqlAuditLog

By: TypeAlias = Literal["tool", "agent", "day", "run"]
PAGE: Final = 1000


@dataclass(slots=True)
class Total:
    """`calls` are those that ran; `refused` never did, `asked` waited for an approval. The rest are sums.

    Tokens and money are those of runs that calls delegated, as far as prices are known.
    """

    name: str
    calls: int = 0
    failed: int = 0
    refused: int = 0
    asked: int = 0
    attempts: int = 0
    seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    tokens: int = 0
    cost_usd: float = 0.0

    def add(self, body: Mapping[str, Any]) -> None:
        match body["moment"]:
            case "refused":
                self.refused += 1
            case "parked":
                self.asked += 1
            case "finished":
                metering = body["metering"]
                self.calls += 1
                self.failed += body["outcome"] in ("failed", "unknown")
                self.attempts += metering["attempts"]
                self.seconds += metering["seconds"]
                self.bytes_in += metering["bytes_in"]
                self.bytes_out += metering["bytes_out"]
                self.tokens += metering.get("input_tokens", 0) + metering.get("output_tokens", 0)
                self.cost_usd += metering.get("cost_usd", 0.0)
            case _:
                pass


_NAMES: Final[Mapping[By, Callable[[Mapping[str, Any]], str]]] = {
    "tool": lambda body: body["tool"],
    "agent": lambda body: body["agent"],
    "run": lambda body: body["run_id"],
    "day": lambda body: datetime.fromtimestamp(body["at"], UTC).date().isoformat(),
}


async def totals(log: SqlAuditLog, filter: AuditFilter, *, by: By) -> list[Total]:
    """Adds up the usage in the records that match `filter`, by name. Reads a page at a time. Raises `InvalidInput`."""
    check_word("by", by, _NAMES)
    name_of = _NAMES[by]
    found: dict[str, Total] = {}
    before: int | None = None
    while page := await log.find(filter, limit=PAGE, before=before):
        for record in page:
            if record.body["moment"] in ("budget", "egress", "unfenced"):
                continue  # about what was not begun, or about a part of a call
            name = name_of(record.body)
            found.setdefault(name, Total(name)).add(record.body)
        before = page[-1].seq
    return [found[name] for name in sorted(found)]
