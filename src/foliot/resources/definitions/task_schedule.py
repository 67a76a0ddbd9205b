"""TaskSchedule: a task that is made again and again, by the clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from foliot.resources import cron
from foliot.resources.base import Model, Resource, Status, either, given, no, problem
from foliot.resources.cron import time_zone_problem
from foliot.resources.definitions.shapes import SessionTarget
from foliot.resources.fields import ANY_CASE, Count, Duration, Ref, StringMap, as_whole, refusal
from foliot.resources.paths import SLOT_NAMES, names_in
from foliot.resources.problems import Problem

DEADLINE_SECONDS: Final = 300
CATCH_UP_MAX: Final = 1000


def _schedule(value: str) -> str:
    try:
        return cron.canonical(value)
    except ValueError as error:
        expected = "five fields: minute hour day month weekday, or @hourly, @daily, @weekly, @monthly, @yearly"
        raise refusal(f'invalid {{field}} "{value[:80]}": {error}', expected=expected) from None


def _time_zone(value: str) -> str:
    if (wrong := time_zone_problem(value)) is not None:
        message = f'invalid {{field}} "{value[:80]}": {wrong}'
        raise refusal(message, expected="an IANA name such as Europe/Berlin")
    return value


def _moment(value: str) -> str:
    try:
        return datetime.fromisoformat(value).isoformat()
    except ValueError:
        expected = "a time such as 2027-01-31T09:00:00 (of the time zone) or 2027-01-31T09:00:00Z"
        raise refusal(f'invalid {{field}} "{value[:80]}": not a time', expected=expected) from None


def _moment_text(value: Any) -> Any:
    """YAML reads a bare time as a time."""
    return value.isoformat() if isinstance(value, datetime) else value


TimeZone: TypeAlias = Annotated[str, AfterValidator(_time_zone)]
Moment: TypeAlias = Annotated[str, BeforeValidator(_moment_text), AfterValidator(_moment)]


class TaskScheduleSpec(Model):
    """Which task, and when."""

    rules: ClassVar = (
        either(given("task_ref"), given("session")),
        no(given("task_ref", "session")),
        either(given("schedule"), given("at")),
        no(given("schedule", "at")),
    )

    task_ref: Ref = Field(default="", description="The Task with mode `template`: name or namespace/name.")
    session: SessionTarget | None = Field(default=None, description="Instead of a task: the session it is said to.")
    schedule: Annotated[str, AfterValidator(_schedule)] = Field(
        default="", description="A cron expression: minute hour day month weekday; or @daily and the like."
    )
    at: Moment = Field(default="", description="Instead of schedule: one time only, e.g. 2027-01-31T09:00:00.")
    time_zone: TimeZone = Field(default="UTC", description="The time zone of the schedule, by its IANA name.")
    suspend: bool = Field(default=False, description="Make no tasks for now.")
    starting_deadline_seconds: Count = Field(
        default=DEADLINE_SECONDS, description="How late a task may still be made; 0 means the default of 300."
    )
    concurrency_policy: Annotated[Literal["allow", "forbid", "replace"], ANY_CASE] = Field(
        default="forbid", description="When the last task still runs: make another, make none, or replace it."
    )
    missed: Annotated[Literal["skip", "last", "all"], ANY_CASE] = Field(
        default="skip",
        description="Times that passed while nobody looked: leave them out, make up for the last, or for all of them.",
    )
    catch_up_limit: Annotated[int, Field(ge=1, le=CATCH_UP_MAX), BeforeValidator(as_whole)] = Field(
        default=10, description="How many missed times `missed: all` makes up for at most, the newest ones."
    )
    jitter: Duration = Field(
        default="0s", description="Start up to this much later; always the same for the same time of the schedule."
    )
    input: StringMap = Field(
        default_factory=dict[str, str],
        description="Input besides the template's. {{ slot }}, {{ slot_date }} and the like are filled in.",
    )
    successful_history_limit: Count = Field(default=10, description="How many succeeded tasks are kept.")
    failed_history_limit: Count = Field(default=3, description="How many failed or cancelled tasks are kept.")

    def complete(self) -> None:
        self.starting_deadline_seconds = self.starting_deadline_seconds or DEADLINE_SECONDS

    def problems(self) -> Iterator[Problem]:
        if not self.task_ref and self.session is None:
            yield problem("task_ref", message="{field} is required", hint="or name a session with spec.session")
        if self.task_ref and self.session is not None:
            yield problem("session", message="{field} and spec.task_ref exclude each other", hint="keep one of the two")
        if not self.schedule and not self.at:
            yield problem("schedule", message="{field} is required", hint="or give one time with spec.at")
        if self.schedule and self.at:
            yield problem("at", message="{field} and spec.schedule exclude each other", hint="keep one of the two")
        texts = {("input", key): text for key, text in self.input.items()}
        if self.session is not None:
            texts["session", "message"] = self.session.message
        for place, text in texts.items():
            for name in names_in(text):
                if name not in SLOT_NAMES:
                    message = f"{{field}} holds {{{{ {name[:40]} }}}}, which nothing fills"
                    yield problem(*place, message=message, expected=", ".join(SLOT_NAMES))


class TaskScheduleStatus(Status):
    """The observed state of the schedule."""

    last_schedule_time: str = Field(default="", description="The last time it was due.")
    last_successful_time: str = Field(default="", description="When a task of it last succeeded.")
    next_schedule_time: str = Field(default="", description="When it is due next.")
    last_triggered_task: str = Field(default="", description="The last task it made.")
    active_runs: list[Any] = Field(default_factory=list[Any], description="Its tasks that are under way.")


class TaskSchedule(Resource[TaskScheduleSpec, TaskScheduleStatus]):
    """A task that is made again and again."""
