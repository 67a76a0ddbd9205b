"""TaskWebhook: a task that is made when someone calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from pydantic import AfterValidator, Field

from foliot.resources.base import Model, Resource, Status, both, either, given, no, problem, says, within
from foliot.resources.definitions.shapes import HeaderName
from foliot.resources.event_filters import event_filter
from foliot.resources.fields import (
    ANY_CASE,
    Count,
    Positive,
    Ref,
    SecretRef,
    StringMap,
    Timeout,
    Whole,
    distinct,
    refusal,
)
from foliot.resources.paths import EVENT_NAMES, names_in, parse_path
from foliot.resources.problems import Problem

Profile: TypeAlias = Literal["generic", "github", "gitlab", "stripe", "slack", "standard-webhooks", "linear", "shopify"]


@dataclass(frozen=True, slots=True)
class ProfileDefaults:
    """The defaults of a sender's way of signing, for fields that were left out."""

    signature_header: str
    signature_prefix: str = ""
    timestamp_header: str = ""
    event_id_header: str = ""
    event_id_path: str = ""
    encoding: Literal["hex", "base64"] = "hex"
    dedupe_seconds: int = 86_400


PROFILES: Final[dict[str, ProfileDefaults]] = {
    "generic": ProfileDefaults("X-Signature", "sha256=", "X-Timestamp", "X-Event-Id"),
    "github": ProfileDefaults("X-Hub-Signature-256", "sha256=", "", "X-GitHub-Delivery", dedupe_seconds=259_200),
    "gitlab": ProfileDefaults("X-Gitlab-Token", event_id_header="X-Gitlab-Event-UUID"),
    # Sends an event again for three days until it is taken.
    "stripe": ProfileDefaults("Stripe-Signature", event_id_path="$.id", dedupe_seconds=345_600),
    "slack": ProfileDefaults("X-Slack-Signature", "v0=", "X-Slack-Request-Timestamp", event_id_path="$.event_id"),
    "standard-webhooks": ProfileDefaults(
        "webhook-signature", "", "webhook-timestamp", "webhook-id", encoding="base64", dedupe_seconds=259_200
    ),
    "linear": ProfileDefaults("Linear-Signature", event_id_header="Linear-Delivery"),
    "shopify": ProfileDefaults(
        "X-Shopify-Hmac-Sha256", "", "", "X-Shopify-Webhook-Id", encoding="base64", dedupe_seconds=259_200
    ),
}


def _json_path(value: str) -> str:
    try:
        parse_path(value)
    except ValueError as error:
        raise refusal(f'invalid {{field}} "{value[:80]}": {error}', expected="a path such as $.event.id") from None
    return value


def _filter(value: str) -> str:
    try:
        event_filter(value)
    except ValueError as error:
        expected = 'a CEL expression such as event == "push" && body.ref == "refs/heads/main"'
        raise refusal(f"invalid {{field}}: {error}", expected=expected) from None
    return value


JsonPath: TypeAlias = Annotated[str, AfterValidator(_json_path)]


class WebhookAuth(Model):
    """How a caller proves who it is: by a signature over the body."""

    profile: Annotated[Profile, ANY_CASE] = Field(default="generic", description="Whose way of signing.")
    secret_ref: SecretRef = Field(
        default="", description="The Secret that both sides know: [namespace/]name[:key], by default its first key."
    )
    secret_refs: Annotated[list[SecretRef], AfterValidator(distinct)] = Field(
        default_factory=list[str], description="More of them, each as good: the old and the new one while they change."
    )
    signature_header: HeaderName = Field(default="", description="The header that carries the signature.")
    signature_prefix: str = Field(
        default="", description="What stands before the signature, in any case; `none` for nothing."
    )
    encoding: Annotated[Literal["hex", "base64"], ANY_CASE] | None = Field(
        default=None, description="How the signature of the generic profile is written; hex when not given."
    )
    timestamp_header: HeaderName = Field(
        default="", description="The header that carries the time, where the profile signs one."
    )
    max_skew_seconds: Count = Field(default=300, description="How far the caller's clock may be off.")

    def complete(self) -> None:
        defaults = PROFILES[self.profile]
        self.signature_header = self.signature_header or defaults.signature_header
        self.signature_prefix = self.signature_prefix or defaults.signature_prefix
        self.timestamp_header = self.timestamp_header or defaults.timestamp_header


class WebhookIdempotency(Model):
    """How a repeated call is known."""

    event_id_header: HeaderName = Field(default="", description="The header that names the event.")
    event_id_path: JsonPath = Field(default="", description="Or where in the JSON body the event is named, e.g. $.id.")
    dedupe_window_seconds: Count | None = Field(default=None, description="How long a repetition is recognised.")
    same_signature: Annotated[Literal["accept", "duplicate"], ANY_CASE] | None = Field(
        default=None,
        description="`duplicate`, as by default: what was signed counts once, also under another event id, which most "
        "senders do not sign. `accept`: the id alone says what is the same event.",
    )


