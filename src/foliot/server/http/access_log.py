"""One line per request, whatever became of it, with fields for programs that collect logs.

Never the query, for people put secrets there, nor a header. Of a credential there is only the name that it stands for.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from starlette.types import Scope

from foliot.server.context import CALLER

access = logging.getLogger("foliot.server.access")

# Nobody was left to be told.
GONE: Final = 499
LONGEST: Final = 512
_UNPRINTABLE: Final = re.compile(r"[^ -~]")


def tell(scope: Scope, method: str, *, request: str, status: int, seconds: float, sent: int) -> None:
    """Write the line of one request."""
    if not access.isEnabledFor(logging.INFO):
        return
    caller = scope.get(CALLER)
    fields = {
        "request": request,
        "method": method,
        # A line stays one line, whatever somebody writes into an address.
        "path": _UNPRINTABLE.sub("?", scope["path"])[:LONGEST],
        "status": status or GONE,
        "ms": round(seconds * 1000, 2),
        "bytes": sent,
        "client": (scope.get("client") or ("",))[0],
        "caller": caller.name if caller is not None else "",
    }
    access.info("%s %s %d", method, fields["path"], fields["status"], extra=fields)


def tell_refused(client: str, *, request: str, status: int, why: str) -> None:
    """Write the line of something that was no request."""
    fields = {"request": request, "status": status, "client": client}
    access.info("refused: %s", why, extra=fields)
