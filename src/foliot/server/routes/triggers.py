"""Schedules, webhooks and hooks: what became of each time and each delivery, and tasks of them right now."""

from __future__ import annotations

from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foliot.engine.audit.words import Act
from foliot.errors import Conflict, InvalidInput
from foliot.resources.powers import KIND_POWERS
from foliot.runtime.session_posts import RuntimePosts
from foliot.server.audit import ActRecord, record
from foliot.server.auth.guard import new_router
from foliot.server.auth.identity import HIDDEN, Caller, role_named
from foliot.server.context import Services
from foliot.server.http.bodies import form
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.names import MOST, Limit, Name, Namespace, space
from foliot.server.http.parameters import Path, Query
from foliot.server.http.responses import Json
from foliot.store.base import Key
from foliot.store.channel_links import ChannelLinks, make_link_id, no_link

router = new_router("triggers")

LONGEST_GRACE = 30 * 86400.0
MOST_SLOTS = 500
State = Annotated[str, Query(max_length=16, description="Only those that stand so: pending, sent or failed.")]
DeliveryKey = Annotated[int, Path(ge=1, description="The number of the delivery.")]
LinkId = Annotated[str, Path(max_length=128, description="The id of the link.")]
Id = Annotated[str, Path(max_length=128, description="The id of the delivery.")]


class Now(msgspec.Struct, frozen=True):
    """A task of a schedule right now. `given` is input besides what the schedule gives."""

    given: dict[str, str] = {}
    by: str = ""


class Rotation(msgspec.Struct, frozen=True):
    """How long the old address goes on, in seconds."""

    grace: float = 0.0


class Again(msgspec.Struct, frozen=True):
    by: str = ""


class LinkCode(msgspec.Struct, frozen=True):
    """A code that a channel showed."""

    code: str


class Trial(msgspec.Struct, frozen=True):
    """A delivery that the server signs itself. `body` is in base64."""

    body: bytes
    event_id: str
    headers: dict[str, str] = {}


class SourceChange(msgspec.Struct, frozen=True):
    """Changed items of a source. The same items again are the same event; `new_items_hash` may stand for them."""

    path: str
    integration: str = ""
    items: list[str] = []
    new_items_hash: str = ""


# --- schedules -----------------------------------------------------------------------------------------------------


@router.get("/v1/task-schedules/{name}/slots")
async def slots(name: Name, services: Services, namespace: Namespace = None, limit: Limit = 20) -> Response:
    """Every time it was due, newest first, and what became of it."""
    return Json(
        {
            "slots": await services.runtime.schedules.slots(
                name, namespace=space(namespace), limit=min(limit, MOST_SLOTS)
            )
        }
    )


