"""`/v1/models`, `/v1/chat/completions` and `/v1/responses`, as clients of OpenAI call them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from foliot.common.threads import unhurried
from foliot.errors import NotFound
from foliot.server.auth.guard import namespace_of, new_router
from foliot.server.auth.identity import Caller
from foliot.server.context import Services
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.parameters import Query
from foliot.server.http.responses import Json
from foliot.server.openai.answers import (
    DONE,
    AnswerStream,
    OnHangUp,
    collect,
    data_frame,
    error_event,
    error_frame,
    event_frame,
    on_hang_up,
)
from foliot.server.openai.chat import Chat
from foliot.server.openai.errors import BadRequest, RunFailed, no_such_model
from foliot.server.openai.requests import OpenAIRequest, read_chat, read_response
from foliot.server.openai.responses import ResponseAnswer
from foliot.server.openai.stored import Order as ItemOrder
from foliot.server.openai.stored import (
    cancel_response,
    conversation_of,
    delete_response,
    find_response,
    follow_response,
    list_input,
    page_of,
)
from foliot.server.openai.work import RequestCaller, StartedWork, begin, count_input
from foliot.server.runs.targets import WorkTarget, find_target, list_targets
from foliot.server.streams.pieces import Ended, Piece

router = new_router("openai")

RUN_HEADER: Final = "X-Foliot-Run"
SESSION_HEADER: Final = "x-foliot-session"
KEY_HEADER: Final = "idempotency-key"
LONGEST_NAME: Final = 255
MOST_NUMBER: Final = 2**53


def _told(place: str, name: str, text: str, **schema: Any) -> dict[str, Any]:
    return {"in": place, "name": name, "required": False, "description": text, "schema": {"type": "string", **schema}}


# What the routes look at besides paths and bodies, for the description of the API.
_NAMESPACE: Final = _told("query", "namespace", "Where a model without a namespace is looked for; `default` if none.")
_LOOKS: Final = (_NAMESPACE,)
_ASKS: Final = (
    _NAMESPACE,
    _told("header", "X-Foliot-Session", "A conversation that goes on.", maxLength=LONGEST_NAME),
    _told("header", "Idempotency-Key", "The same request again begins nothing new.", maxLength=LONGEST_NAME),
    _told("header", "X-Foliot-On-Disconnect", "What a hang-up does.", enum=["cancel", "continue"]),
)


# --- models ------------------------------------------------------------------------------------------------------


@router.get("/v1/models", reads=_LOOKS)
async def list_models(request: Request, services: Services, caller: Caller) -> Response:
    """The agents and systems that the caller can use, as models: an agent that is not active takes no work."""
    namespace = namespace_of(request.scope) if "namespace" in request.query_params else None
    found: dict[str, dict[str, Any]] = {}
    async for target in list_targets(services.resources, caller, namespace):
        if target.document["spec"].get("active") is False:
            continue
        id = _model_id(target)
        if id in found:  # a system that is called as an agent is
            space, _, name = id.rpartition("/")
            id = f"{space}/system:{name}" if space else f"system:{name}"
        found[id] = _model(target, id)
    return Json({"object": "list", "data": list(found.values())})


@router.get("/v1/models/{model:path}", reads=_LOOKS)
async def read_model(model: str, request: Request, services: Services, caller: Caller) -> Response:
    """One agent or system."""
    try:
        target = await find_target(services.resources, caller, model, namespace_of(request.scope))
    except NotFound:
        raise no_such_model(model) from None
    return Json(_model(target, model))


def _model_id(target: WorkTarget) -> str:
    return target.name if target.namespace == "default" else f"{target.namespace}/{target.name}"


def _model(target: WorkTarget, id: str) -> dict[str, Any]:
    made = str(target.document["metadata"].get("createdAt") or "1970-01-01T00:00:00Z")
    return {
        "id": id,
        "object": "model",
        "created": int(datetime.fromisoformat(made).timestamp()),
        "owned_by": target.namespace,
        "foliot": {"kind": target.kind, "namespace": target.namespace, "description": target.description},
    }


# --- chat --------------------------------------------------------------------------------------------------------


@router.post("/v1/chat/completions", reads=_ASKS)
async def chat(request: Request, services: Services, caller: Caller) -> Response:
    """Say something to an agent or a system, and hear its answer, whole or in pieces."""
    body = await request.body()
    order, digest = await unhurried(len(body), _read, read_chat, body)
    asker = _asker(request, caller, digest)
    hang_up = on_hang_up(request, otherwise=_otherwise(asker, order))
    with ExitStack() as place:
        if order.stream:  # held before anything is begun
            place.enter_context(services.streams.hold(caller))
        begun = await begin(services.runtime, services.drives, order, asker, param="messages")
        answer = Chat(begun.where, order.model, begun.created, include_usage=order.include_usage, after=begun.after)
        if order.stream:
            stream = _stream_chat(services, begun, answer, hang_up)
            return stream.response(caller, place.pop_all(), {RUN_HEADER: begun.where})
    end: list[Ended] = []

    def take(piece: Piece) -> None:
        answer.take(piece)
        if isinstance(piece, Ended):
            end.append(piece)

    await collect(request, begun.engagement, take, hang_up=hang_up, closing=services.closing)
    if end and end[0].phase != "succeeded":
        raise RunFailed(end[0], begun.where)
    return Json(answer.document(), headers={RUN_HEADER: begun.where})


def _stream_chat(services: Services, begun: StartedWork, answer: Chat, hang_up: OnHangUp) -> AnswerStream:
    def told(piece: Piece) -> Iterable[bytes]:
        if isinstance(piece, Ended) and piece.phase != "succeeded":
            raise RunFailed(piece, begun.where)
        return map(data_frame, answer.chunks(piece))

    return AnswerStream(
        begun.engagement,
        told,
        end=DONE,
        failed=error_frame,
        hang_up=hang_up,
        streams=services.streams,
        closing=services.closing,
    )


# --- responses ---------------------------------------------------------------------------------------------------


@router.post("/v1/responses", reads=_ASKS)
async def respond(request: Request, services: Services, caller: Caller) -> Response:
    """Answers like a chat, in the newer form: it can continue an earlier answer, and run without a listener."""
    body = await request.body()
    order, digest = await unhurried(len(body), _read, read_response, body)
    asker = _asker(request, caller, digest)
    hang_up = on_hang_up(request, otherwise=_otherwise(asker, order))
    with ExitStack() as place:
        if order.stream:
            place.enter_context(services.streams.hold(caller))
        begun = await begin(services.runtime, services.drives, order, asker, param="input")
        answer = ResponseAnswer(begun.response, order.model, begun.created, _echo(order, asker), begun.where)
        headers = {RUN_HEADER: begun.where}
        if order.stream:
            return _stream_response(services, begun, answer, hang_up).response(caller, place.pop_all(), headers)
    if not order.background:
        await collect(request, begun.engagement, answer.take, hang_up=hang_up, closing=services.closing)
    return Json(answer.document(), headers=headers)


def _stream_response(services: Services, begun: StartedWork, answer: ResponseAnswer, hang_up: OnHangUp) -> AnswerStream:
    def told(piece: Piece) -> Iterable[bytes]:
        return map(event_frame, answer.take(piece))

    first = list(map(event_frame, answer.begin()))
    return AnswerStream(
        begun.engagement,
        told,
        begin=first,
        failed=error_event,
        hang_up=hang_up,
        streams=services.streams,
        closing=services.closing,
    )


@router.post("/v1/responses/input_tokens", reads=_LOOKS)
async def count_tokens(request: Request, services: Services, caller: Caller) -> Response:
    """About how many tokens a response would read: the agent's prompt and tools, what was said before, the input."""
    body = await request.body()
    order, digest = await unhurried(len(body), _read, read_response, body)
    counted = await count_input(services.runtime, order, _asker(request, caller, digest), param="input")
    return Json({"object": "response.input_tokens", "input_tokens": counted})


