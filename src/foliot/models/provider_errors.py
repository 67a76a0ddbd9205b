"""Provider errors: translates a provider's refusal into one of the model errors.

Used by models/gateways/http.py for refusals by status, and for errors that come inside a body or a stream that began
well. Policies decide by the class, so this is the only place that reads a provider's words, and it reads codes before
texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple, cast

import msgspec

from foliot.common.durations import seconds
from foliot.models.base import (
    ModelAuthError,
    ModelContentFiltered,
    ModelContextOverflow,
    ModelError,
    ModelOverloaded,
    ModelQuotaExceeded,
    ModelRateLimited,
    ModelRequestError,
    ModelRequestTooLarge,
    ModelTimeout,
)

_SHOWN: Final = 600
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^<>]*>", re.IGNORECASE | re.DOTALL)
_PAGE: Final = 4096  # as much of a page is looked at: the patterns above take the square of it when a tag never ends

# Providers name their errors inside streams, where there is no status any more. The status each would have had:
_STATUS_OF: Final[Mapping[str, int]] = {
    "invalid_request_error": 400, "invalid_prompt": 400, "context_length_exceeded": 400, "invalid_argument": 400,
    "failed_precondition": 400, "invalid_value": 400, "unsupported_value": 400, "string_above_max_length": 400,
    "authentication_error": 401, "invalid_api_key": 401, "unauthenticated": 401,
    "billing_error": 402,
    "permission_error": 403, "permission_denied": 403,
    "not_found_error": 404, "not_found": 404, "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429, "rate_limit_exceeded": 429, "resource_exhausted": 429, "insufficient_quota": 429,
    "tokens": 429, "requests": 429,
    "api_error": 500, "server_error": 500, "internal_error": 500, "internal": 500, "internal_server_error": 500,
    "unavailable": 503, "service_unavailable": 503,
    "timeout_error": 408, "deadline_exceeded": 408, "gateway_timeout_error": 408,
    "overloaded_error": 529, "overloaded": 529,
}  # fmt: skip


class Meaning(NamedTuple):
    """A meaning that several providers say differently, and what to do about it.

    It is meant when a name is one of `names` or the status one of `statuses`; or, where providers have no name for it
    but only words, when the words match and the status is one of `among` (None: inside a stream, without a status).
    """

    kind: type[ModelError]
    hint: str
    names: frozenset[str] = frozenset()
    statuses: frozenset[int] = frozenset()
    words: re.Pattern[str] | None = None
    among: frozenset[int | None] = frozenset({None, 400})

    def is_meant(self, status: int | None, said: ProviderWords) -> bool:
        if status in self.statuses or not self.names.isdisjoint(said.names):
            return True
        return self.words is not None and status in self.among and self.words.search(said.message[:_PAGE]) is not None


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_TOO_LONG: Final = _any_of(
    r"(prompt|input)( \([^)]{0,40}\))? is too long",
    r"(maximum|available|model's) (context|prompt) (length|window|size)",  # x-ai says prompt
    r"exceeds? (the )?(model's )?context (length|window|size|limit)",
    r"input token count .{0,40}exceeds the maximum",
    r"longer than the maximum model length",  # vLLM
    r"exceeded model token limit|model max length exceeded",  # Moonshot
    # LM Studio
    r"tokens to keep from the initial prompt|when context the overflows|cannot truncate prompt with n_keep",
    r"`inputs` (tokens \+ `max_new_tokens` must be <=|must have less than)",  # Together
    r"reduce the length of the (messages|input|prompt)",
)
_CHECK_KEY: Final = "check the endpoint's secret, and what its account may use"
# In the order in which they are looked for: an account without money may be told so by any status.
MEANINGS: Final = (
    Meaning(
        ModelQuotaExceeded,
        "the account has no credit left: check its plan and billing",
        frozenset(
            {"insufficient_quota", "billing_error", "billing_hard_limit_reached", "exceeded_current_quota_error"}
        ),
        frozenset({402}),
        # Not "you exceeded your current quota": Gemini says that of a minute, and when to come back.
        _any_of(
            r"credit balance is too low",
            r"used all available credits|run out of credits|any credits or licenses yet|requires more credits",
            r"insufficient (account )?(balance|credits?|funds)|credit limit exceeded|billing hard limit",
            r"quota exceeded for metric[^*]{0,200}\blimit: 0\b",  # a model that the plan does not have at all
        ),
        frozenset({None, 400, 401, 403, 429}),
    ),
    Meaning(
        ModelAuthError,
        _CHECK_KEY,
        frozenset({"api_key_invalid"}),  # Gemini, as the reason of a 400
        words=_any_of(
            r"^api key (not valid|not found|expired)",  # Gemini
            r"^(incorrect|invalid) api key",  # x-ai
        ),
        among=frozenset({None, 400}),
    ),
    Meaning(
        ModelContentFiltered,
        "the provider's rules forbid it: change what is asked, or ask another provider",
        frozenset({"content_filter", "content_policy_violation", "data_inspection_failed", "moderation_blocked"}),
        words=_any_of(
            r"content violates usage guidelines",  # x-ai
            r"content exists risk",  # DeepSeek
            r"considered high risk",  # Moonshot
            r"blocked by content filtering policy",  # Anthropic
            r"violating our usage policy",  # OpenAI
            r"content management policy",  # Azure
            r"input was flagged",  # OpenRouter
        ),
        among=frozenset({None, 400, 403, 422}),
    ),
    Meaning(
        ModelContextOverflow,
        "give the agent less to read, or ask a model that reads more",
        frozenset({"context_length_exceeded", "exceed_context_size_error"}),
        words=_TOO_LONG,
        among=frozenset({None, 400, 413, 422, 500}),
    ),
    Meaning(
        ModelRequestTooLarge,
        "send less at once: smaller files, fewer images, a shorter conversation",
        frozenset({"request_too_large"}),
        frozenset({413}),
        _any_of(r"payload size exceeds the limit", r"request (body|entity)?( is)? ?too large", r"payload too large"),
        # 429: one request asks for more than a minute has, so no minute will do (OpenAI).
        frozenset({None, 400, 429}),
    ),
)


@dataclass(frozen=True, slots=True)
class ProviderWords:
    """The provider's own words: a message for people, and the names that programs go by, in lower case."""

    message: str
    names: tuple[str, ...] = ()
    status: int | None = None
    retry_after: float | None = None


