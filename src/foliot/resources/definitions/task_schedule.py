"""TaskSchedule: a task that is made again and again, by the clock."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from foliot.resources import cron
from foliot.resources.base import Model, Resource, Status
from foliot.resources.fields import Count, Ref, lowered, refusal
from foliot.resources.timezones import time_zone_problem

DEADLINE_SECONDS = 300


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


TimeZone: TypeAlias = Annotated[str, AfterValidator(_time_zone)]


class TaskScheduleSpec(Model):
    """Which task, and when."""

    required: ClassVar = {"task_ref": "", "schedule": ""}

    task_ref: Ref = Field(default="", description="The Task with mode `template`: name or namespace/name.")
    schedule: Annotated[str, AfterValidator(_schedule)] = Field(
        default="", description="A cron expression: minute hour day month weekday; or @daily and the like."
    )
    time_zone: TimeZone = Field(default="UTC", description="The time zone of the schedule, by its IANA name.")
    suspend: bool = Field(default=False, description="Make no tasks for now.")
    starting_deadline_seconds: Count = Field(
        default=DEADLINE_SECONDS, description="How late a task may still be made; 0 means the default of 300."
    )
    concurrency_policy: Annotated[Literal["allow", "forbid", "replace"], BeforeValidator(lowered)] = Field(
        default="forbid", description="When the last task still runs: make another, make none, or replace it."
    )
    successful_history_limit: Count = Field(default=10, description="How many succeeded tasks are kept.")
    failed_history_limit: Count = Field(default=3, description="How many failed tasks are kept.")

    def complete(self) -> None:
        self.starting_deadline_seconds = self.starting_deadline_seconds or DEADLINE_SECONDS


class TaskScheduleStatus(Status):
    """What the schedule did."""

    last_schedule_time: str = Field(default="", description="The last time it was due.")
    last_successful_time: str = Field(default="", description="When a task of it last succeeded.")
    next_schedule_time: str = Field(default="", description="When it is due next.")
    last_triggered_task: str = Field(default="", description="The last task it made.")
    active_runs: list[Any] = Field(default_factory=list[Any], description="Its tasks that are under way.")


class TaskSchedule(Resource[TaskScheduleSpec, TaskScheduleStatus]):
    """A task that is made again and again."""
