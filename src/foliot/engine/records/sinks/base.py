"""The seam to places that want audit records too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from foliot.store.audit import AuditRecord
from foliot.tools.secrets import Secrets


class AuditSink(Protocol):
    """Gets every record after it is in the log, in order, in batches. Arguments in them are redacted already."""

    async def write(self, records: Sequence[AuditRecord]) -> None:
        """Take all of them. What this raises is told; an error that is `retryable` is tried again."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink may need: secrets by reference, and the hosts inside that may be reached."""

    secrets: Secrets
    outbound_allow: Collection[str] = ()
    namespace: str = "default"


SinkFactory: TypeAlias = Callable[[str, SinkContext], AuditSink]
"""What an entry point in the group `foliot.audit_sinks` names: makes a sink from what stands behind the colon."""


def as_data(record: AuditRecord) -> dict[str, Any]:
    """A record as one JSON object; taking `hash` out and encoding it canonically gives back what was hashed."""
    return {**record.body, "hash": record.hash}
