"""The stored state of schedules and webhooks, and their transactions.

Decisions about the slots of one schedule come one after another: each names the newest slot that it knows to be
decided, and is refused when that is no longer so. An event of a webhook is taken by whoever stores it first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from foliot.errors import NotFound
from foliot.store.base import Database
from foliot.store.transaction import Row, Tx, many, one, run, value

SlotState: TypeAlias = Literal["due", "fired", "skipped"]
SlotKind: TypeAlias = Literal["clock", "manual"]
Outcome: TypeAlias = Literal["accepted", "duplicate", "rejected", "filtered"]
_END = 2**62


class NewSlot(Struct, frozen=True):
    """A decision about one slot: `due` with the command of the task to be made, or `skipped` with the reason."""

    slot: int
    state: Literal["due", "skipped"]
    reason: str = ""
    command: str = ""
    kind: SlotKind = "clock"


class Slot(Struct, frozen=True):
    """A slot as stored. `slot` is in milliseconds since 1970, the other times in seconds."""

    slot: int
    kind: SlotKind
    state: SlotState
    reason: str
    task: str
    claimed_at: float
    decided_at: float | None


class Known(Struct, frozen=True):
    """The stored state of a schedule: since when its slots count, the newest decided one, and the unfinished ones."""

    timing: str
    since: float
    last: int | None
    due: list[Row]

    @property
    def after(self) -> float:
        """Slots behind this time, in seconds, are undecided."""
        return self.since if self.last is None else max(self.since, self.last / 1000)


async def known_of(database: Database, schedule: str, *, upto: float) -> Known | None:
    """Reads the state of a schedule; None when nobody has looked at it yet."""
    state = await database.read("schedule_state_get", schedule=schedule)
    if not state:
        return None
    last = await database.read("slot_last", schedule=schedule, upto=int(upto * 1000))
    due = await database.read("slot_claimed", schedule=schedule)
    return Known(state[0]["timing"], state[0]["since"], last[0]["slot"], due)


async def schedules_with_due_slots(database: Database) -> list[str]:
    """Returns the schedules of which a slot was decided, and is not settled."""
    return [row["schedule"] for row in await database.read("slot_schedules")]


def begin(schedule: str, timing: str, first: float, since: float) -> Tx[None]:
    """Slots count from `first` on for a schedule that is new, and from `since` on when its timing is another one."""
    state: Row | None = None
    while state is None:  # it is made here, or was there; and may be forgotten by another before it is locked
        yield from run("schedule_state_add", schedule=schedule, timing=timing, since=first)
        state = yield from one("schedule_state_lock", schedule=schedule)
    if state["timing"] != timing:
        yield from run("schedule_state_set", schedule=schedule, timing=timing, since=max(since, state["since"]))


def decide(schedule: str, last: int | None, slots: Sequence[NewSlot], now: float) -> Tx[bool]:
    """Store decisions about slots behind `last`. False, and nothing stored, when somebody decided meanwhile."""
    if (yield from one("schedule_state_lock", schedule=schedule)) is None:
        return False  # the schedule was forgotten: it is deleted
    newest = yield from value("slot_last", schedule=schedule, upto=int(now * 1000))
    if newest != last:
        return False
    yield from many("slot_add", [_row(schedule, each, now) for each in slots])
    return True


def decide_manual(schedule: str, slot: NewSlot, now: float) -> Tx[bool]:
    """A slot that a person asked for. False when there is one at this very millisecond.

    Raises `NotFound` for a schedule that is forgotten.
    """
    if (yield from one("schedule_state_lock", schedule=schedule)) is None:
        raise NotFound("the schedule has been deleted")
    return bool((yield from run("slot_add", **_row(schedule, slot, now))))


def _row(schedule: str, each: NewSlot, now: float) -> dict[str, Any]:
    return {
        "schedule": schedule,
        "slot": each.slot,
        "kind": each.kind,
        "state": each.state,
        "reason": each.reason,
        "command": each.command,
        "claimed_at": now,
        "decided_at": now if each.state == "skipped" else None,
    }


def settle(schedule: str, slot: int, state: SlotState, reason: str, task: str, now: float) -> Tx[bool]:
    """The end of a slot. False when it had ended already."""
    changed = yield from run(
        "slot_settle", schedule=schedule, slot=slot, state=state, reason=reason, task=task, decided_at=now
    )
    return bool(changed)


def forget_slots(schedule: str, keep: int) -> Tx[int]:
    """Forget all but the newest `keep` slots; those before no longer count, whatever the clock says later."""
    state = yield from one("schedule_state_lock", schedule=schedule)
    surplus = yield from value("slot_surplus", schedule=schedule, keep=keep)
    if state is None or surplus is None:
        return 0
    since = max(state["since"], surplus / 1000)
    yield from run("schedule_state_set", schedule=schedule, timing=state["timing"], since=since)
    return (yield from run("slot_forget", schedule=schedule, upto=surplus))


def forget_schedule(schedule: str) -> Tx[None]:
    """The schedule was deleted."""
    yield from one("schedule_state_lock", schedule=schedule)
    yield from run("schedule_forget_slots", schedule=schedule)
    yield from run("schedule_forget", schedule=schedule)


async def slots_of(database: Database, schedule: str, *, before: int | None = None, limit: int = 50) -> list[Slot]:
    """Newest first."""
    found = await database.read("slot_list", schedule=schedule, before=_END if before is None else before, count=limit)
    return [Slot(**row) for row in found]


# --- webhooks ----------------------------------------------------------------------------------------------------


class WebhookDelivery(Struct, frozen=True):
    """A delivery as remembered. `body` is kept only of those that were signed."""

    id: str
    at: float
    outcome: Outcome
    reason: str
    detail: str
    status: int
    event: str
    task: str
    size: int
    digest: str
    headers: str
    body: bytes | None = None
    key: int = 0


class Counts(Struct, frozen=True):
    """The counters of a webhook, and its latest event."""

    accepted: int = 0
    duplicate: int = 0
    rejected: int = 0
    filtered: int = 0
    last_at: float = 0.0
    last_event: str = ""
    last_task: str = ""
    last_error: str = ""


class TakenEvent(Struct, frozen=True):
    """An event that was taken. `new`: by this call. `task` is blank as long as its task is being made."""

    taken_at: int
    task: str
    new: bool


def _turn(webhook: str) -> Tx[None]:
    """One at a time: the row of this webhook, made when it is new, and nobody else's until the transaction ends."""
    held: Row | None = None
    while held is None:  # another may forget it before it is locked
        yield from run("webhook_state_add", webhook=webhook)
        held = yield from one("webhook_state_lock", webhook=webhook)


