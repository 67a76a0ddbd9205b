"""A TaskSchedule as the scheduler reads it, and the command for one of its slots."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import Struct

from foliot.kernel.identity import Identity
from foliot.resources.durations import seconds
from foliot.resources.placeholders import fill
from foliot.resources.references import qualified
from foliot.store.base import DeclaredBy, Document, Key
from foliot.work.base import Command
from foliot.work.triggers.catch_up import CatchUp, first_after
from foliot.work.triggers.slots import Once, Timing, timing_of, zone_of

LABEL = "foliot.dev/task-schedule"
_NAME_LENGTH = 40
_LABEL_LENGTH = 63


class Order(Struct, frozen=True):
    """The order for a slot, kept with it so that anybody can finish it. `ref` names the template.

    `by_operator`: it acts for the operator, who declared the schedule.
    """

    ref: str
    command: Command
    replace: bool = False
    by_operator: bool = False


class Schedule(Struct, frozen=True):
    """What a TaskSchedule says, with every default filled in."""

    uid: str
    key: Key
    ref: str
    zone: str
    suspend: bool
    policy: Literal["allow", "forbid", "replace"]
    rule: CatchUp
    timing: Timing
    timing_text: str
    input: dict[str, str]
    keep_succeeded: int
    keep_failed: int
    created: float
    updated: float
    generation: int
    declarer: str = ""
    by_operator: bool = False
    # Why it makes no tasks though it is not suspended: whoever declared it may do nothing any more.
    stopped: str = ""

    @property
    def via(self) -> str:
        """The way in of its tasks."""
        return f"schedule:{self.key.name}"

    @property
    def spawner(self) -> str:
        """What its tasks are spawned by."""
        return f"schedule:{self.uid}"

    @property
    def first(self) -> float:
        """From where on its slots count when nobody has looked at it before."""
        if isinstance(self.timing, Once):
            return self.timing.at - 1
        return first_after(self.timing, created=self.created, deadline=self.rule.deadline)


def read_schedule(document: Document) -> Schedule:
    """Raises `KeyError`, `ValueError` for a document that no version of Foliot would have stored so."""
    metadata, spec = document["metadata"], document["spec"]
    key = Key(document["kind"], metadata["namespace"], metadata["name"])
    ref: str = spec["task_ref"]
    cron, at, zone = spec.get("schedule", ""), spec.get("at", ""), spec.get("time_zone", "UTC")
    suspend: bool = spec.get("suspend", False)
    created = datetime.fromisoformat(metadata["createdAt"]).timestamp()
    declarer = DeclaredBy.of(document)
    return Schedule(
        uid=metadata["uid"],
        key=key,
        ref=qualified(ref, key.namespace),
        zone=zone,
        suspend=suspend,
        policy=spec.get("concurrency_policy", "forbid"),
        rule=CatchUp(
            missed=spec.get("missed", "skip"),
            limit=spec.get("catch_up_limit", 10),
            deadline=float(spec.get("starting_deadline_seconds") or 300),
            jitter=seconds(spec.get("jitter", "0s")),
        ),
        timing=timing_of(cron, at, zone),
        timing_text="\n".join((cron, at, zone, "suspended" if suspend else "")),
        input=dict(spec.get("input") or {}),
        keep_succeeded=spec.get("successful_history_limit", 10),
        keep_failed=spec.get("failed_history_limit", 3),
        created=created,
        updated=datetime.fromisoformat(metadata.get("updatedAt") or metadata["createdAt"]).timestamp(),
        generation=metadata["generation"],
        declarer=declarer.user,
        by_operator=declarer.operator,
    )


def order_for(schedule: Schedule, slot: int) -> Order:
    """The order for a slot of the clock, `slot` in seconds."""
    stamp = datetime.fromtimestamp(slot, UTC)
    name = f"{_plain(schedule.key.name)}-{stamp:%Y%m%d-%H%M}"
    command = _command(schedule, float(slot), "clock", name, f"{schedule.spawner}:{slot}", schedule.input)
    return Order(schedule.ref, command, schedule.policy == "replace", schedule.by_operator)


def manual_order(schedule: Schedule, slot: int, *, by: str, given: Mapping[str, str]) -> Order:
    """The order for a task that a person asked for, `slot` in milliseconds. Nothing is replaced by it."""
    stamp = datetime.fromtimestamp(slot / 1000, UTC)
    name = f"{_plain(schedule.key.name)}-manual-{stamp:%Y%m%d-%H%M%S}-{slot % 1000:03}"
    key = f"{schedule.spawner}:manual:{slot}"
    command = _command(schedule, slot / 1000, "manual", name, key, {**schedule.input, **given})
    if by:  # who asks for it acts: the declarer has a say in what is done, and not for whom
        identity = Identity(by, via=schedule.via).also_ordered_by(schedule.declarer)
        command = msgspec.structs.replace(command, by=by, identity=identity)
    return Order(schedule.ref, command, by_operator=schedule.by_operator and not by)


def encode_order(order: Order) -> str:
    return msgspec.json.encode(order).decode()


def decode_order(text: str) -> Order:
    return _orders.decode(text)


_orders = msgspec.json.Decoder(Order)


def _command(schedule: Schedule, slot: float, trigger: str, name: str, key: str, input: Mapping[str, str]) -> Command:
    values = _slot_values(schedule, slot, trigger)
    stamp = datetime.fromtimestamp(slot, UTC)
    labels = {
        LABEL: _label(schedule.key.name),
        f"{LABEL}-namespace": _label(schedule.key.namespace),
        f"{LABEL}-uid": schedule.uid,
        f"{LABEL}-slot": f"{stamp:%Y%m%dT%H%M%S}{'' if trigger == 'clock' else f'.{stamp.microsecond // 1000:03}'}Z",
    }
    return Command(
        target_kind="agent",  # the template says which
        target="",
        namespace=schedule.key.namespace,
        name=name,
        input={name: fill(text, lambda hole: values.get(hole, hole)) for name, text in input.items()},
        idempotency_key=key,
        labels=labels,
        spawned_by=schedule.spawner,
        by=f"schedule:{schedule.key.namespace}/{schedule.key.name}",
        identity=Identity(schedule.declarer, via=schedule.via),
    )


def _slot_values(schedule: Schedule, slot: float, trigger: str) -> dict[str, str]:
    local = datetime.fromtimestamp(int(slot), zone_of(schedule.zone))
    return {
        "slot": stamp_of(slot),
        "slot_local": local.isoformat(),
        "slot_date": f"{local:%Y-%m-%d}",
        "slot_time": f"{local:%H:%M}",
        "slot_unix": str(int(slot)),
        "schedule": schedule.key.name,
        "namespace": schedule.key.namespace,
        "trigger": trigger,
    }


def stamp_of(moment: float) -> str:
    """RFC 3339 in UTC, to the second."""
    return f"{datetime.fromtimestamp(int(moment), UTC):%Y-%m-%dT%H:%M:%SZ}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:_NAME_LENGTH].strip("-") or "schedule"


def _label(text: str) -> str:
    return text[:_LABEL_LENGTH].rstrip("-_.")
