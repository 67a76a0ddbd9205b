"""Routes of authentication: the caller, and for people with a browser how to log in and out."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from foliot.common.times import iso
from foliot.errors import Conflict, Denied, InvalidInput, NotFound, UsageError
from foliot.server.auth.authentication import TokenAuth, is_loopback, session_caller
from foliot.server.auth.guard import new_router
from foliot.server.auth.identity import Caller
from foliot.server.auth.logins import NewSession, WrongLogin, peer_of, tell
from foliot.server.auth.oidc import BACK_WITHIN, OidcLogins
from foliot.server.auth.sessions import FLOW, HELD, SESSION, RequestSession, check_json, check_origin, csrf_token
from foliot.server.context import Services
from foliot.server.errors import Unauthenticated
from foliot.server.http.bodies import form
from foliot.server.http.parameters import Query
from foliot.server.http.responses import Json
from foliot.store.access.logins import LoginSession
from foliot.store.access.users import user_name
from foliot.store.secrets.local_key import NONCE

router = new_router("auth")


class Login(Struct):
    username: str
    password: str


class SetUp(Struct):
    username: str
    password: str
    setup_token: str


class ChangePassword(Struct):
    current_password: str
    new_password: str


class ResetPassword(Struct):
    """The name may be left out where there is only one account."""

    new_password: str
    username: str | None = None


@router.get("/v1/auth/me")
async def me(request: Request, caller: Caller) -> Response:
    """Returns the caller, the roles by namespace, and for a session the token that its writes must carry."""
    held: RequestSession | None = request.scope.get(HELD)
    if held is not None:
        return Json(_session(held.session, held.csrf))
    return Json(
        {
            "authenticated": caller.known_by != "anonymous",
            "username": caller.name,
            "method": "none" if caller.known_by == "anonymous" else "bearer",
            "roles": {namespace: sorted(roles) for namespace, roles in caller.grants.items()},
        }
    )


@router.get("/v1/auth/config")
async def config(services: Services) -> Response:
    """How one can log in here, and whether the first account is still to be made."""
    auth = services.auth
    if not isinstance(auth, TokenAuth):
        return Json({"mode": "off", "setup_required": False, "login_methods": []})
    methods = ["password", *(["oidc"] if auth.logins.oidc else [])]
    nobody = auth.logins.oidc is None and not await auth.logins.users.any()
    return Json({"mode": "native", "setup_required": nobody, "login_methods": methods})


@router.get("/v1/auth/local")
async def introduce(
    request: Request,
    services: Services,
    nonce: Annotated[str, Query(pattern=f"^{NONCE.pattern}$", description="32 random hexadecimal digits.")],
) -> Response:
    """Show a client on this machine that this server knows the local key of its home. 404 where there is none."""
    auth = services.auth
    offered = auth.introduce(request.scope, nonce) if isinstance(auth, TokenAuth) else None
    if offered is None:
        raise NotFound("nobody is known here by a local key", hint="send a token")
    about, proof = offered
    return Json({"boot": about.boot, "expires_at": about.expires_at, "proof": proof})


@router.post("/v1/auth/setup")
async def set_up(request: Request, services: Services) -> Response:
    """Make the first account, an admin, with the token of `foliot users setup-token`, and log in. Once: then 409."""
    auth = await _entrance(request, services)
    body = await form(request, SetUp)
    try:
        entered = await auth.logins.set_up(body.setup_token, body.username, body.password, peer_of(request))
    except Denied:
        await tell(request, "setup_failed", "User", "")
        raise
    name = entered.session.name
    await tell(request, "user_created", "User", name, roles=["admin"], where=["*"], by="setup token")
    return await _begun(request, auth, entered, 201)


@router.post("/v1/auth/login")
async def log_in(request: Request, services: Services) -> Response:
    """Begin a session: a cookie, and the CSRF token that goes with it. Too many wrong attempts: 429."""
    auth = await _entrance(request, services)
    body = await form(request, Login)
    try:
        entered = await auth.logins.log_in(body.username, body.password, peer_of(request))
    except WrongLogin as error:
        await tell(request, "login_failed", "User", error.name, method="password")
        raise
    return await _begun(request, auth, entered)


@router.post("/v1/auth/logout")
async def log_out(request: Request, services: Services) -> Response:
    """End the session of this cookie. Without one there is nothing to do."""
    response = Json({"authenticated": False})
    if isinstance(services.auth, TokenAuth):
        check_origin(request.scope, services.auth.logins.public_url)
        held = await services.auth.session(request.scope)
        if held is not None:
            await services.auth.logins.sessions.end(held.session)
            services.auth.forget()
            await tell(request, "logged_out", "User", held.caller.name, caller=held.caller)
        services.auth.logins.cookies.clear(response, request.scope, SESSION)
    return response


@router.post("/v1/auth/change-password")
async def change_password(request: Request, services: Services, caller: Caller) -> Response:
    """Changes the password of the logged-in user, who knows the old one. All their sessions end, this one too."""
    auth = _logins(services)
    held: RequestSession | None = request.scope.get(HELD)
    if held is None:
        raise UsageError("only somebody who is logged in has a password here", hint="POST /v1/auth/login")
    body = await form(request, ChangePassword)
    try:
        ended = await auth.logins.change_password(
            held.session, body.current_password, body.new_password, peer_of(request)
        )
    except WrongLogin:
        await tell(request, "password_change_failed", "User", caller.name, caller=caller)
        raise
    auth.forget()
    await tell(request, "password_changed", "User", caller.name, caller=caller)
    response = Json({"username": caller.name, "sessions_ended": ended})
    auth.logins.cookies.clear(response, request.scope, SESSION)
    return response


@router.post("/v1/auth/admin/reset-password")
async def reset_password(request: Request, services: Services, caller: Caller) -> Response:
    """Sets the password of another user. All their sessions end."""
    body = await form(request, ResetPassword)
    auth = _logins(services)
    logins = auth.logins
    name = user_name(body.username) if body.username is not None else ""
    if not name:
        known = await logins.users.list()
        if len(known) != 1:
            raise InvalidInput("username: whose password?", hint="there are several accounts, or none")
        name = known[0].name
    if name == caller.account:
        # A session that was left open, or a token made with it, must not become the account for good.
        raise Conflict("this is your own account", hint="POST /v1/auth/change-password, with the old password")
    ended = await logins.reset_password(name, body.new_password)
    auth.forget()
    await tell(request, "password_reset", "User", name, caller=caller)
    return Json({"username": name, "sessions_ended": ended})


@router.get("/v1/auth/oidc/login")
async def begin_oidc(
    request: Request,
    services: Services,
    return_to: Annotated[str, Query(max_length=500, description="A path on this server to go on at.")] = "/",
) -> Response:
    """Send the browser to the identity provider."""
    auth, oidc = _provider(services)
    await auth.logins.pass_by(peer_of(request))
    sent = await oidc.send_away(return_to, here=_here(request))
    response = RedirectResponse(sent.url, 303)
    auth.logins.cookies.write(response, request.scope, FLOW, sent.cookie, age=BACK_WITHIN)
    return response


@router.get("/v1/auth/oidc/callback")
async def end_oidc(request: Request, services: Services) -> Response:
    """Receives the browser back from the identity provider: begins a session, and redirects."""
    auth, oidc = _provider(services)
    cookies = auth.logins.cookies
    try:
        vouched = await oidc.take_back(request.query_params, cookies.read(request.scope, FLOW), here=_here(request))
    except (Unauthenticated, Denied) as error:
        await tell(request, "login_failed", "User", "", method="oidc", code=error.code)
        raise
    await auth.logins.came_back(peer_of(request))
    await _leave_old(request, auth)
    await auth.logins.sweep()
    response = RedirectResponse(vouched.return_to, 303)
    cookies.clear(response, request.scope, FLOW)
    cookies.write(response, request.scope, SESSION, vouched.cookie, age=auth.logins.lifetime.whole)
    await tell(
        request, "logged_in", "User", vouched.session.name, caller=session_caller(vouched.session), method="oidc"
    )
    return response


def _logins(services: Services) -> TokenAuth:
    if isinstance(services.auth, TokenAuth):
        return services.auth
    raise UsageError("nobody can log in at this server", hint="it was started without accounts")


def _provider(services: Services) -> tuple[TokenAuth, OidcLogins]:
    auth = _logins(services)
    if auth.logins.oidc is None:
        raise UsageError("this server knows no identity provider", hint="set oidc_issuer and oidc_client_id")
    return auth, auth.logins.oidc


async def _entrance(request: Request, services: Services) -> TokenAuth:
    """Returns the logins for a request that no page of another site can have sent."""
    auth = _logins(services)
    check_origin(request.scope, auth.logins.public_url)
    check_json(request.scope)
    return auth


async def _leave_old(request: Request, auth: TokenAuth) -> None:
    """A browser has one session: the one that it came with ends."""
    cookie = auth.logins.cookies.read(request.scope, SESSION)
    if cookie is not None and (old := await auth.held(cookie)) is not None:
        await auth.logins.sessions.end(old)
        auth.forget()


def _here(request: Request) -> str | None:
    """How a browser on this machine reached the server; nobody else is believed about that."""
    host = request.headers.get("host", "")
    name, _, port = host.rpartition(":")
    local = is_loopback(name if port.isdigit() else host)
    return f"{request.url.scheme}://{host}" if local else None


async def _begun(request: Request, auth: TokenAuth, entered: NewSession, status: int = 200) -> Response:
    """Answers with the session that began, and its cookie."""
    await _leave_old(request, auth)
    response = Json(_session(entered.session, csrf_token(entered.cookie)), status)
    auth.logins.cookies.write(response, request.scope, SESSION, entered.cookie, age=auth.logins.lifetime.whole)
    await tell(
        request, "logged_in", "User", entered.session.name, caller=session_caller(entered.session), method="password"
    )
    return response


def _session(session: LoginSession, csrf: str) -> dict[str, Any]:
    return {
        "authenticated": True,
        "username": session.name,
        "method": "session",
        "roles": {namespace: sorted(roles) for namespace, roles in session.grants.items()},
        "csrf_token": csrf,
        "expires_at": iso(session.ends_at),
    }
