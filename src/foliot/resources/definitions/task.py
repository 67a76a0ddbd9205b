"""Task: one request for work, addressed to a system or to one agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from foliot.resources.base import Model, Resource, Status, either, given, no, problem
from foliot.resources.definitions.execution_policy import ExecutionPolicy
from foliot.resources.definitions.shapes import Jitter
from foliot.resources.fields import (
    ANY_CASE,
    MARK_ANY_CASE,
    Attempts,
    Count,
    Duration,
    Name,
    StringMap,
    TextList,
    Timeout,
    Whole,
    distinct_lowered,
    lowered,
)
from foliot.resources.problems import Problem

_PRIORITY_WORDS = {"medium": "normal", "default": "normal", "urgent": "critical"}


_PRIORITY_SCHEMA: Final = {
    "enum": ["low", "normal", "high", "critical"],
    "type": "string",
    MARK_ANY_CASE: ["low", "normal", "high", "critical", *_PRIORITY_WORDS],
}


def _priority(value: Any) -> Any:
    word = lowered(value)
    return _PRIORITY_WORDS.get(word, word) if isinstance(word, str) else word


class TaskRetry(Model):
    """The retry rule of a failed task."""

    max_attempts: Attempts = Field(default=1, description="Attempts in all; 1 means no retry.")
    backoff: Duration = Field(default="0s", description="The wait before the second attempt, then twice as long.")

    def complete(self) -> None:
        self.max_attempts = self.max_attempts or 1


class MessageRetry(Model):
    """The retry rule of one agent's part of a task."""

    max_attempts: Attempts = Field(default=0, description="As retry.max_attempts when not given.")
    backoff: Duration | None = Field(default=None, description="As retry.backoff when not given.")
    max_backoff: Duration = Field(default="24h", description="The longest wait.")
    jitter: Jitter = Field(default="full", description="How much of the wait is left to chance.")
    non_retryable: TextList = Field(
        default_factory=list[str], description="Parts of an error's text that forbid another attempt."
    )

    def complete(self) -> None:
        self.non_retryable = distinct_lowered(text.strip() for text in self.non_retryable)


class Requirements(Model):
    """Which workers may take the task."""

    region: str = Field(default="", description="Workers of this region.")
    gpu: bool = Field(default=False, description="Workers with a GPU.")
    model: str = Field(default="", description="Workers that serve this model.")


class TaskSpec(Model):
    """The work to do, and the system or agent that does it."""

    rules: ClassVar = (either(given("system"), given("agent")), no(given("system", "agent")))

    system: Name = Field(default="", description="The AgentSystem that does it.")
    agent: Name = Field(default="", description="Or the one Agent that does it.")
    mode: Annotated[Literal["run", "template"], ANY_CASE] = Field(
        default="run", description="Do it, or keep it as the pattern for schedules and webhooks."
    )
    input: StringMap = Field(default_factory=dict[str, str], description="What is given; `topic` opens the talk.")
    priority: Annotated[
        Literal["low", "normal", "high", "critical"], BeforeValidator(_priority), WithJsonSchema(_PRIORITY_SCHEMA)
    ] = Field(default="normal", description="Who goes first when workers are busy.")
    lane: str = Field(default="", max_length=63, description="Tasks of one lane can be limited together.")
    timeout: Timeout | None = Field(default=None, description="How long the whole task may take.")
    max_turns: Count = Field(default=0, description="How often agents may hand over; 0 leaves it to the system.")
    idempotency_key: Annotated[str, WithJsonSchema({"type": "string", "maxLength": 255})] = Field(
        default="", description="A second task with the same key is the same task."
    )
    retry: TaskRetry = Field(default_factory=TaskRetry, description="When a failed task is tried again.")
    message_retry: MessageRetry = Field(
        default_factory=MessageRetry, description="When one agent's part is tried again."
    )
    requirements: Requirements = Field(default_factory=Requirements, description="Which workers may take it.")
    execution_policy: ExecutionPolicy | None = Field(
        default=None, description="How programs of its runs are executed; it can only narrow what an agent declares."
    )

    def complete(self) -> None:
        self.message_retry.max_attempts = self.message_retry.max_attempts or self.retry.max_attempts
        self.message_retry.backoff = self.message_retry.backoff or self.retry.backoff

    def problems(self) -> Iterator[Problem]:
        if not self.system and not self.agent:
            yield problem("system", message="{field} is required", hint="or address one agent with spec.agent")
        if self.system and self.agent:
            yield problem("agent", message="{field} and spec.system exclude each other", hint="keep one of the two")
        if len(self.idempotency_key) > 255:
            yield problem("idempotency_key", message="{field} is too long", expected="at most 255 characters")


class TaskStatus(Status):
    """How the work goes."""

    started_at: str = Field(default="", description="When the first attempt began.")
    completed_at: str = Field(default="", description="When it ended.")
    next_attempt_at: str = Field(default="", description="When it is tried again.")
    attempts: Whole | None = Field(default=None, description="Attempts so far.")
    output: dict[str, Any] = Field(default_factory=dict[str, Any], description="What came out.")
    assigned_worker: str = Field(default="", description="The worker it was given to.")
    claimed_by: str = Field(default="", description="The worker that has it.")
    lease_until: str = Field(default="", description="How long that worker may keep it without a sign of life.")
    last_heartbeat: str = Field(default="", description="That worker's last sign of life.")
    trace: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]], description="What happened, in steps.")
    history: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]], description="Changes of its phase.")
    messages: list[dict[str, Any]] = Field(
        default_factory=list[dict[str, Any]], description="What agents said to each other."
    )
    message_idempotency: list[dict[str, Any]] = Field(
        default_factory=list[dict[str, Any]],
        serialization_alias="message_idempotency",
        description="Messages that were dealt with.",
    )
    join_states: list[dict[str, Any]] = Field(
        default_factory=list[dict[str, Any]], serialization_alias="join_states", description="Who arrived at joins."
    )


class Task(Resource[TaskSpec, TaskStatus]):
    """One request for work."""
