"""Audit records as lines of JSON in a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from foliot.common.threads import on_thread
from foliot.engine.audit.sinks import SinkContext, as_data
from foliot.errors import UsageError
from foliot.store.audit.log import AuditRecord


class FileSink:
    """Opens the file for each batch, so that it may be moved away (rotated) at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def write(self, records: Sequence[AuditRecord]) -> None:
        lines = b"".join(msgspec.json.encode(as_data(record)) + b"\n" for record in records)
        await on_thread(self._append, lines)

    async def close(self) -> None:
        pass  # nothing stays open

    def _append(self, lines: bytes) -> None:
        # Only its owner reads it: arguments are redacted, but still nobody else's business.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(lines)


def file_sink(address: str, _: SinkContext) -> FileSink:
    """`file:/var/log/foliot/audit.jsonl`. Raises `UsageError`."""
    path = Path(address).expanduser()
    if not path.is_absolute() or not path.parent.is_dir():
        raise UsageError(
            f"audit records cannot be written to {address!r}", hint="give an absolute path in a folder that exists"
        )
    return FileSink(path)
