"""Sessions: conversations of people with agents. They are found, read, spoken to and stopped here.

A session is its user's. Others of the namespace with the role operator may read it; to speak in it for its user one
needs the role impersonator, to end or archive it the role admin. For everybody else it does not exist.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import fields
from starlette.requests import Request
from starlette.responses import Response

from foliot.common.suggestions import suggestion
from foliot.engine.audit.words import Act
from foliot.engine.driver.ids import check_chosen_id
from foliot.errors import Denied, InvalidInput, NotFound, UsageError
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Message
from foliot.runtime.answers import InvalidateOrder, SayOrder, SessionOrder
from foliot.runtime.local.sessions import resume_session
from foliot.server.audit import ActRecord, record
from foliot.server.auth.guard import new_router
from foliot.server.auth.identity import Caller, Role
from foliot.server.auth.overrides import check_override
from foliot.server.context import Services
from foliot.server.http.bodies import form, form_in
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.names import Continue, Limit, Namespace, last_event, parameters, space
from foliot.server.http.parameters import Path, Query
from foliot.server.http.request_keys import KEY_PATTERN, id_by_key
from foliot.server.http.responses import Json
from foliot.server.streams.sessions import answer_frames, session_frames
from foliot.sessions.base import TurnOptions
from foliot.sessions.chat_events import read_place
from foliot.sessions.service import SessionService
from foliot.store.sessions.base import Place, Session

router = new_router("sessions")
_LISTED: Final = "`foliot sessions` lists them; over HTTP: GET /v1/sessions"
# What stands in the place of an id by mistake.
_ELSEWHERE: Final = {
    "search": "searching is GET /v1/session-search?text=…",
    "active": "the active one of a channel is GET /v1/active-session?agent=…",
}

_MESSAGE: Final = tuple(field.name for field in fields(Message))
_FORMS: Final = (
    'a text, or {"parts": [{"type": "text", "text": "…"}, {"type": "media", "media_type": "…", "data": "…"}]}'
)

SessionId = Annotated[str, Path(min_length=1, max_length=253, description="The id of the session.")]
AgentName = Annotated[str, Query(max_length=253, description="Only sessions with this agent.")]
User = Annotated[str, Query(max_length=253, description="Only sessions of this user.")]
Channel = Annotated[str, Query(max_length=1024, description="Only sessions of this channel.")]
Before = Annotated[int | None, Query(ge=1, lt=2**53, description="Only turns before this number.")]
Arrival = Annotated[int, Query(ge=0, lt=2**53, description="Only inputs behind this arrival number.")]


class SessionChange(Struct, forbid_unknown_fields=True):
    """The changes to a session; what is left out stays. A blank model is that of the agent."""

    title: str | None = None
    model: str | None = None
    options: dict[str, Any] | None = None


class RegenerateOrder(Struct, forbid_unknown_fields=True):
    """The options of a turn that answers again, where they differ from those of the earlier one."""

    options: TurnOptions = TurnOptions()


class BranchOrder(Struct, forbid_unknown_fields=True):
    """The turn to continue after, by its number."""

    turn: Annotated[int, msgspec.Meta(ge=1, lt=2**53)]


class StopOrder(Struct, forbid_unknown_fields=True):
    """A turn is to be stopped; with `drop`, what waits to be answered is taken out too."""

    drop: bool = False


# --- finding sessions --------------------------------------------------------------------------------------------


@router.get("/v1/sessions")
async def list_sessions(
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    agent: AgentName = "",
    user: User = "",
    channel: Channel = "",
    mine: Annotated[bool, Query(description="Only the caller's own.")] = False,
    archived: Annotated[bool, Query(description="Also archived ones.")] = False,
    limit: Limit = 50,
    after: Continue = None,
) -> Response:
    """Sessions of a namespace, the last used first: the caller's own, for an operator those of everybody."""
    where = space(namespace)
    own = mine or not _sees_others(caller, where)
    if own and user not in ("", caller.name):
        return Json({"items": []})
    with parameters():
        page = await _sessions(services).list(
            where,
            identity=caller.acting_for_self("http") if own else None,
            agent=agent,
            user=user,
            channel=channel,
            archived=archived,
            limit=limit,
            cursor=await services.cursors.open(after) or "",
        )
    return Json(await services.cursors.page(page.items, page.cursor))


@router.post("/v1/sessions")
async def create_session(request: Request, services: Services, caller: Caller, namespace: Namespace = None) -> Response:
    """Create a session, which is then the active one of its channel. 409 when the id is taken."""
    order, place, identity = await _ordered(request, caller, namespace)
    if order.id:
        check_chosen_id(order.id)
    id = order.id or id_by_key(request.scope)
    made = await _sessions(services).create(place, identity=identity, id=id, **_given(order))
    await _record(services, caller, request, "session_created", made)
    return Json(made, 201)