class WebhookPayload(Model):
    """The use of the request body."""

    mode: Annotated[Literal["raw", "json"], ANY_CASE] = Field(
        default="raw", description="Give it to the task as text, or as JSON that must be valid."
    )
    input_key: str = Field(default="webhook_payload", description="The key of the task's input that receives it.")
    inputs: StringMap = Field(
        default_factory=dict[str, str],
        description="More input: a path such as $.pull_request.title, or a text with {{ $.path }}, {{ event_id }}, "
        "{{ header.X-GitHub-Event }}.",
    )

    def problems(self) -> Iterator[Problem]:
        for key, text in self.inputs.items():
            for name in [text] if text.startswith("$") else names_in(text):
                if (wrong := _hole_problem(name)) is not None:
                    expected = f"$.path, header.NAME, {', '.join(EVENT_NAMES)}"
                    yield problem("inputs", key, message=f"{{field}}: {wrong}", expected=expected)


def _hole_problem(name: str) -> str | None:
    if name.startswith("$"):
        try:
            parse_path(name)
        except ValueError as error:
            return f'invalid path "{name[:80]}": {error}'
        return None
    if name in EVENT_NAMES or (name.startswith("header.") and len(name) > len("header.")):
        return None
    return f"nothing fills {{{{ {name[:40]} }}}}"


class WebhookRate(Model):
    """How many signed calls are taken. What comes above is refused with 429 and may be sent again."""

    requests: Positive = Field(default=60, description="Calls in each period.")
    per: Timeout = Field(default="1m", description="The period.")
    burst: Positive | None = Field(default=None, description="Calls that may come at once; as many as requests.")


class TaskWebhookSpec(Model):
    """Which task, and who may call."""

    required: ClassVar = {"task_ref": ""}
    rules: ClassVar = (
        within("auth", either(given("secret_ref"), given("secret_refs"))),
        no(within("auth", both(given("encoding"), given("profile"), no(says("profile", "generic"))))),
    )

    task_ref: Ref = Field(default="", description="The Task with mode `template`: name or namespace/name.")
    suspend: bool = Field(default=False, description="Refuse all calls for now.")
    auth: WebhookAuth = Field(default_factory=WebhookAuth, description="How a caller proves who it is.")
    idempotency: WebhookIdempotency = Field(
        default_factory=WebhookIdempotency, description="How a repeated call is known."
    )
    payload: WebhookPayload = Field(default_factory=WebhookPayload, description="What becomes of the body.")
    filter: Annotated[str, AfterValidator(_filter)] = Field(
        default="", description='Which events make a task, in CEL: event == "push" && body.ref == "refs/heads/main".'
    )
    rate_limit: WebhookRate | None = Field(default=None, description="How many signed calls are taken; none: all.")
    delivery_history_limit: Count | None = Field(
        default=None, description="How many deliveries are remembered with their bodies; 100 when not given."
    )

    def complete(self) -> None:
        defaults = PROFILES[self.auth.profile]
        if not self.idempotency.event_id_header and not self.idempotency.event_id_path:
            self.idempotency.event_id_header = defaults.event_id_header
            self.idempotency.event_id_path = defaults.event_id_path
        if self.idempotency.dedupe_window_seconds is None:
            self.idempotency.dedupe_window_seconds = defaults.dedupe_seconds

    def problems(self) -> Iterator[Problem]:
        if not self.auth.secret_ref and not self.auth.secret_refs:
            yield problem("auth", "secret_ref", message="{field} is required")
        if self.auth.encoding is not None and self.auth.profile != "generic":
            message = f"{{field}} is fixed for the profile {self.auth.profile}"
            yield problem("auth", "encoding", message=message, hint="only generic can choose it")


class TaskWebhookStatus(Status):
    """The observed state of the webhook."""

    endpoint_id: str = Field(default="", serialization_alias="endpointID", description="Its part of the address.")
    endpoint_path: str = Field(default="", description="The path to call.")
    last_delivery_time: str = Field(default="", description="When it was last called.")
    last_event_id: str = Field(default="", serialization_alias="lastEventID", description="The last event.")
    last_triggered_task: str = Field(default="", description="The last task it made.")
    accepted_count: Whole | None = Field(default=None, description="Calls that made a task.")
    duplicate_count: Whole | None = Field(default=None, description="Calls that were repetitions.")
    rejected_count: Whole | None = Field(default=None, description="Calls that were refused.")
    filtered_count: Whole | None = Field(default=None, description="Calls that the filter left out.")


class TaskWebhook(Resource[TaskWebhookSpec, TaskWebhookStatus]):
    """A task that is made when someone calls."""
