"""Every write through the server, in the audit log: who, what, to which resource, by which request."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from foliot.errors import FoliotError
from foliot.runtime import Runtime
from foliot.server.identity import Caller

log = logging.getLogger(__name__)

MOMENT: Final = "act"
LONGEST: Final = 500


def entry_of(
    caller: Caller | None, verb: str, kind: str, namespace: str, name: str, *, request: str = "", **more: Any
) -> dict[str, Any]:
    """The members of the record of one act. `verb` is in the past tense, and becomes the outcome."""
    return {
        "at": time.time(),
        "moment": MOMENT,
        "outcome": verb,
        "namespace": namespace[:LONGEST],
        "agent": "",
        "tool": "",
        "run_id": str(more.pop("run_id", "")),
        "call_id": "",
        "caller": {"user": caller.name if caller else "", "known_by": caller.known_by if caller else "store"},
        "decision": {"asks": [], "by": caller.name if caller else ""},
        "resource": {"kind": kind, "name": name[:LONGEST], **more},
        "request": request,
    }


async def record(
    runtime: Runtime,
    caller: Caller,
    verb: str,
    kind: str,
    namespace: str,
    name: str,
    *,
    request: str = "",
    **more: Any,
) -> None:
    """Keep the record of an act that has happened. It cannot be undone for want of a record, so this never raises."""
    try:
        await runtime.audit.act(entry_of(caller, verb, kind, namespace, name, request=request, **more))
    except FoliotError as error:
        log.error("an act is not in the audit log: %s %s/%s by %s: %s", verb, kind, name, caller.name, error.message)