@router.post("/v1/task-schedules/{name}/run")
async def run_now(
    name: Name, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """Make a task of the schedule right now."""
    now, where = await form(request, Now), space(namespace)
    fired = await services.runtime.schedules.run(name, namespace=where, given=now.given, by=caller.name)
    await _record(services, caller, request, "fired", "TaskSchedule", where, name)
    return Json(fired)


# --- webhooks ------------------------------------------------------------------------------------------------------


@router.post("/v1/task-webhooks/{name}/rotate")
async def rotate(
    name: Name, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """Give a webhook another address."""
    asked, where = await form(request, Rotation), space(namespace)
    if not 0 <= asked.grace <= LONGEST_GRACE:
        raise InvalidInput(f"a grace of {asked.grace} seconds cannot be", hint="from 0 to 30 days")
    for role in KIND_POWERS["TaskWebhook"].roles:
        caller.require(role_named(role), where, missing=HIDDEN)
    document = await services.runtime.webhooks.rotate(name, namespace=where, grace=asked.grace)
    await _record(services, caller, request, "rotated", "TaskWebhook", where, name)
    return Json(document)


@router.get("/v1/task-webhooks/{name}/deliveries")
async def deliveries(name: Name, services: Services, namespace: Namespace = None, limit: Limit = 20) -> Response:
    """Lists deliveries, newest first, without bodies."""
    found = await services.runtime.webhooks.deliveries(name, namespace=space(namespace), limit=min(limit, MOST))
    return Json({"deliveries": found})


@router.get("/v1/task-webhooks/{name}/deliveries/{id}")
async def delivery(name: Name, id: Id, services: Services, namespace: Namespace = None) -> Response:
    """One delivery with its body, if that was kept."""
    return Json(await services.runtime.webhooks.delivery(name, id, namespace=space(namespace)))


@router.post("/v1/task-webhooks/{name}/deliveries/{id}/replay")
async def replay(
    name: Name, id: Id, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """Make a new task of a delivery that was signed and is still remembered."""
    await form(request, Again)
    where = space(namespace)
    task = await services.runtime.webhooks.replay(name, id, namespace=where, by=caller.name)
    await _record(services, caller, request, "replayed", "TaskWebhook", where, name)
    return Json({"task": task})


@router.post("/v1/task-webhooks/{name}/send-test")
async def send_test(
    name: Name, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """Deliver a body, signed as the sender would. The secret does not leave the server; the caller acts."""
    trial, where = await form(request, Trial), space(namespace)
    sent = await services.runtime.webhooks.send_test(
        name, trial.body, namespace=where, event_id=trial.event_id, headers=trial.headers, by=caller.name
    )
    await _record(services, caller, request, "tried", "TaskWebhook", where, name)
    return Json(sent)


# --- channels ------------------------------------------------------------------------------------------------------


@router.get("/v1/channels/{name}/deliveries")
async def channel_deliveries(
    name: Name, services: Services, namespace: Namespace = None, state: State = "", limit: Limit = 20
) -> Response:
    """Lists answers to be delivered and delivered, newest first, without their texts."""
    found = await services.runtime.channels.deliveries(
        name, namespace=space(namespace), state=state, limit=min(limit, MOST)
    )
    return Json({"deliveries": found})


@router.post("/v1/channels/{name}/deliveries/{key}/retry")
async def retry_delivery(
    name: Name, key: DeliveryKey, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """Deliver what was given up once more."""
    where = space(namespace)
    await services.runtime.channels.retry(name, key, namespace=where)
    await _record(services, caller, request, "retried", "Channel", where, name)
    return Json({"key": key})


@router.get("/v1/channel-links")
async def channel_links(services: Services, caller: Caller, namespace: Namespace = None) -> Response:
    """Lists who has linked what they are called on channels: the caller's own links, for an admin all of them."""
    where = space(namespace)
    user = "" if caller.may("admin", where) else caller.name
    return Json({"links": await ChannelLinks(services.database).list(where, user=user)})


@router.post("/v1/channel-links")
async def link_channel(request: Request, services: Services, caller: Caller, namespace: Namespace = None) -> Response:
    """Link whom a channel showed a code with the caller, who speaks there as themselves from then on."""
    entry, where, id = await form(request, LinkCode), space(namespace), make_link_id()
    act = _link_act(services, caller, request, "channel_linked", where, id)
    link = await ChannelLinks(services.database).enter(
        entry.code,
        id=id,
        namespace=where,
        user=caller.name,
        owner=caller.known_by == "local",
        now=services.runtime.inside.clock(),
        in_transaction=act.record,
    )
    act.tell()
    return Json(link)


@router.post("/v1/channel-links/{id}/delete")
async def unlink_channel(
    id: LinkId, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """End a link: the caller's own, or as an admin any. What its sender writes reaches no agent from then on."""
    links, where = ChannelLinks(services.database), space(namespace)
    link = await links.get(id, namespace=where)
    if link.user != caller.name and not caller.may("admin", where):
        raise no_link(id)
    act = _link_act(services, caller, request, "channel_unlinked", where, id)
    await links.delete(id, namespace=where, in_transaction=act.record)
    act.tell()
    return Response(status_code=204)


def _link_act(services: Services, caller: Caller, request: Request, verb: Act, namespace: str, name: str) -> ActRecord:
    id: str = request.scope[REQUEST_ID]
    return ActRecord(services.runtime, caller, verb, "ChannelLink", namespace, name, request=id)


# --- hooks ---------------------------------------------------------------------------------------------------------


@router.post("/v1/task-hooks/{name}/events")
async def source_changed(
    name: Name, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """Report changed items of the source that a hook names: its work is done once for the same items."""
    from foliot.work.triggers.hooks import KIND, HookFiring, read_hook, source_event

    change, where = await form(request, SourceChange), space(namespace)
    hook = read_hook(await services.resources.get(Key(KIND, where, name)))
    if not hook.source:
        raise InvalidInput(f"the hook {name!r} watches a folder", hint="a source is named by spec.source")
    if hook.suspend:
        raise Conflict(f"the hook {name!r} is suspended")
    event = source_event(hook, change.path, change.integration, change.items, change.new_items_hash)
    inside = services.runtime.inside
    posts = RuntimePosts(inside.sessions, inside.database, clock=inside.clock)
    firing = HookFiring(services.database, inside.tasking.tasks, posts)
    made = await firing.fire(hook, event)
    await _record(services, caller, request, "fired", KIND, where, name)
    return Json({"event": event.id, "made": made})


async def _record(
    services: Services, caller: Caller, request: Request, verb: Act, kind: str, namespace: str, name: str
) -> None:
    await record(services.runtime, caller, verb, kind, namespace, name, request=request.scope[REQUEST_ID])