def ensure_endpoint(webhook: str, namespace: str, name: str, fresh: str, now: float) -> Tx[str]:
    """The address of a webhook; `fresh` becomes it when it has none."""
    yield from _turn(webhook)
    found = yield from value("endpoint_of", webhook=webhook)
    if found is not None:
        return found
    yield from _add_endpoint(webhook, namespace, name, fresh, now)
    return fresh


def rotate_endpoint(webhook: str, namespace: str, name: str, fresh: str, now: float, grace: float) -> Tx[None]:
    """`fresh` becomes the address; the old one goes on for `grace` seconds."""
    yield from _turn(webhook)
    yield from run("endpoint_retire", webhook=webhook, expires_at=now + grace)
    yield from run("endpoint_forget_old", now=now)
    yield from _add_endpoint(webhook, namespace, name, fresh, now)


def _add_endpoint(webhook: str, namespace: str, name: str, fresh: str, now: float) -> Tx[None]:
    yield from run("endpoint_add", endpoint=fresh, webhook=webhook, namespace=namespace, name=name, created_at=now)


def take_event(webhook: str, events: Mapping[str, float], now: float) -> Tx[TakenEvent]:
    """Take the event that goes by these names, the first of them its own, each for so many seconds. It is known if one
    of them is.

    A name whose time is over is taken anew, with a `taken_at` of its own.
    """
    yield from _turn(webhook)
    for event in events:
        found = yield from one("event_get", webhook=webhook, event=event)
        if found is not None and found["expires_at"] > now:
            return TakenEvent(found["taken_at"], found["task"], new=False)
    taken_at = int(now * 1000)
    for event, window in events.items():
        yield from run("event_put", webhook=webhook, event=event, taken_at=taken_at, expires_at=now + window)
    return TakenEvent(taken_at, "", new=True)


def settle_event(webhook: str, events: Sequence[str], taken_at: int, task: str) -> Tx[None]:
    """The task of an event is there; blank: there is none, and the event can be sent again."""
    query = "event_settle" if task else "event_drop"
    for event in events:
        extra = {"task": task} if task else {}
        yield from run(query, webhook=webhook, event=event, taken_at=taken_at, **extra)


def log_delivery(webhook: str, delivery: WebhookDelivery, *, keep: int, more_rejected: int = 0) -> Tx[None]:
    """Remember a delivery, count it with those that were not worth a row, and forget the oldest beyond `keep`."""
    yield from _turn(webhook)
    counted = {name: int(delivery.outcome == name) for name in ("accepted", "duplicate", "rejected", "filtered")}
    counted["rejected"] += more_rejected
    yield from run(
        "webhook_count",
        webhook=webhook,
        at=delivery.at,
        event=delivery.event,
        task=delivery.task,
        error=delivery.detail if delivery.outcome == "rejected" else "",
        **counted,
    )
    if keep:
        yield from run(
            "delivery_add",
            webhook=webhook,
            id=delivery.id,
            at=delivery.at,
            outcome=delivery.outcome,
            reason=delivery.reason,
            detail=delivery.detail,
            status=delivery.status,
            event=delivery.event,
            task=delivery.task,
            size=delivery.size,
            digest=delivery.digest,
            headers=delivery.headers,
            body=delivery.body,
        )
    surplus = yield from value("delivery_surplus", webhook=webhook, keep=keep)
    if surplus is not None:
        yield from run("delivery_forget", webhook=webhook, upto=surplus)


def forget_webhook(webhook: str) -> Tx[None]:
    """The webhook was deleted."""
    yield from one("webhook_state_lock", webhook=webhook)
    for what in ("endpoints", "events", "deliveries", "state"):
        yield from run(f"webhook_forget_{what}", webhook=webhook)


async def deliveries_of(
    database: Database, webhook: str, *, before: int | None = None, limit: int = 50
) -> list[WebhookDelivery]:
    """Newest first, without their bodies."""
    found = await database.read(
        "delivery_list", webhook=webhook, before=_END if before is None else before, count=limit
    )
    return [WebhookDelivery(**row) for row in found]


async def delivery_of(database: Database, webhook: str, id: str) -> WebhookDelivery | None:
    found = await database.read("delivery_get", webhook=webhook, id=id)
    return WebhookDelivery(**found[0]) if found else None


async def counts_of(database: Database, webhook: str) -> Counts:
    found = await database.read("webhook_state_get", webhook=webhook)
    return Counts(**found[0]) if found else Counts()
