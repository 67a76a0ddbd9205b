"""A TaskSchedule as the scheduler reads it, and the command for one of its slots."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError
from msgspec import Struct

from foliot.common.durations import seconds
from foliot.common.times import iso_seconds
from foliot.kernel.identity import Identity
from foliot.kernel.routing import Provenance
from foliot.resources import cron
from foliot.resources.paths import fill
from foliot.resources.references import qualified
from foliot.store.base import DeclaredBy, Document, Key
from foliot.work.tasks.base import Command
from foliot.work.triggers.session_orders import SessionOrder, session_order

# --- slots -----------------------------------------------------------------------------------------------------------

# When a schedule is due: its slots, as seconds since 1970. Pure: no clock, no store.
#
# A slot is a time that the schedule names. Local times are those of its time zone, and where clocks are changed they
# are treated as Debian's cron does it:
#
#     minute and hour are fixed (`30 2 * * *`)   a time that is skipped comes at the first minute that exists again; one
#                                                that comes twice counts once, the first time
#     minute or hour begin with * (`*/15 * * *`) real time goes on: what is skipped never comes, what is repeated does
#
# If both day fields are restricted, a day that either of them names will do; a field that covers its whole range (`*`,
# `1-31`) restricts nothing.

_MACROS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_HOUR: Final = 3600.0
_MINUTE: Final = timedelta(minutes=1)
_CHANGE: Final = timedelta(hours=3)  # no clock is set back by more


class FoundSlots(NamedTuple):
    """Slots, oldest first. `more`: there are older ones that were not asked for."""

    slots: list[int]
    more: bool


class Timing(Protocol):
    def after(self, moment: float) -> int | None:
        """The first slot behind `moment`; None when there will be none."""
        ...

    def newest(self, after: float, upto: float, count: int) -> FoundSlots:
        """The newest `count` slots behind `after`, not behind `upto`."""
        ...


@dataclass(frozen=True, slots=True)
class Once:
    """One slot in all."""

    at: int

    def after(self, moment: float) -> int | None:
        return self.at if self.at > moment else None

    def newest(self, after: float, upto: float, count: int) -> FoundSlots:
        return FoundSlots([self.at] if after < self.at <= upto and count else [], False)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone."""

    expression: str
    zone: str = "UTC"

    def after(self, moment: float) -> int | None:
        return next(self._from(moment), None)

    def newest(self, after: float, upto: float, count: int) -> FoundSlots:
        """Looks forward from a point that moves back until enough is found, so that a year without anybody looking
        costs no more than a day, whatever the expression."""
        window = _HOUR
        while True:
            start = max(after, upto - window)
            found: list[int] = []
            for slot in self._from(start):
                if slot > upto:
                    break
                found.append(slot)
            if start == after or len(found) > count:
                return FoundSlots(found[-count:] if count else [], len(found) > count)
            window *= 2

    def _from(self, moment: float) -> Iterator[int]:
        """The slots behind `moment`, in order, each once."""
        if (words := _words(self.expression)) is None:
            return
        zone = zone_of(self.zone)
        passing = self._goes_with_real_time()
        try:
            start = datetime.fromtimestamp(int(moment // 1), zone)
            wall = start.replace(tzinfo=None, fold=0)
            if (
                passing
                and (start - _CHANGE).utcoffset() != (start.astimezone(UTC) + _CHANGE).astimezone(zone).utcoffset()
            ):
                wall -= _CHANGE  # what was passed once may come again
            last = moment
            for slot in _passing(CronSim(words, wall), zone) if passing else _fixed(CronSim(words, wall), zone):
                if slot > last:
                    last = slot
                    yield slot
        except (OverflowError, ValueError, OSError):
            return  # beyond the year 9999

    def _goes_with_real_time(self) -> bool:
        minute, hour = (_words(self.expression) or "").split()[:2]
        return minute.startswith("*") or hour.startswith("*")


def _fixed(walls: Iterable[datetime], zone: tzinfo) -> Iterator[int]:
    """Times on the wall as slots: one that is skipped comes at the first minute there is, one that is repeated once."""
    for wall in walls:
        while not _exists(wall, zone):
            wall += _MINUTE
        yield int(wall.replace(tzinfo=zone).timestamp())


def _passing(walls: Iterable[datetime], zone: tzinfo) -> Iterator[int]:
    """Times on the wall as slots: one that is skipped never comes, one that is repeated comes twice."""
    again: list[int] = []
    for wall in walls:
        if not _exists(wall, zone):
            continue
        slot = int(wall.replace(tzinfo=zone).timestamp())
        if again and slot >= again[0]:  # the repetition begins when the first pass is over
            yield from again
            again = []
        yield slot
        if (second := int(wall.replace(tzinfo=zone, fold=1).timestamp())) != slot:
            again.append(second)
    yield from again


def _exists(wall: datetime, zone: tzinfo) -> bool:
    return wall.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None, fold=0) == wall


def timing_of(schedule: str, at: str, zone: str) -> Timing:
    """The timing of a TaskSchedule, from its normalised fields."""
    if not at:
        return Cron(schedule, zone)
    moment = datetime.fromisoformat(at)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone_of(zone))
    return Once(int(moment.timestamp()))


