from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.models.base import (
    ModelAuthError,
    ModelContextOverflow,
    ModelError,
    ModelOverloaded,
    ModelRateLimited,
    ModelRequestError,
    ModelTimeout,
)
from foliot.models.provider_errors import Said, duration, read_body, read_payload, refusal, retry_after, shorten

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("payload", "message", "names"),
    [
        ({"error": {"message": "No", "type": "api_error", "code": "x"}}, "No", ("x", "api_error")),
        ({"error": "model not found"}, "model not found", ()),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}, "Busy", ("overloaded_error",)),
        (
            [{"error": {"code": 429, "message": "Quota", "status": "RESOURCE_EXHAUSTED"}}],
            "Quota",
            ("resource_exhausted",),
        ),
        ({"detail": [{"loc": ["body"], "msg": "missing"}]}, '[{"loc":["body"],"msg":"missing"}]', ()),
        ({"message": "Plain"}, "Plain", ()),
        ("just text", "just text", ()),
        (None, "", ()),
    ],
)
def test_the_message_is_found_in_every_shape_providers_use(payload: Any, message: str, names: tuple[str, ...]) -> None:
    said = read_payload(payload)
    assert (said.message, said.names) == (message, names)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"error": {"type": "overloaded_error", "message": ""}}, ModelOverloaded),
        ({"error": {"type": "rate_limit_error"}}, ModelRateLimited),
        ({"error": {"type": "authentication_error"}}, ModelAuthError),
        ({"error": {"type": "invalid_request_error"}}, ModelRequestError),
        ({"error": {"code": "context_length_exceeded", "type": "invalid_request_error"}}, ModelContextOverflow),
        ({"error": {"type": "timeout_error"}}, ModelTimeout),
        ({"error": {"code": 503, "status": "UNAVAILABLE"}}, ModelOverloaded),
        ({"error": {"code": "429"}}, ModelRateLimited),
        ({"error": {"type": "never_heard_of"}}, ModelOverloaded),
        ({"error": {"code": "²²²"}}, ModelOverloaded),
        ({"error": {"code": True}}, ModelOverloaded),
    ],
)
def test_inside_a_stream_the_providers_own_names_decide(payload: Any, expected: type[ModelError]) -> None:
    assert type(refusal(read_payload(payload), provider="p")) is expected


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"message": "too many", "type": "invalid_request_error", "code": "context_length_exceeded"}),
        (None, {"message": "too many", "code": "context_length_exceeded"}),
        (400, {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"}),
        (400, {"status": "INVALID_ARGUMENT", "message": "The input token count (9) exceeds the maximum (8)."}),
        (400, {"message": "This model's maximum context length is 8 tokens. However, you requested 9."}),
        (400, {"message": "the request exceeds what there is", "type": "exceed_context_size_error"}),
        (413, "input length and `max_tokens` exceed context limit: 9 + 8 > 16"),
    ],
)
def test_a_conversation_that_is_too_long_is_told_apart_however_it_is_said(status: int | None, error: Any) -> None:
    made = refusal(read_payload({"error": error}), provider="p", status=status)
    assert isinstance(made, ModelContextOverflow)
    assert (made.kind, made.retryable) == ("context_overflow", False)


@pytest.mark.parametrize(
    "message", ["unknown parameter: context", "the name is too long", "max_tokens is larger than the maximum"]
)
def test_other_refusals_are_not_taken_for_a_conversation_that_is_too_long(message: str) -> None:
    assert type(refusal(Said(message), provider="p", status=400)) is ModelRequestError


def test_an_account_without_money_is_not_asked_again() -> None:
    said = read_payload({"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}})
    error = refusal(said, provider="p", status=429)
    assert type(error) is ModelRateLimited
    assert not error.retryable
    assert "billing" in (error.hint or "")


@pytest.mark.parametrize(("verdict", "retryable"), [("true", True), ("false", False)])
def test_a_provider_that_says_whether_to_retry_is_believed(verdict: str, retryable: bool) -> None:
    error = refusal(read_payload({}), provider="p", status=500, headers={"x-should-retry": verdict})
    assert error.retryable is retryable


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "12"}, 12.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "250"}, 0.25),
        ({"x-ratelimit-reset": str(int((NOW + 5) * 1000))}, 5.0),
        ({"x-ratelimit-reset": str(int(NOW + 5))}, 5.0),
        ({"x-ratelimit-reset": "5"}, 5.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "120ms"}, 0.12),
        (
            {"anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": "2027-01-15T08:00:10Z"},
            10.0,
        ),
        (
            {"anthropic-ratelimit-tokens-remaining": "9", "anthropic-ratelimit-tokens-reset": "2027-01-15T08:00:10Z"},
            None,
        ),
        ({}, None),
    ],
)
def test_the_wait_is_read_from_whatever_header_carries_it(headers: dict[str, str], seconds: float | None) -> None:
    found = retry_after(headers, NOW)
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_gemini_says_the_wait_in_the_body() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}]
    said = read_payload({"error": {"code": 429, "message": "Quota", "details": details}})
    assert refusal(said, provider="p", status=429).retry_after == 34.5


@pytest.mark.parametrize(
    ("text", "seconds"), [("1h2m3.5s", 3723.5), ("6m0s", 360.0), ("1d", 86400.0), ("x", None), ("1s x", None)]
)
def test_durations(text: str, seconds: float | None) -> None:
    assert duration(text) == seconds


def test_a_page_without_a_title_is_read_as_text() -> None:
    said = read_body(b"<!DOCTYPE html><style>p {}</style><p>Gateway   down</p>")
    assert shorten(said.message) == "an HTML page: Gateway down"


def test_a_long_text_is_cut_and_the_key_is_not_in_it() -> None:
    text = shorten("a" * 300 + " sk-key\n" + "b" * 5000, "sk-key")
    assert len(text) < 700
    assert "sk-key" not in text
    assert "\n" not in text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda x: (
        st.lists(x, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "code", "type", "status", "details", "detail", "retryDelay"]), x
        )
    ),
    max_leaves=9,
)


@settings(deadline=None)
@given(payload=json_values, status=st.none() | st.integers(300, 599), header=st.text(max_size=20))
def test_no_refusal_however_strange_breaks_the_reader(payload: Any, status: int | None, header: str) -> None:
    headers = {"retry-after": header, "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": header}
    error = refusal(read_payload(payload), provider="p", status=status, headers=headers, now=NOW)
    assert error.retry_after is None or error.retry_after >= 0
