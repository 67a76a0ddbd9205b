"""Changes of resources as events of one shape, for clients that follow all that happens and not the resources.

event: event
data: {"id": 42, "timestamp": "…", "source": "apiserver", "type": "resource.created", "kind": "Agent", …}
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import msgspec

from foliot.server.streams.sse import frame

SOURCE: Final = "apiserver"
_ACTIONS: Final = {"added": "created", "updated": "updated", "deleted": "deleted"}


class _Changed(msgspec.Struct, frozen=True):
    type: str
    resource: dict[str, Any]


def told_by(source: str | None) -> bool:
    """Whether events of this source come here."""
    return not source or source.strip().lower() == SOURCE


async def events_of(frames: AsyncGenerator[bytes], type: str | None) -> AsyncGenerator[bytes]:
    """The frames of a watch with each change as an event; with a type, only those. What is no change stays."""
    async with aclosing(frames) as pieces:
        async for piece in pieces:
            told = [_told(each, type) for each in piece.split(b"\n\n") if each]
            if any(told):
                yield b"".join(told)


def _told(text: bytes, type: str | None) -> bytes:
    lines = {name: value for name, _, value in (line.partition(b": ") for line in text.split(b"\n"))}
    if lines.get(b"event") != b"resource":
        return text + b"\n\n"
    change = msgspec.json.decode(lines[b"data"], type=_Changed)
    action = _ACTIONS[change.type]
    if type and type.strip().lower() != f"resource.{action}":
        return b""
    metadata = change.resource["metadata"]
    event: dict[str, Any] = {
        "id": int(lines[b"id"]),
        "timestamp": metadata.get("updatedAt") or metadata.get("createdAt") or "",
        "source": SOURCE,
        "type": f"resource.{action}",
        "kind": change.resource["kind"],
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "action": action,
        "message": "",
        "data": {"resource": change.resource},
    }
    return frame("event", event, event["id"])