@router.get("/v1/responses/{response_id}")
async def read_one(
    response_id: str,
    services: Services,
    caller: Caller,
    stream: Annotated[bool, Query(description="Its events instead, until it is over.")] = False,
    starting_after: Annotated[
        int | None, Query(ge=0, le=MOST_NUMBER, description="With `stream`: only what comes behind this event.")
    ] = None,
) -> Response:
    """A response as it stands now. It is told from the journal of its run, so it outlives the server."""
    if stream:
        frames = await follow_response(services, caller, response_id, starting_after)
        return services.streams.respond(caller, frames, told=error_event)
    return Json(await find_response(services.runtime, caller, response_id))


@router.get("/v1/responses/{response_id}/input_items")
async def read_input(
    response_id: str,
    services: Services,
    caller: Caller,
    order: Annotated[ItemOrder, Query(description="The newest first, or the oldest.")] = "desc",
    limit: Annotated[int, Query(ge=1, le=100, description="Items of a page.")] = 20,
    after: Annotated[str | None, Query(max_length=512, description="The id of the last item before the page.")] = None,
) -> Response:
    """Lists the input of a response: the conversation before it, and the request."""
    items = await list_input(services.runtime, caller, response_id)
    return Json(page_of(items, order=order, limit=limit, after=after))


@router.delete("/v1/responses/{response_id}")
async def delete(response_id: str, request: Request, services: Services, caller: Caller) -> Response:
    """Forget a response that is over, with its run and all that was said. Turns of a session are not forgotten."""
    await delete_response(services.runtime, caller, response_id, request=str(request.scope.get(REQUEST_ID, "")))
    return Json({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
async def cancel(response_id: str, request: Request, services: Services, caller: Caller) -> Response:
    """Ask the work behind a response to end."""
    await cancel_response(services.runtime, caller, response_id, request=str(request.scope.get(REQUEST_ID, "")))
    return Json(await find_response(services.runtime, caller, response_id))


def _echo(order: OpenAIRequest, asker: RequestCaller) -> dict[str, Any]:
    settings = order.settings
    return {
        "background": order.background,
        "instructions": order.instructions or None,
        "max_output_tokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "previous_response_id": order.previous or None,
        "metadata": dict(order.metadata),
        "conversation": conversation_of(order.session or asker.session),
    }


# --- both --------------------------------------------------------------------------------------------------------


def _read(read: Callable[[bytes], OpenAIRequest], body: bytes) -> tuple[OpenAIRequest, str]:
    return read(body), sha256(body).hexdigest()


def _asker(request: Request, caller: Caller, digest: str) -> RequestCaller:
    key, session = request.headers.get(KEY_HEADER, ""), request.headers.get(SESSION_HEADER, "")
    for name, value in ((KEY_HEADER, key), (SESSION_HEADER, session)):
        if len(value) > LONGEST_NAME:
            raise BadRequest(f"at most {LONGEST_NAME} characters", param=name)
    return RequestCaller(
        caller,
        namespace_of(request.scope),
        key=key,
        session=session,
        digest=digest,
        request=str(request.scope.get(REQUEST_ID, "")),
    )


def _otherwise(asker: RequestCaller, order: OpenAIRequest) -> OnHangUp:
    """Returns what a disconnect means: cancel, unless the request itself speaks of coming back."""
    return "continue" if asker.key or order.background else "cancel"