@router.post("/v1/sessions/resolve")
async def resolve(request: Request, services: Services, caller: Caller, namespace: Namespace = None) -> Response:
    """Return the active session of a channel, or create it: all who ask at once get the same."""
    order, place, identity = await _ordered(request, caller, namespace)
    found = await _sessions(services).resolve(place, identity=identity, **_given(order))
    await _record(services, caller, request, "session_resolved", found)
    return Json(found)


@router.post("/v1/sessions/rotate")
async def rotate(request: Request, services: Services, caller: Caller, namespace: Namespace = None) -> Response:
    """Archive the active session of a channel, if there is one, and create another."""
    order, place, identity = await _ordered(request, caller, namespace)
    made = await _sessions(services).rotate(place, identity=identity, **_given(order))
    await _record(services, caller, request, "session_rotated", made)
    return Json(made, 201)


@router.post("/v1/sessions/invalidate")
async def invalidate(request: Request, services: Services, caller: Caller, namespace: Namespace = None) -> Response:
    """Mark what is warm for the sessions of a user as stale; their next turn is built anew. No turn at work is touched.

    Of another user than the caller it needs the role admin.
    """
    order = await form_in(request, InvalidateOrder, namespace)
    user = order.user.strip() or caller.name
    caller.require("operator" if user == caller.name else "admin", order.namespace)
    id = request.scope[REQUEST_ID]
    act = ActRecord(services.runtime, caller, "sessions_invalidated", "User", order.namespace, user, request=id)
    await _sessions(services).invalidate(order.namespace, user, in_transaction=act.record)
    act.tell()
    return Response(status_code=204)


@router.get("/v1/active-session")
async def active(
    services: Services,
    caller: Caller,
    agent: Annotated[str, Query(min_length=1, max_length=253, description="The agent.")],
    namespace: Namespace = None,
    user: Annotated[str, Query(max_length=253, description="The user; by default the caller.")] = "",
    channel: Annotated[str, Query(max_length=1024, description="The channel.")] = "",
) -> Response:
    """Return the active session of a channel, if there is one."""
    where = space(namespace)
    if user and user != caller.name and not _sees_others(caller, where):
        return Json({"session": None})
    place = Place(where, agent, user or caller.name, channel)
    return Json({"session": await _sessions(services).active(place, identity=None)})


@router.get("/v1/session-search")
async def search(
    services: Services,
    caller: Caller,
    text: Annotated[str, Query(min_length=1, max_length=1000, description="The words to search for.")],
    namespace: Namespace = None,
    session: Annotated[str | None, Query(max_length=253, description="Only in this session.")] = None,
    limit: Limit = 20,
) -> Response:
    """Search what was said in the caller's sessions, or in one that they may read, the newest first."""
    where = space(namespace)
    identity: Identity | None = caller.acting_for_self("http")
    if session is not None:
        found = await _seen(services, caller, session)
        if found.place.namespace != where:
            raise _missing(session)
        identity = None
    with parameters():
        items = await _sessions(services).search(where, text, identity=identity, session=session, limit=limit)
    return Json({"items": [*items]})


# --- one session -------------------------------------------------------------------------------------------------


@router.get("/v1/sessions/{session_id}")
async def get_session(session_id: SessionId, services: Services, caller: Caller) -> Response:
    """One session: whose it is, its title and model, the turn at work."""
    return Json(await _seen(services, caller, session_id))


@router.get("/v1/sessions/{session_id}/history")
async def history(
    session_id: SessionId, services: Services, caller: Caller, before: Before = None, limit: Limit = 50
) -> Response:
    """Turns with their messages, the newest last, of all branches. Nothing that was compacted is missing."""
    await _seen(services, caller, session_id)
    turns = await _sessions(services).history(session_id, identity=None, before=before, limit=limit)
    return Json({"items": [*turns]})


@router.get("/v1/sessions/{session_id}/inputs")
async def inputs(
    session_id: SessionId, services: Services, caller: Caller, after: Arrival = 0, limit: Limit = 50
) -> Response:
    """List what was said to a session, in the order of arrival, and what became of it."""
    await _seen(services, caller, session_id)
    return Json({"items": [*await _sessions(services).inputs(session_id, identity=None, after=after, limit=limit)]})


@router.post("/v1/sessions/{session_id}/change")
async def change(session_id: SessionId, request: Request, services: Services, caller: Caller) -> Response:
    """Change the title, the model or the options. A turn at work keeps its model."""
    wanted = await form(request, SessionChange)
    session, identity = await _own(services, caller, session_id)
    check_override(caller, session.place.namespace, model=wanted.model)
    changed = await _sessions(services).change(
        session_id, identity=identity, title=wanted.title, model=wanted.model, options=wanted.options
    )
    await _record(services, caller, request, "session_changed", changed)
    return Json(changed)


