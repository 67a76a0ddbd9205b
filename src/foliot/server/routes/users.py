"""Accounts of people who log in, for whoever administers the whole installation: an account is one everywhere.

An account is never deleted, only disabled: what the audit log says of a name stays true. What is done to one and the
record of it are stored in one transaction. Nobody does it to the account that they are logged in with, so somebody who
can undo it is always left.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from foliot.common.times import iso
from foliot.engine.audit.words import Act
from foliot.errors import Conflict, UsageError
from foliot.server.audit import ActRecord
from foliot.server.auth.authentication import TokenAuth
from foliot.server.auth.guard import new_router
from foliot.server.auth.identity import Caller, asked_grants
from foliot.server.auth.logins import peer_of
from foliot.server.auth.passwords import check_password
from foliot.server.context import Services
from foliot.server.http.bodies import form
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.parameters import Path
from foliot.server.http.responses import Json
from foliot.store.access.users import UserInfo, user_name

router = new_router("users")

Username = Annotated[str, Path(max_length=63, description="The name of an account, in any letters.")]


class NewUser(Struct, forbid_unknown_fields=True):
    """`roles` are by namespace; `*` is all of them. Every role includes reading."""

    username: str
    password: str
    roles: dict[str, list[str]]


class UserRoles(Struct, forbid_unknown_fields=True):
    """The roles by namespace that an account has from now on, instead of those it had."""

    roles: dict[str, list[str]]


@router.get("/v1/users")
async def list_users(services: Services) -> Response:
    """Accounts by name, also those that are disabled."""
    return Json({"items": [as_data(info) for info in await _auth(services).logins.users.list()]})


@router.post("/v1/users")
async def create_user(request: Request, services: Services, caller: Caller) -> Response:
    """Make an account. 409 when the name is taken."""
    body = await form(request, NewUser)
    logins = _auth(services).logins
    name, grants = user_name(body.username), asked_grants(body.roles)
    check_password(body.password, name)
    kept = await logins.passwords.hash(body.password)
    act = _act(services, caller, request, "user_created", name, roles=grants)
    info = await logins.users.create(
        name, password=kept, grants=grants, now=time.time(), by=caller.name, in_transaction=act.record
    )
    act.tell()
    return Json(as_data(info), 201)


@router.put("/v1/users/{username}/roles")
async def set_roles(username: Username, request: Request, services: Services, caller: Caller) -> Response:
    """Give an account these roles instead of those it has; sessions have them at once."""
    grants = asked_grants((await form(request, UserRoles)).roles)
    auth, name = _auth(services), _anothers(caller, username)
    act = _act(services, caller, request, "user_granted", name, roles=grants)
    info = await auth.logins.users.grant(name, grants, in_transaction=act.record)
    return _done(auth, act, info)


@router.post("/v1/users/{username}/disable")
async def disable_user(username: Username, request: Request, services: Services, caller: Caller) -> Response:
    """Let nobody in by an account. All its sessions end."""
    auth, name = _auth(services), _anothers(caller, username)
    act = _act(services, caller, request, "user_disabled", name)
    info = await auth.logins.users.disable(name, now=time.time(), in_transaction=act.record)
    return _done(auth, act, info)


@router.post("/v1/users/{username}/enable")
async def enable_user(username: Username, request: Request, services: Services, caller: Caller) -> Response:
    """Undo disable."""
    auth, name = _auth(services), _anothers(caller, username)
    act = _act(services, caller, request, "user_enabled", name)
    info = await auth.logins.users.enable(name, in_transaction=act.record)
    return _done(auth, act, info)


def as_data(info: UserInfo) -> dict[str, Any]:
    """An account as it is shown: everything but what its password is known by."""
    times = {name: getattr(info, f"{name}_at") for name in ("created", "password", "disabled", "login")}
    return {
        "username": info.name,
        "roles": {space: [*held] for space, held in info.grants.items()},
        "createdBy": info.created_by,
        **{f"{name}At": iso(at) for name, at in times.items() if at is not None},
    }


def _auth(services: Services) -> TokenAuth:
    if isinstance(services.auth, TokenAuth):
        return services.auth
    raise UsageError("nobody can log in at this server", hint="it was started without accounts")


def _anothers(caller: Caller, username: str) -> str:
    """The name of an account that is not the caller's own. Raises `Conflict`."""
    name = username.strip().lower()
    if caller.account and name == caller.account:
        raise Conflict("this is the account that you are logged in with", hint="have another admin do it")
    return name


def _act(services: Services, caller: Caller, request: Request, verb: Act, name: str, **more: Any) -> ActRecord:
    id = request.scope[REQUEST_ID]
    return ActRecord(services.runtime, caller, verb, "User", "", name, request=id, peer=peer_of(request), **more)


def _done(auth: TokenAuth, act: ActRecord, info: UserInfo) -> Response:
    auth.forget()
    act.tell()
    return Json(as_data(info))