def read_payload(payload: Any) -> ProviderWords:
    """Find the message in the shapes that providers use for errors."""
    try:
        return _read(payload)
    except RecursionError:
        return ProviderWords("an error that is nested too deeply to be read")


def _read(payload: Any) -> ProviderWords:
    if isinstance(payload, list) and payload:
        payload = cast("list[Any]", payload)[0]
    if not isinstance(payload, dict):
        return ProviderWords(str(cast("object", payload)) if payload else "")
    outer = cast("dict[str, Any]", payload)
    error: Any = outer.get("error") or outer
    if not isinstance(error, dict):
        return ProviderWords(str(error))
    inner = cast("dict[str, Any]", error)
    message = inner.get("message") or inner.get("detail") or outer.get("message") or outer.get("detail") or ""
    if not isinstance(message, str):
        message = msgspec.json.encode(message).decode()
    given = [inner.get(key) for key in ("code", "type", "status")]
    status = next((int(str(value)) for value in given if _is_status(value)), None)
    listed: Any = inner.get("details")
    listed = cast("list[Any]", listed) if isinstance(listed, list) else []
    details = [cast("dict[str, Any]", each) for each in listed if isinstance(each, dict)]
    given += [each.get("reason") for each in details]  # google.rpc.ErrorInfo
    names = tuple(value.lower() for value in given if isinstance(value, str) and not value.isdigit())
    return ProviderWords(message, names, status, _retry_info(details))


def _is_status(value: Any) -> bool:
    return isinstance(value, (int, str)) and re.fullmatch(r"[45]\d\d", str(value), re.ASCII) is not None


def _retry_info(details: Sequence[Mapping[str, Any]]) -> float | None:
    for detail in details:
        if isinstance(delay := detail.get("retryDelay"), str):
            return duration(delay)
    return None


def read_body(body: bytes) -> ProviderWords:
    """The same for raw bytes, which may be JSON, text, or the HTML page of a proxy in between."""
    try:
        return read_payload(msgspec.json.decode(body))
    except (msgspec.DecodeError, RecursionError):
        pass
    text = body.decode("utf-8", "replace")
    if "<html" in text[:1000].lower() or "<!doctype" in text[:1000].lower():
        text = text[:_PAGE]
        title = _TITLE.search(text)
        text = f"an HTML page: {title.group(1) if title else _TAGS.sub(' ', text)}"
    return ProviderWords(text)


