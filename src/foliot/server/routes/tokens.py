"""Tokens over HTTP: made, listed and revoked by admins, each within the namespaces where they are one.

Nobody gives more than they hold, and what an account makes ends with it. What an admin of some namespaces makes is
named `<admin>/<name>`: such a token cannot pass for another caller in the audit log, and its name says nothing about
names elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

from msgspec import Struct, field
from starlette.requests import Request
from starlette.responses import Response

from foliot.common.durations import seconds
from foliot.common.times import iso
from foliot.errors import Denied, InvalidInput, NotFound
from foliot.server.auth.authentication import TokenAuth
from foliot.server.auth.guard import new_router
from foliot.server.auth.identity import Caller, asked_role, asked_space, role_named
from foliot.server.auth.logins import tell
from foliot.server.context import Services
from foliot.server.http.bodies import form
from foliot.server.http.parameters import Path
from foliot.server.http.responses import Json
from foliot.store.access.tokens import SqlTokens, TokenInfo
from foliot.store.access.users import EVERYWHERE, NAMED_ONLY

router = new_router("tokens")

LONGEST: Final = 100 * 366 * 86400.0


class NewToken(Struct):
    """`expires` is a length of time such as `90d`; without it the token is good until it is revoked."""

    name: str
    roles: list[str] = field(default_factory=lambda: ["reader"])
    namespaces: list[str] = field(default_factory=lambda: ["default"])
    expires: str | None = None


@router.get("/v1/tokens")
async def list_tokens(services: Services, caller: Caller) -> Response:
    """Tokens, oldest first, also those that are revoked: all whose namespaces the caller is an admin of."""
    found = await SqlTokens(services.database).list()
    return Json({"items": [as_data(info) for info in found if _is_theirs(caller, info)]})


@router.post("/v1/tokens")
async def create_token(request: Request, services: Services, caller: Caller) -> Response:
    """Make a token. Its text is in this answer, and nowhere else ever after."""
    body = await form(request, NewToken)
    roles = [*dict.fromkeys(asked_role(role) for role in body.roles)]
    spaces = [*dict.fromkeys(asked_space(space) for space in body.namespaces)]
    if not roles or not spaces:
        raise InvalidInput("a token needs at least one role and one namespace")
    for space in spaces:
        caller.require("admin", space, missing="there is no such namespace, or you are no admin there")
        _check_named_roles(caller, roles, space)
    now = time.time()
    ends = None if body.expires is None else now + _length(body.expires)
    info, text = await SqlTokens(services.database).create(
        body.name,
        namespaces=spaces,
        roles=roles,
        now=now,
        by=caller.name,
        under="" if caller.may("admin", EVERYWHERE) else caller.name,
        owner=caller.account,
        expires_at=ends,
    )
    await tell(request, "token_created", "Token", info.name, caller=caller, id=info.id, roles=roles, where=spaces)
    return Json({**as_data(info), "token": text}, 201)


@router.delete("/v1/tokens/{token_id}")
async def revoke_token(
    token_id: Annotated[str, Path(max_length=253, description="The id of a token, or its name.")],
    request: Request,
    services: Services,
    caller: Caller,
) -> Response:
    """Make a token worthless, for ever."""
    tokens = SqlTokens(services.database)
    info = await tokens.find(token_id) if "\x00" not in token_id else None
    if info is None or not _is_theirs(caller, info):
        raise NotFound(f"there is no token that can be used called {token_id!r}", hint="GET /v1/tokens shows them")
    info = await tokens.revoke(info.id, now=time.time())
    if isinstance(services.auth, TokenAuth):
        services.auth.forget()
    where = [*info.namespaces]
    await tell(request, "token_revoked", "Token", info.name, caller=caller, id=info.id, where=where)
    return Json(as_data(info))


def as_data(info: TokenInfo) -> dict[str, Any]:
    """A token as it is shown: everything but what lets one in."""
    times = {name: getattr(info, f"{name}_at") for name in ("created", "expires", "revoked", "used", "owner_disabled")}
    times["ownerDisabled"] = times.pop("owner_disabled")
    return {
        "id": info.id,
        "name": info.name,
        "roles": [*info.roles],
        "namespaces": [*info.namespaces],
        "createdBy": info.created_by,
        **({"owner": info.owner} if info.owner else {}),
        **{f"{name}At": iso(at) for name, at in times.items() if at is not None},
    }


def _check_named_roles(caller: Caller, roles: Sequence[str], space: str) -> None:
    """Raises `Denied` for a role that no other includes, given by somebody who does not hold it there.

    The operator of the installation gives it to anybody, but not to an own account by way of a token: such a token
    does no more than the account may.
    """
    for role in map(role_named, sorted(NAMED_ONLY.intersection(roles))):
        if caller.may(role, space) or (caller.may("admin", EVERYWHERE) and not caller.account):
            continue
        raise Denied(
            f"you cannot give the role {role}: you do not hold it in namespace {space!r}",
            hint="no other role includes it; an admin of all namespaces gives it to an account or by `foliot tokens`",
            role=role,
            namespace=space,
        )


def _is_theirs(caller: Caller, info: TokenInfo) -> bool:
    return all(caller.may("admin", space) for space in info.namespaces)


def _length(text: str) -> float:
    try:
        length = seconds(text)
    except ValueError:
        length = 0.0
    if not 0 < length <= LONGEST:
        raise InvalidInput(f"expires: {text!r} is not a length of time", hint="such as 12h or 90d")
    return length
