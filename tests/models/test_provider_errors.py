# ruff: noqa: E501  # what providers say is quoted as it was said
from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from foliot.models.provider_errors import (
    ProviderWords,
    duration,
    read_body,
    read_payload,
    refusal,
    retry_after,
    shorten,
)

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
    "message",
    [
        "unknown parameter: context",
        "the user wrote 'invalid api key'",
        "the name is too long",
        "max_tokens is larger than the maximum",
    ],
)
def test_other_refusals_are_not_taken_for_a_conversation_that_is_too_long(message: str) -> None:
    assert type(refusal(ProviderWords(message), provider="p", status=400)) is ModelRequestError


def test_an_account_without_money_is_not_asked_again() -> None:
    said = read_payload({"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}})
    error = refusal(said, provider="p", status=429)
    assert type(error) is ModelQuotaExceeded
    assert not error.retryable
    assert "billing" in (error.hint or "")


_MODERATED = "Content violates usage guidelines. Model: grok-4-0709, Failed check: SAFETY_CHECK_TYPE_BIO"
_NO_CREDITS = "Your team 16f2 has either used all available credits or reached its monthly spending limit."
_GEMINI = "You exceeded your current quota, please check your plan and billing details."


# What providers were seen to answer, as far as it matters.
@pytest.mark.parametrize(
    ("meant", "status", "payload"),
    [
        # --- longer than the model can read
        (ModelContextOverflow, 400, {"error": "This model's maximum prompt length is 131072 but the request contains 136973 tokens.", "code": "Client specified an invalid argument"}),  # x-ai
        (ModelContextOverflow, 400, {"error": {"message": "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens (112946 in the messages, 10000 in the completion).", "type": "BadRequestError", "code": 400}}),  # vLLM
        (ModelContextOverflow, 400, {"error": {"message": "The prompt (total length 25938) is too long to fit into the model (context length 4096).", "type": "BadRequestError"}}),  # vLLM
        (ModelContextOverflow, 400, {"object": "error", "message": "The decoder prompt (length 9000) is longer than the maximum model length of 4096.", "type": "BadRequestError"}),  # vLLM
        (ModelContextOverflow, 400, {"error": {"message": "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)", "type": "invalid_request_error"}}),  # Moonshot
        (ModelContextOverflow, 400, {"error": {"message": "model max length exceeded, max length:8192", "type": "invalid_request_error"}}),  # Moonshot
        (ModelContextOverflow, 400, {"error": "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 13055>= n_ctx: 4096). Try to load the model with a larger context length, or provide a shorter input."}),  # LM Studio
        (ModelContextOverflow, None, {"error": {"message": "The number of tokens to keep from the initial prompt is greater than the context length."}}),  # LM Studio, streaming
        (ModelContextOverflow, 400, {"error": "Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded with context length of only 32768 tokens, which is not enough."}),  # LM Studio
        (ModelContextOverflow, 400, {"error": "Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)"}),  # LM Studio
        (ModelContextOverflow, 400, {"error": {"message": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 80125 `inputs` tokens and 4096 `max_new_tokens`", "type": "invalid_request_error", "param": "max_tokens"}}),  # Together
        (ModelContextOverflow, 422, {"error": {"message": "Input validation error: `inputs` must have less than 1024 tokens. Given: 1244"}}),  # Together
        (ModelContextOverflow, 400, {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 1036683 tokens > 1000000 maximum"}}),  # Anthropic
        (ModelContextOverflow, 400, {"error": {"message": "Please reduce the length of the messages or completion. Current length is 8963 while limit is 8192", "type": "invalid_request_error"}}),  # Cerebras
        # --- no money, no quota: waiting does not help
        (ModelQuotaExceeded, 429, {"error": {"message": _GEMINI, "type": "insufficient_quota", "code": "insufficient_quota"}}),  # OpenAI
        (ModelQuotaExceeded, 400, {"type": "error", "error": {"type": "invalid_request_error", "message": "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."}}),
        (ModelQuotaExceeded, 429, {"code": "Some resource has been exhausted", "error": _NO_CREDITS}),  # x-ai
        (ModelQuotaExceeded, 403, {"code": "The caller does not have permission", "error": _NO_CREDITS}),  # x-ai
        (ModelQuotaExceeded, 403, {"error": "Your newly created team doesn't have any credits or licenses yet."}),  # x-ai
        (ModelQuotaExceeded, 403, {"error": {"message": "Your account <xx> is not active, organization <xx> exceeded current quota, please check your plan and billing details", "type": "exceeded_current_quota_error"}}),  # Moonshot
        (ModelQuotaExceeded, 402, {"error": {"message": "This request requires more credits, or fewer max_tokens.", "code": 402}}),  # OpenRouter
        (ModelQuotaExceeded, None, {"error": {"message": "This request requires more credits, or fewer max_tokens.", "code": 402}}),  # inside a stream
        (ModelQuotaExceeded, 402, {"error": {"message": "Insufficient Balance", "type": "unknown_error"}}),  # DeepSeek
        (ModelQuotaExceeded, 429, {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": f"{_GEMINI} \n* Quota exceeded for metric: generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: 0, model: gemini-2.5-pro\nPlease retry in 20.04466179s."}}),
        # --- the same words of a minute are no such thing
        (ModelRateLimited, 429, {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": f"{_GEMINI}\n* Quota exceeded for metric: generativelanguage.googleapis.com/generate_content_free_tier_input_token_count, limit: 125000\nPlease retry in 15.002899939s."}}),
        (ModelRateLimited, 429, {"type": "error", "error": {"type": "rate_limit_error", "message": "This request would exceed your account's rate limit. Please try again later."}}),
        # --- forbidden by the provider's rules
        (ModelContentFiltered, 403, {"code": "The caller does not have permission to execute the specified operation", "error": _MODERATED}),  # x-ai
        (ModelContentFiltered, 400, {"error": {"message": "Content Exists Risk", "type": "invalid_request_error", "code": "invalid_request_error"}}),  # DeepSeek
        (ModelContentFiltered, 400, {"error": {"code": 400, "message": "The request was rejected because it was considered high risk", "type": "content_filter"}}),  # Moonshot
        (ModelContentFiltered, 400, {"type": "error", "error": {"type": "invalid_request_error", "message": "Output blocked by content filtering policy"}}),  # Anthropic
        (ModelContentFiltered, None, {"type": "error", "error": {"type": "invalid_request_error", "message": "Output blocked by content filtering policy"}}),
        (ModelContentFiltered, 400, {"error": {"message": "Invalid prompt: your prompt was flagged as potentially violating our usage policy.", "type": "invalid_request_error", "code": "invalid_prompt"}}),  # OpenAI
        (ModelContentFiltered, 400, {"error": {"message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.", "code": "content_filter", "status": 400}}),
        # --- too large for the way there, or for the provider's own limit on one request
        (ModelRequestTooLarge, 413, {"error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}),  # Anthropic
        (ModelRequestTooLarge, 413, {"error": {"message": "Request too large for model `moonshotai/kimi-k2-instruct` in organization `org_01` service tier `on_demand` on tokens per minute (TPM): Limit 10000, Requested 15088, please reduce your message size and try again.", "type": "tokens", "code": "rate_limit_exceeded"}}),  # Groq
        (ModelRequestTooLarge, 400, {"error": {"code": 400, "message": "Request payload size exceeds the limit: 20971520 bytes.", "status": "INVALID_ARGUMENT"}}),  # Gemini
        (ModelRequestTooLarge, 429, {"error": {"message": "Request too large for gpt-4o in organization org-01 on tokens per min (TPM): Limit 30000, Requested 37215. The input or output tokens must be reduced in order to run successfully.", "type": "tokens", "param": None, "code": "rate_limit_exceeded"}}),  # OpenAI
        (ModelRateLimited, 429, {"error": {"message": "Rate limit reached for gpt-4o in organization org-01 on tokens per min (TPM): Limit 30000, Used 29000, Requested 1500. Please try again in 1s.", "type": "tokens", "code": "rate_limit_exceeded"}}),  # OpenAI
        # --- a key that is refused by another status than 401
        (ModelAuthError, 400, {"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.", "status": "INVALID_ARGUMENT", "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}]}}),  # Gemini
        (ModelAuthError, 400, [{"error": {"code": 400, "message": "API key expired. Please renew the API key.", "status": "INVALID_ARGUMENT"}}]),  # Gemini, as OpenAI has it
        (ModelAuthError, 400, {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: xa***23. You can obtain an API key from https://console.x.ai."}),  # x-ai
        # --- and what is none of these
        (ModelAuthError, 403, {"error": {"message": "Your account may not use this model", "type": "permission_error"}}),
        (ModelOverloaded, 500, {"error": {"message": "Internal server error", "type": "api_error"}}),
        (ModelRequestError, 400, {"error": {"message": "max_tokens must be less than or equal to 16384, the maximum value for max_tokens is less than the context_window for this model", "type": "invalid_request_error"}}),
    ],
)  # fmt: skip
def test_errors_are_what_the_providers_mean_by_them(meant: type[ModelError], status: int | None, payload: Any) -> None:
    error = refusal(
        read_payload(payload), provider="p", status=status, headers={"x-should-retry": "true"} if status != 413 else {}
    )
    assert type(error) is meant
    if meant in (ModelContextOverflow, ModelQuotaExceeded, ModelContentFiltered, ModelRequestTooLarge):
        assert not error.retryable


@pytest.mark.parametrize(("verdict", "retryable"), [("true", True), ("false", False)])
def test_a_provider_that_says_whether_to_retry_is_believed(verdict: str, retryable: bool) -> None:
    error = refusal(read_payload({}), provider="p", status=500, headers={"x-should-retry": verdict})
    assert error.retryable is retryable


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "12"}, 12.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, None),
        ({"retry-after": "0"}, None),
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
            st.sampled_from(
                ["error", "message", "code", "type", "status", "details", "detail", "retryDelay", "reason"]
            ),
            x,
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