def shorten(text: str, key: str = "") -> str:
    """One line, bounded, without the key: some providers quote the key they refuse."""
    if key:
        text = text.replace(key, "***")
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def refusal(
    said: ProviderWords,
    *,
    provider: str,
    key: str = "",
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    now: float = 0.0,
) -> ModelError:
    """The error for a refusal. `status` is None inside a stream, where the provider's own names decide."""
    if status is None:
        status = said.status or next((_STATUS_OF[name] for name in said.names if name in _STATUS_OF), None)
    words = shorten(said.message, key) or "no reason was given"
    head = f"model provider {provider!r}"
    wait = said.retry_after if said.retry_after is not None else retry_after(headers or {}, now)
    kind, hint, retryable = _classify(status, said)
    said_so = (headers or {}).get("x-should-retry")
    if said_so in ("true", "false") and not any(kind is meaning.kind for meaning in MEANINGS):
        retryable = said_so == "true"
    text = f"{head} refused the request ({status}): {words}" if status else f"{head} reported an error: {words}"
    return kind(text, provider=provider, status=status, retry_after=wait, hint=hint, retryable=retryable)


def _classify(status: int | None, said: ProviderWords) -> tuple[type[ModelError], str | None, bool | None]:
    for meaning in MEANINGS:
        if meaning.is_meant(status, said):
            return meaning.kind, meaning.hint, None
    if status is None:
        return ModelOverloaded, None, None
    if status in (401, 403):
        return ModelAuthError, _CHECK_KEY, None
    if status == 429:
        return ModelRateLimited, None, None
    if status == 408:
        return ModelTimeout, None, None
    if status in (409, 425) or status >= 500:
        return ModelOverloaded, None, None
    if status == 404:
        return ModelRequestError, "check the model's name and the endpoint's base URL", None
    if 300 <= status < 400:
        return ModelRequestError, "redirects are not followed: set the base URL to where the provider really is", None
    return ModelRequestError, None, None


def meant_by(message: str, status: int | None = None) -> type[ModelError] | None:
    """The kind of error that these words mean, for whoever has nothing but them; None when they say nothing known."""
    return next((meaning.kind for meaning in MEANINGS if meaning.is_meant(status, ProviderWords(message))), None)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds to wait as the provider's headers say, the most exact first. `now` is the wall clock, for dates.

    Nothing, and less, is no answer: whoever goes by it would ask at once, again and again.
    """
    if (value := _number(headers.get("retry-after-ms"))) is not None and value > 0:
        return value / 1000
    if given := headers.get("retry-after", "").strip():
        value = _number(given)
        if value is None:
            value = _until(given, now)
        if value is not None and value > 0:
            return value
    # Only a limit that is used up says how long to wait; the others report when they will be full again.
    waits = [
        wait
        for name, left in headers.items()
        if "ratelimit-" in (lower := name.lower()) and "remaining" in lower and left.strip() == "0"
        for wait in (_reset(headers.get(_reset_name(lower), ""), now),)
        if wait is not None
    ]
    if waits:
        return max(waits)
    return _reset(headers.get("x-ratelimit-reset", ""), now)


def _reset_name(remaining: str) -> str:
    # anthropic-ratelimit-tokens-remaining -> …-reset; x-ratelimit-remaining-tokens -> x-ratelimit-reset-tokens
    return remaining.replace("remaining", "reset")


def _reset(value: str, now: float) -> float | None:
    """A reset given as a duration ("6m0s"), as seconds, as an epoch in seconds or milliseconds, or as a date."""
    value = value.strip()
    if not value:
        return None
    number = _number(value)
    if number is None:
        wait = duration(value)
        return wait if wait is not None else _until(value, now)
    if number > 1e11:
        number /= 1000
    return max(0.0, number - now if number > 1e9 else number)


def duration(value: str) -> float | None:
    """ "1h2m3.5s" in seconds; None when it is something else."""
    try:
        return seconds(value)
    except ValueError:
        return None


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value else None
    except ValueError:
        return None
    return number if number is not None and number < 1e15 else None


def _until(value: str, now: float) -> float | None:
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            return max(0.0, read(value).timestamp() - now)
        except (ValueError, TypeError, OverflowError):
            continue
    return None