@router.post("/v1/sessions/{session_id}/archive")
async def archive(session_id: SessionId, request: Request, services: Services, caller: Caller) -> Response:
    """Archive a session: it can be read, and takes nothing new."""
    await _managed(services, caller, session_id)
    archived = await _sessions(services).archive(session_id, identity=None)
    await _record(services, caller, request, "session_archived", archived)
    return Json(archived)


@router.post("/v1/sessions/{session_id}/delete")
async def delete(session_id: SessionId, request: Request, services: Services, caller: Caller) -> Response:
    """Delete a session; its runs stay. 409 while a turn is at work."""
    session = await _managed(services, caller, session_id)
    await _sessions(services).delete(session_id, identity=None)
    await _record(services, caller, request, "session_deleted", session)
    return Response(status_code=204)


# --- speaking ----------------------------------------------------------------------------------------------------


@router.post("/v1/sessions/{session_id}/say")
async def say(session_id: SessionId, request: Request, services: Services, caller: Caller) -> Response:
    """Say something to a session; it is stored when this is answered. The answer says what becomes of it.

    With a `key` in the body, or an `Idempotency-Key`, it is said once.
    """
    order = await form(request, SayOrder)
    session, identity = await _own(services, caller, session_id)
    options = order.options
    check_override(caller, session.place.namespace, model=options.model, prompt=options.system or None)
    act = ActRecord(
        services.runtime,
        caller,
        "session_told",
        "Session",
        session.place.namespace,
        session.id,
        request=request.scope[REQUEST_ID],
    )
    said = await _sessions(services).say(
        session_id,
        _message(order.message),
        identity=identity,
        mode=order.mode,
        key=_key(request, order.key),
        place=order.place,
        options=options,
        in_transaction=act.record,
    )
    act.tell()
    return Json(said, 202)


@router.post("/v1/sessions/{session_id}/regenerate")
async def regenerate(session_id: SessionId, request: Request, services: Services, caller: Caller) -> Response:
    """Answer again what the newest turn has answered; the earlier answer stays as a branch."""
    order = await form(request, RegenerateOrder)
    session, identity = await _own(services, caller, session_id)
    options = order.options
    check_override(caller, session.place.namespace, model=options.model, prompt=options.system or None)
    said = await _sessions(services).regenerate(session_id, identity=identity, options=options)
    await _record(services, caller, request, "session_regenerated", session)
    return Json(said, 202)


@router.post("/v1/sessions/{session_id}/select-branch")
async def select_branch(session_id: SessionId, request: Request, services: Services, caller: Caller) -> Response:
    """Continue after a turn from now on: what is said next belongs to its branch."""
    order = await form(request, BranchOrder)
    _, identity = await _own(services, caller, session_id)
    selected = await _sessions(services).select_branch(session_id, order.turn, identity=identity)
    await _record(services, caller, request, "session_branch_selected", selected)
    return Json(selected)


@router.post("/v1/sessions/{session_id}/compact")
async def compact(session_id: SessionId, request: Request, services: Services, caller: Caller) -> Response:
    """Compact the conversation: older messages are sent to the model as a summary, and all stay readable."""
    session, identity = await _own(services, caller, session_id)
    said = await _sessions(services).compact(session_id, identity=identity)
    await _record(services, caller, request, "session_compacted", session)
    return Json(said, 202)


@router.post("/v1/sessions/{session_id}/resume")
async def resume(session_id: SessionId, request: Request, services: Services, caller: Caller) -> Response:
    """Have a session go on that no process looks after: its turn at work is resumed, what waits is answered."""
    session, _ = await _own(services, caller, session_id)
    resumed = await resume_session(services.runtime.inside, session)
    await _record(services, caller, request, "session_resumed", session)
    return Json(resumed)


@router.post("/v1/sessions/{session_id}/stop")
async def stop(session_id: SessionId, request: Request, services: Services, caller: Caller) -> Response:
    """Stop the turn at work. It is answered when nothing of it acts any more, and says whether there was one."""
    order = await form(request, StopOrder)
    session = await _managed(services, caller, session_id)
    identity = caller.identity_for(session.place.user, "http")
    stopped = await _sessions(services).stop(session_id, identity=identity, drop=order.drop)
    await _record(services, caller, request, "session_stopped", session)
    return Json({"stopped": stopped})


