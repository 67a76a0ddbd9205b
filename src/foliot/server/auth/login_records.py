"""Logins, their failures, and what was refused, in the audit log: who, from where, by which request; never a secret.

What a request says about who it comes from is not believed: of a failed login only the name of a real account is kept,
because people type passwords where names belong.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from starlette.requests import Request

from foliot.common.text import one_line
from foliot.errors import Denied, FoliotError
from foliot.server.audit import LONGEST, entry_of
from foliot.server.auth.identity import Caller
from foliot.server.auth.sessions import HELD, Held
from foliot.server.context import CALLER, Services
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.query import NAMESPACE, query_of

log = logging.getLogger(__name__)

# Of the same refusal of the same caller one record is enough for so long, in seconds.
TOLD_EVERY: Final = 60.0
MOST_TOLD: Final = 4096
_TOLD: Final = "foliot_denials"


async def tell(
    request: Request, verb: str, kind: str, name: str, *, caller: Caller | None = None, namespace: str = "", **more: Any
) -> None:
    """Keep the record of an act. It cannot be undone for want of a record, so this never raises."""
    services: Services = request.app.state.services
    entry = entry_of(
        caller, verb, kind, namespace, name, request=request.scope.get(REQUEST_ID, ""), peer=peer_of(request), **more
    )
    if caller is None:
        entry["caller"] = {"user": "", "known_by": "nobody"}
    try:
        await services.runtime.inside.audit.act(entry)
    except FoliotError as error:
        log.error("an act is not in the audit log: %s %s/%s: %s", verb, kind, name, error.message)


async def tell_denied(request: Request, error: FoliotError) -> None:
    """Records the refusal of a known caller; the same again within a minute is recorded once."""
    if not isinstance(error, Denied):
        return
    held: Held | None = request.scope.get(HELD)
    caller: Caller | None = request.scope.get(CALLER) or (held.caller if held else None)
    if caller is None:
        return
    route = getattr(request.scope.get("route"), "path", "")
    namespace = _refused_in(request, caller, error)
    told: dict[tuple[str, str, str, str], float] = getattr(request.app.state, _TOLD, {})
    key, now = (caller.name, request.method, route, namespace), time.monotonic()
    if now - told.get(key, -TOLD_EVERY) < TOLD_EVERY:
        return
    if len(told) >= MOST_TOLD:
        told.clear()
    told[key] = now
    setattr(request.app.state, _TOLD, told)
    await tell(
        request,
        "denied",
        "Route",
        f"{request.method} {route}",
        caller=caller,
        namespace=namespace,
        path=one_line(request.url.path)[:LONGEST],
        code=error.code,
        role=str(error.details.get("role", "")),
    )


def _refused_in(request: Request, caller: Caller, error: FoliotError) -> str:
    """Returns the namespace that a refusal is about, so that its admins see it; blank for the installation."""
    namespace = str(error.details.get("namespace", "")) or query_of(request.scope).get(NAMESPACE, "")
    return namespace if namespace and caller.sees(namespace) else ""


def peer_of(request: Request) -> str:
    """The address that the connection comes from."""
    return request.client.host if request.client is not None else ""
