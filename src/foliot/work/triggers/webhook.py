"""A TaskWebhook as deliveries meet it: with every default filled in, and what a delivery becomes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from msgspec import Struct

from foliot.common.durations import seconds
from foliot.kernel.arguments import repeated_name
from foliot.kernel.identity import Identity
from foliot.resources.definitions.task_webhook import PROFILES
from foliot.resources.paths import fill, look_up
from foliot.resources.references import Origin, qualified
from foliot.store.base import DeclaredBy, Document, Key
from foliot.tools.secrets.masking import Masker
from foliot.work.tasks.base import Command
from foliot.work.triggers.signatures import Headers, Scheme

LABEL: Final = "foliot.dev/task-webhook"
TAKEN: Final = "foliot.dev/webhook-taken"
LARGEST_BODY: Final = 1024 * 1024
LONGEST_ID: Final = 512
_NAME_LENGTH: Final = 42
_LABEL_LENGTH: Final = 63
# Where senders say what kind of event it is: in a header, or in the body.
_EVENT_HEADERS: Final = {
    "generic": "x-event-type",
    "github": "x-github-event",
    "gitlab": "x-gitlab-event",
    "linear": "linear-event",
    "shopify": "x-shopify-topic",
}
_EVENT_PATHS: Final = {"stripe": ("$.type",), "slack": ("$.event.type", "$.type"), "standard-webhooks": ("$.type",)}
# Headers that prove who the sender is. Nothing that the declarer of a webhook writes may see them: GitLab's holds the
# secret itself, and whoever has a signature could use it elsewhere.
_PROOFS: Final = frozenset(profile.signature_header.lower() for profile in PROFILES.values())
_CREDENTIAL: Final = re.compile(
    r"authori[sz]ation|cookie|token|secret|signature|hmac|passw|credential|(api|access|auth)[-_]?key|jwt|assertion"
    r"|(^|[-_])(auth|sig|session)([-_]|$)"
)
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


class WebhookRate(Struct, frozen=True):
    requests: int
    per: float
    burst: int


class Webhook(Struct, frozen=True):
    """A TaskWebhook as the receiver uses it."""

    uid: str
    key: Key
    ref: str
    suspend: bool
    secret_refs: tuple[str, ...]
    scheme: Scheme
    id_path: str
    window: float
    once_signed: bool
    mode: Literal["raw", "json"]
    input_key: str
    inputs: dict[str, str]
    filter: str
    rate: WebhookRate | None
    keep: int
    generation: int
    declarer: str = ""
    by_operator: bool = False

    @property
    def via(self) -> str:
        """The way in of its tasks."""
        return f"webhook:{self.key.name}"

    @property
    def spawner(self) -> str:
        """The `spawned_by` of its tasks."""
        return f"webhook:{self.uid}"

    @property
    def origin(self) -> Origin:
        """The origin of its references to a template and secrets."""
        return Origin(self.key.kind, self.key.namespace)


class Parcel(Struct, frozen=True):
    """A delivery that can be read: the body as text, and as JSON where it is some. It holds nothing secret."""

    text: str
    json: Any
    headers: Headers


class BodyRefused(Exception):
    """The body cannot be given to a task."""


def read_webhook(document: Document) -> Webhook:
    """Raises `KeyError`, `ValueError` for a document that no version of Foliot would have stored so."""
    metadata, spec = document["metadata"], document["spec"]
    key = Key(document["kind"], metadata["namespace"], metadata["name"])
    ref: str = spec["task_ref"]
    auth: dict[str, Any] = spec.get("auth") or {}
    idempotency: dict[str, Any] = spec.get("idempotency") or {}
    payload: dict[str, Any] = spec.get("payload") or {}
    profile: str = auth.get("profile", "generic")
    defaults = PROFILES[profile]
    window = idempotency.get("dedupe_window_seconds")
    named = idempotency.get("event_id_header") or idempotency.get("event_id_path")
    rate: dict[str, Any] | None = spec.get("rate_limit")
    keep = spec.get("delivery_history_limit")
    declarer = DeclaredBy.of(document)
    refs = ([auth["secret_ref"]] if auth.get("secret_ref") else []) + list(auth.get("secret_refs") or [])
    prefix: str = auth.get("signature_prefix", defaults.signature_prefix)
    id_header = idempotency.get("event_id_header", "") if named else defaults.event_id_header
    return Webhook(
        uid=metadata["uid"],
        key=key,
        ref=qualified(ref, key.namespace),
        suspend=spec.get("suspend", False),
        secret_refs=tuple(dict.fromkeys(refs)),
        scheme=Scheme(
            profile=profile,
            signature_header=auth.get("signature_header") or defaults.signature_header,
            prefix="" if prefix == "none" else prefix,
            timestamp_header=auth.get("timestamp_header") or defaults.timestamp_header,
            id_header=id_header,
            encoding=auth.get("encoding") or defaults.encoding,
            max_skew=float(auth.get("max_skew_seconds", 300)),
        ),
        id_path=idempotency.get("event_id_path", "") if named else defaults.event_id_path,
        window=float(defaults.dedupe_seconds if window is None else window),
        once_signed=idempotency.get("same_signature", "duplicate") == "duplicate",
        mode=payload.get("mode", "raw"),
        input_key=payload.get("input_key", "webhook_payload"),
        inputs=dict(payload.get("inputs") or {}),
        filter=spec.get("filter", ""),
        rate=_rate(rate) if rate is not None else None,
        keep=100 if keep is None else keep,
        generation=metadata["generation"],
        declarer=declarer.user,
        by_operator=declarer.operator,
    )


def _rate(given: dict[str, Any]) -> WebhookRate:
    requests: int = given.get("requests", 60)
    return WebhookRate(requests, seconds(given.get("per", "1m")), given.get("burst") or requests)


def told_headers(webhook: Webhook, headers: Headers) -> dict[str, str]:
    """The headers without those by which the sender is known: all that filters, inputs and records ever see."""
    proofs = _PROOFS | {webhook.scheme.signature_header.lower()}
    return {name: text for name, text in headers.items() if name not in proofs and not _CREDENTIAL.search(name)}


def open_parcel(webhook: Webhook, headers: Headers, body: bytes | None, known: Sequence[bytes] = ()) -> Parcel:
    """The delivery without proofs of the sender, and without the secrets that are `known` wherever else they stand.

    Raises `BodyRefused` for one that is too large, no text, or, where JSON is asked for, no JSON.
    """
    if body is None:
        raise BodyRefused("the body could not be read")
    if len(body) > LARGEST_BODY:
        raise BodyRefused(f"the body is larger than {LARGEST_BODY} bytes")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise BodyRefused("the body is not UTF-8") from None
    masker = Masker()
    masker.add(*(secret.decode("utf-8", "replace").strip() for secret in known))
    text = masker.mask(text)
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
        if problem := repeated_name(text, found):
            raise BodyRefused(f"the body has two readings: {problem}")
    except (ValueError, RecursionError):
        if webhook.mode == "json":
            raise BodyRefused("the body is not JSON") from None
        found = None
    told = {name: masker.mask(value) for name, value in told_headers(webhook, headers).items()}
    return Parcel(text, found, told)


def event_id_of(webhook: Webhook, parcel: Parcel) -> str:
    """The sender's id of the event, from the header or the body; blank when there is none."""
    header = webhook.scheme.id_header
    if header and (value := parcel.headers.get(header.lower(), "").strip()):
        return storable(value)[:LONGEST_ID]
    if not webhook.id_path:
        return ""
    found = look_up(parcel.json, webhook.id_path)
    return storable(as_text(found)).strip()[:LONGEST_ID] if isinstance(found, str | int) else ""