def delay_of(uid: str, slot: int, jitter: float, following: int | None) -> float:
    """How much later than `slot` it begins: below `jitter`, and before the next slot, so that their order holds.

    It follows from the schedule and the slot alone: every process, at any time, arrives at the same one.
    """
    if jitter <= 0:
        return 0.0
    room = jitter if following is None else min(jitter, following - slot)
    chance = int.from_bytes(hashlib.sha256(f"{uid}/{slot}".encode()).digest()[:8], "big") / 2**64
    return room * chance


@lru_cache(maxsize=1024)
def _words(expression: str) -> str | None:
    """The expression as the library reads it; None when it can never come true."""
    words = _MACROS.get(expression, expression).split()
    values = cron.field_values(" ".join(words))
    whole = [60, 24, 31, 12, 7]
    for place, found in enumerate(values):
        if len({0 if place == 4 and value == 7 else value for value in found}) == whole[place]:
            words[place] = "*"
        elif place > 1 or not words[place].startswith("*"):
            # Spelled out: for the library `*/2` restricts no day, and `3-3/2` does not end at 3.
            words[place] = ",".join(map(str, sorted(found)))
    text = " ".join(words)
    try:
        next(CronSim(text, datetime(2000, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration):
        return None
    return text


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo:
    """The time zone of this name. UTC is known also where a machine has no data about the others."""
    return UTC if name == "UTC" else ZoneInfo(name)


# --- catch up --------------------------------------------------------------------------------------------------------

# Which slots of a schedule make a task now, and which never will. Pure: all that it looks at is given.
#
# missed: skip the newest slot, if it is not later than the deadline; the others are left out missed: last the newest
# slot, however late; the others are left out missed: all the newest `limit` slots, however late, oldest first; those
# before them are left out

Missed: TypeAlias = Literal["skip", "last", "all"]

# A slot that is left out gets a row that says so. After a long silence there may be millions: the newest get one each.
LEFT_OUT_ROWS: Final = 20


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The rule of a schedule for late slots. Times in seconds."""

    missed: Missed = "skip"
    limit: int = 10
    deadline: float = 300.0
    jitter: float = 0.0


class SlotVerdict(NamedTuple):
    """`reason` is blank for a slot that makes a task."""

    slot: int
    reason: str = ""

    @property
    def fires(self) -> bool:
        return not self.reason


def verdicts(timing: Timing, rule: CatchUp, uid: str, *, after: float, now: float) -> list[SlotVerdict]:
    """Decides about the slots behind `after` that are due at `now`, oldest first."""
    wanted = rule.limit if rule.missed == "all" else 1
    found = timing.newest(after, now, wanted + LEFT_OUT_ROWS + 1)
    due = list(found.slots)
    if due and start_of(timing, rule, uid, due[-1]) > now:
        due.pop()  # only the newest can still be waiting for its delay: it ends before the next slot
    if len(due) > wanted + LEFT_OUT_ROWS:
        due = due[-(wanted + LEFT_OUT_ROWS) :]
        more = True
    else:
        more = found.more
    judged = [SlotVerdict(slot, "missed") for slot in due[:-wanted]] + [SlotVerdict(slot) for slot in due[-wanted:]]
    if rule.missed == "skip" and judged and now - start_of(timing, rule, uid, due[-1]) > rule.deadline:
        judged[-1] = SlotVerdict(due[-1], "missed_deadline")
    if more and judged:
        judged[0] = SlotVerdict(judged[0].slot, "missed, and others before it")
    return judged


def start_of(timing: Timing, rule: CatchUp, uid: str, slot: int) -> float:
    """Returns when the task of a slot is to be made."""
    return slot + delay_of(uid, slot, rule.jitter, timing.after(slot) if rule.jitter else None)


def next_start(timing: Timing, rule: CatchUp, uid: str, *, after: float) -> tuple[int, float] | None:
    """The first slot whose start is behind `after`, and that start; None when there will be none."""
    slot = timing.after(after - rule.jitter if rule.jitter else after)
    while slot is not None:
        if (start := start_of(timing, rule, uid, slot)) > after:
            return slot, start
        slot = timing.after(slot)
    return None


def first_after(timing: Timing, *, created: float, deadline: float) -> float:
    """From where on the slots of a new schedule count: from its making, and the last one before it if still in time."""
    before = timing.newest(created - deadline - 1, created, 1).slots
    return before[-1] - 1 if before else created


# --- declared schedule -----------------------------------------------------------------------------------------------

LABEL = "foliot.dev/task-schedule"
_NAME_LENGTH = 40
_LABEL_LENGTH = 63


class SlotOrder(Struct, frozen=True):
    """The order for a slot, kept with it so that anybody can finish it. `ref` names the template.

    With `session` something is said to a session, in the place of a task.
    `by_operator`: it acts for the operator, who declared the schedule.
    """

    ref: str
    command: Command
    replace: bool = False
    by_operator: bool = False
    session: SessionOrder | None = None


# A process that keeps schedules looks every 5 s; one that is killed may be started again meanwhile.
NEGLECTED_AFTER: Final = 30.0
NOBODY_KEEPS: Final = "no process keeps schedules: start `foliot server`, `foliot up` or `foliot schedule serve`"


class Schedule(Struct, frozen=True):
    """A TaskSchedule with every default filled in."""

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
    session: dict[str, Any] | None = None
    # Why it makes no tasks though it is not suspended: whoever declared it may do nothing any more.
    stopped: str = ""

    @property
    def via(self) -> str:
        """The way in of its tasks."""
        return f"schedule:{self.key.name}"

    @property
    def spawner(self) -> str:
        """The `spawned_by` of its tasks."""
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
    ref: str = spec.get("task_ref", "")
    cron, at, zone = spec.get("schedule", ""), spec.get("at", ""), spec.get("time_zone", "UTC")
    suspend: bool = spec.get("suspend", False)
    created = datetime.fromisoformat(metadata["createdAt"]).timestamp()
    declarer = DeclaredBy.of(document)
    return Schedule(
        uid=metadata["uid"],
        key=key,
        ref=qualified(ref, key.namespace) if ref else "",
        session=spec.get("session"),
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


def neglected_since(document: Document, *, now: float) -> float | None:
    """Returns since when no process has looked at a schedule that is due; None when one has, as far as it shows.

    A scheduler looks at a new schedule within seconds, and at each time when it comes: it says so in the status.
    """
    schedule = read_schedule(document)
    status: dict[str, Any] = document.get("status") or {}
    if schedule.suspend or status.get("phase") == "Suspended":
        return None
    since: float | None = schedule.updated
    if status.get("observedGeneration") == schedule.generation:
        if status.get("activeRuns"):  # `forbid` waits for them
            return None
        last = str(status.get("lastScheduleTime") or "")
        decided = datetime.fromisoformat(last).timestamp() if last else 0.0
        slot = schedule.timing.after(max(schedule.updated, decided))
        since = None if slot is None else start_of(schedule.timing, schedule.rule, schedule.uid, slot)
    return since if since is not None and since < now - NEGLECTED_AFTER else None


def order_for(schedule: Schedule, slot: int) -> SlotOrder:
    """The order for a slot of the clock, `slot` in seconds."""
    stamp = datetime.fromtimestamp(slot, UTC)
    name = f"{_plain(schedule.key.name)}-{stamp:%Y%m%d-%H%M}"
    command = _command(schedule, float(slot), "clock", name, f"{schedule.spawner}:{slot}", schedule.input)
    session = _said(schedule, float(slot), "clock", f"schedule:{schedule.uid}:{slot}")
    return SlotOrder(schedule.ref, command, schedule.policy == "replace", schedule.by_operator, session)


def manual_order(schedule: Schedule, slot: int, *, by: str, given: Mapping[str, str]) -> SlotOrder:
    """The order for a task that a person asked for, `slot` in milliseconds. Nothing is replaced by it."""
    stamp = datetime.fromtimestamp(slot / 1000, UTC)
    name = f"{_plain(schedule.key.name)}-manual-{stamp:%Y%m%d-%H%M%S}-{slot % 1000:03}"
    key = f"{schedule.spawner}:manual:{slot}"
    command = _command(schedule, slot / 1000, "manual", name, key, {**schedule.input, **given})
    if by:  # who asks for it acts: the declarer has a say in what is done, and not for whom
        identity = Identity(by, via=schedule.via).also_ordered_by(schedule.declarer)
        command = msgspec.structs.replace(command, by=by, identity=identity)
    session = _said(schedule, slot / 1000, "manual", f"schedule:{schedule.uid}:manual:{slot}")
    return SlotOrder(schedule.ref, command, by_operator=schedule.by_operator and not by, session=session)


def _said(schedule: Schedule, slot: float, trigger: str, key: str) -> SessionOrder | None:
    """The order for a schedule that says something to a session; asked for by hand, it acts for the declarer too."""
    if schedule.session is None:
        return None
    values = _slot_values(schedule, slot, trigger)
    return session_order(
        schedule.session,
        namespace=schedule.key.namespace,
        declarer=DeclaredBy(schedule.declarer, schedule.by_operator),
        via=schedule.via,
        key=key,
        value_of=lambda hole: values.get(hole, hole),
        provenance=Provenance("schedule", correlation_id=key),
    )


def encode_order(order: SlotOrder) -> str:
    return msgspec.json.encode(order).decode()


def decode_order(text: str) -> SlotOrder:
    return _orders.decode(text)


_orders = msgspec.json.Decoder(SlotOrder)


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
    return iso_seconds(moment)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:_NAME_LENGTH].strip("-") or "schedule"


def _label(text: str) -> str:
    return text[:_LABEL_LENGTH].rstrip("-_.")