@router.get("/v1/sessions/{session_id}/stream")
async def stream(
    session_id: SessionId,
    request: Request,
    services: Services,
    caller: Caller,
    after: Annotated[str, Query(max_length=200, description="Only behind the event of this `place`.")] = "",
    input: Annotated[int | None, Query(ge=1, lt=2**53, description="Only the turn that answers this input.")] = None,
    pauses: Annotated[bool, Query(description="With `input`: end also when a person has to decide.")] = False,
) -> Response:
    """The events of a session as they come, as server-sent events (event `chat`), turn after turn.

    It begins with the turn at work, or behind the event with the id `Last-Event-ID`. Each turn has exactly one event of
    type `end`. With `input` the stream itself ends behind it (event `end`). A client that leaves does not stop a turn.
    """
    session = await _seen(services, caller, session_id)
    position = last_event(request, after) or ""
    with parameters():
        place = read_place(position) if position else None
    if input is not None:
        return services.streams.respond(caller, answer_frames(services, session, input, place, pauses=pauses))
    return services.streams.respond(caller, session_frames(services, session, position))


# --- who may ------------------------------------------------------------------------------------------------------


def _sessions(services: Services) -> SessionService:
    return services.runtime.inside.sessions


def _sees_others(caller: Caller, namespace: str) -> bool:
    return caller.may("operator", namespace)


async def _found(services: Services, caller: Caller, id: str, role: Role) -> tuple[Session, bool]:
    """Returns a session that the caller may at least see, and whether it is theirs.

    One that is hidden is missing, in the same words.
    """
    try:
        session = await _sessions(services).get(id, identity=None)
    except NotFound:
        raise _missing(id) from None
    where, own = session.place.namespace, session.place.user == caller.name
    if not caller.sees(where) or not (own or _sees_others(caller, where)):
        raise _missing(id)
    caller.require(role, where)
    return session, own


async def _seen(services: Services, caller: Caller, id: str) -> Session:
    """Returns a session to be read: the caller's, or one of a namespace in which they are an operator."""
    session, _ = await _found(services, caller, id, "reader")
    return session


async def _own(services: Services, caller: Caller, id: str) -> tuple[Session, Identity]:
    """Returns a session to speak in, and the identity for that: its user's own, or a caller's who acts for them."""
    session, own = await _found(services, caller, id, "operator")
    if not own and not caller.may("impersonator", session.place.namespace):
        raise _others(session, "speak in it", "impersonator")
    return session, caller.identity_for(session.place.user, "http")


async def _managed(services: Services, caller: Caller, id: str) -> Session:
    """Returns a session to be ended or put away: the caller's, or any of a namespace in which they are an admin."""
    session, own = await _found(services, caller, id, "operator")
    if not own and not caller.may("admin", session.place.namespace):
        raise _others(session, "do that to it", "admin")
    return session


def _others(session: Session, what: str, role: Role) -> Denied:
    return Denied(
        f"this is a session of {session.place.user!r}, and you cannot {what}",
        hint=f"have the role {role} in namespace {session.place.namespace!r}",
        role=role,
        namespace=session.place.namespace,
    )


def _missing(id: str) -> NotFound:
    return NotFound(f"there is no session {id[:80]!r}", hint=_ELSEWHERE.get(id, _LISTED))


async def _ordered(request: Request, caller: Caller, namespace: str | None) -> tuple[SessionOrder, Place, Identity]:
    order = await form_in(request, SessionOrder, namespace)
    identity = caller.identity(order.namespace, "http", user=order.user)
    check_override(caller, order.namespace, model=order.model)
    return order, Place(order.namespace, order.agent, identity.user, order.channel), identity


def _given(order: SessionOrder) -> dict[str, Any]:
    return {"kind": order.kind, "title": order.title, "model": order.model, "options": order.options}


def _key(request: Request, given: str) -> str | None:
    """The key under which something is said once. Raises `UsageError` for two of them: one would be passed over."""
    by_header = id_by_key(request.scope)
    if given and by_header is not None:
        raise UsageError("there are two keys", hint="send `key` in the body, or the header Idempotency-Key")
    if given and not KEY_PATTERN.fullmatch(given):
        raise InvalidInput("key: this cannot be a key", hint="use 1 to 255 letters, digits and signs")
    return given or by_header


def _message(given: str | dict[str, Any]) -> Message | str:
    if isinstance(given, str):
        return given
    if unknown := [name for name in given if name not in _MESSAGE]:
        raise InvalidInput(
            f"message: unknown field {unknown[0][:80]!r}",
            hint=suggestion(unknown[0], _MESSAGE, _FORMS),
            field=f"message.{unknown[0][:80]}",
        )
    try:
        return msgspec.convert({"role": "user", **given}, Message)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the message cannot be read: {error}") from None


async def _record(services: Services, caller: Caller, request: Request, verb: Act, session: Session) -> None:
    id = request.scope[REQUEST_ID]
    await record(services.runtime, caller, verb, "Session", session.place.namespace, session.id, request=id)