def event_of(webhook: Webhook, parcel: Parcel) -> str:
    """Returns the sender's name for this kind of event; blank when it gives none."""
    profile = webhook.scheme.profile
    if header := _EVENT_HEADERS.get(profile):
        return parcel.headers.get(header, "")
    for path in _EVENT_PATHS.get(profile, ()):
        if isinstance(found := look_up(parcel.json, path), str):
            return found
    return ""


def command_for(
    webhook: Webhook, parcel: Parcel, event_id: str, *, taken_at: int, key: str, name: str, by: str = ""
) -> Command:
    """The command for a delivery. It depends on nothing but what is given, so that a second try asks for the same.

    With `by` somebody here asks for it, and acts; without, it is the sender, and whoever declared the webhook acts.
    """
    received = f"{datetime.fromtimestamp(taken_at / 1000, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
    values = {
        "event_id": event_id,
        "received_at": received,
        "source": webhook.scheme.profile,
        "webhook": webhook.key.name,
        "namespace": webhook.key.namespace,
    }

    def value_of(hole: str) -> str:
        if hole.startswith("$"):
            return storable(as_text(look_up(parcel.json, hole)))
        if hole.startswith("header."):
            return storable(parcel.headers.get(hole.removeprefix("header.").lower(), ""))
        return values.get(hole, "")

    mapped = {
        name: value_of(text) if text.startswith("$") else fill(text, value_of) for name, text in webhook.inputs.items()
    }
    return Command(
        target_kind="agent",  # the template says which
        target="",
        namespace=webhook.key.namespace,
        name=name,
        input={
            webhook.input_key: storable(parcel.text),
            "webhook_event_id": event_id,
            "webhook_received_at": received,
            "webhook_source": webhook.scheme.profile,
            **{name: text for name, text in mapped.items() if text},
        },
        idempotency_key=key,
        labels={
            LABEL: webhook.key.name[:_LABEL_LENGTH].rstrip("-_."),
            f"{LABEL}-namespace": webhook.key.namespace[:_LABEL_LENGTH].rstrip("-_."),
            "foliot.dev/webhook-event-id": short_digest(event_id),
            TAKEN: str(taken_at),
        },
        spawned_by=webhook.spawner,
        by=by or f"webhook:{webhook.key.namespace}/{webhook.key.name}",
        identity=Identity(by or webhook.declarer, via=webhook.via).also_ordered_by(webhook.declarer),
    )


def task_name(webhook: Webhook, event_id: str) -> str:
    return f"{webhook.key.name[:_NAME_LENGTH]}-{short_digest(event_id)}"


def short_digest(event_id: str) -> str:
    return hashlib.sha256(event_id.encode()).hexdigest()[:16]


def as_text(value: Any) -> str:
    """A value of the body as input: text as it is, nothing as nothing, the rest as JSON."""
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return json.dumps(cast("object", value), ensure_ascii=False, separators=(",", ":"))


def storable(text: str) -> str:
    """Replaces what no database keeps: NUL, and halves of surrogate pairs that JSON can spell."""
    return _UNSTORABLE.sub("\ufffd", text) if _UNSTORABLE.search(text) else text


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
