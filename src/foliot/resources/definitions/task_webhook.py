"""TaskWebhook: a task that is made when someone calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field

from foliot.resources.base import Model, Resource, Status, problem
from foliot.resources.definitions.shapes import HeaderName
from foliot.resources.fields import Count, Ref, SecretRef, lowered
from foliot.resources.problems import Problem

_SIGNATURE_HEADER: Final = {"generic": "X-Signature", "github": "X-Hub-Signature-256"}
_TIMESTAMP_HEADER: Final = {"generic": "X-Timestamp", "github": ""}
_EVENT_ID_HEADER: Final = {"generic": "X-Event-Id", "github": "X-GitHub-Delivery"}
_DEDUPE_SECONDS: Final = {"generic": 86_400, "github": 259_200}


class WebhookAuth(Model):
    """How a caller proves who it is: by a signature over the body."""

    profile: Annotated[Literal["generic", "github"], BeforeValidator(lowered)] = Field(
        default="generic", description="Whose way of signing."
    )
    secret_ref: SecretRef = Field(default="", description="The Secret that both sides know.")
    signature_header: HeaderName = Field(default="", description="The header that carries the signature.")
    signature_prefix: str = Field(default="sha256=", description="What stands before the signature.")
    timestamp_header: HeaderName = Field(default="", description="The header that carries the time; generic only.")
    max_skew_seconds: Count = Field(default=300, description="How far the caller's clock may be off.")

    def complete(self) -> None:
        self.signature_header = self.signature_header or _SIGNATURE_HEADER[self.profile]
        self.timestamp_header = self.timestamp_header or _TIMESTAMP_HEADER[self.profile]


class WebhookIdempotency(Model):
    """How a repeated call is known."""

    event_id_header: HeaderName = Field(default="", description="The header that names the event.")
    dedupe_window_seconds: Count | None = Field(default=None, description="How long a repetition is recognised.")


class WebhookPayload(Model):
    """What becomes of the body."""

    mode: Annotated[Literal["raw", "json"], BeforeValidator(lowered)] = Field(
        default="raw", description="Give it to the task as text, or as JSON that must be valid."
    )
    input_key: str = Field(default="webhook_payload", description="The key of the task's input that receives it.")


class TaskWebhookSpec(Model):
    """Which task, and who may call."""

    required: ClassVar = {"task_ref": ""}

    task_ref: Ref = Field(default="", description="The Task with mode `template`: name or namespace/name.")
    suspend: bool = Field(default=False, description="Refuse all calls for now.")
    auth: WebhookAuth = Field(default_factory=WebhookAuth, description="How a caller proves who it is.")
    idempotency: WebhookIdempotency = Field(
        default_factory=WebhookIdempotency, description="How a repeated call is known."
    )
    payload: WebhookPayload = Field(default_factory=WebhookPayload, description="What becomes of the body.")

    def complete(self) -> None:
        profile = self.auth.profile
        self.idempotency.event_id_header = self.idempotency.event_id_header or _EVENT_ID_HEADER[profile]
        if self.idempotency.dedupe_window_seconds is None:
            self.idempotency.dedupe_window_seconds = _DEDUPE_SECONDS[profile]

    def problems(self) -> Iterator[Problem]:
        if not self.auth.secret_ref:
            yield problem("auth", "secret_ref", message="{field} is required")


class TaskWebhookStatus(Status):
    """What the webhook did."""

    endpoint_id: str = Field(default="", serialization_alias="endpointID", description="Its part of the address.")
    endpoint_path: str = Field(default="", description="The path to call.")
    last_delivery_time: str = Field(default="", description="When it was last called.")
    last_event_id: str = Field(default="", serialization_alias="lastEventID", description="The last event.")
    last_triggered_task: str = Field(default="", description="The last task it made.")
    accepted_count: int | None = Field(default=None, description="Calls that made a task.")
    duplicate_count: int | None = Field(default=None, description="Calls that were repetitions.")
    rejected_count: int | None = Field(default=None, description="Calls that were refused.")


class TaskWebhook(Resource[TaskWebhookSpec, TaskWebhookStatus]):
    """A task that is made when someone calls."""
