from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.kernel.messages import (
    Media,
    Message,
    ModelRequest,
    Reasoning,
    Text,
    ToolCall,
    ToolFailure,
    ToolResult,
    ToolSpec,
)
from foliot.kernel.tokens import estimate_media, estimate_message, estimate_request, estimate_text, estimate_tools
from foliot.models.routing.tokens import TokenCounter


def request(*messages: Message, **more: object) -> ModelRequest:
    return ModelRequest("m", messages, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("", 0, 0),
        ("The quick brown fox jumps over the lazy dog.", 9, 13),
        ("敏捷的棕色狐狸跳过了懒狗", 10, 16),  # about one token per sign
        ("Быстрая коричневая лиса", 8, 18),
        ("🦦" * 10, 10, 25),
    ],
)
def test_a_text_is_estimated_within_reason_whatever_its_script(text: str, low: int, high: int):
    assert low <= estimate_text(text) <= high


@given(st.text(), st.text())
def test_more_text_is_never_fewer_tokens(one: str, other: str):
    assert estimate_text(one + other) >= estimate_text(one)
    assert estimate_text(one + other) <= estimate_text(one) + estimate_text(other) + 1


def test_every_kind_of_part_counts():
    text = "x" * 400
    data = base64.b64encode(text.encode()).decode()
    parts = [
        Text(text),
        Reasoning(text),
        ToolCall("1", "f", text),
        ToolResult("1", "f", (Text(text),)),
        ToolResult("1", "f", error=ToolFailure("c", "r", text)),
        Media("text/plain", data=data),
    ]
    for part in parts:
        assert 100 <= estimate_message(Message("user", (part,))) <= 120, part


def test_a_picture_costs_by_its_kind_and_not_by_its_bytes():
    small = estimate_media(Media("image/png", data="aaaa"))
    assert small == estimate_media(Media("image/png", data="a" * 10**6)) == estimate_media(Media("image/png", url="u"))
    assert 700 <= small <= 1600
    assert estimate_media(Media("application/pdf", data="a" * 4_000_000)) > 10_000
    assert estimate_media(Media("application/pdf", blob="sha256:0")) > 0


def test_tool_descriptions_and_the_wanted_shape_count():
    schema = {"type": "object", "properties": {f"field_{n}": {"type": "string"} for n in range(50)}}
    bare = estimate_request(request(Message("user", (Text("hi"),))))
    assert (
        estimate_request(request(Message("user", (Text("hi"),)), tools=(ToolSpec("f", "does", schema),))) > bare + 300
    )
    assert estimate_request(request(Message("user", (Text("hi"),)), output_schema=schema)) > bare + 300


def test_remembered_tool_costs_are_not_mixed_up():
    for n in range(1000):  # far more than are remembered, so ids of freed tuples come back
        tools = tuple(ToolSpec("t" * (k + 1)) for k in range(n % 7 + 1))
        assert estimate_tools(tools) == estimate_tools(tools[:1] + tools[1:])


def test_the_counter_learns_the_ratio_of_a_model_and_only_of_that():
    counter = TokenCounter()
    asked = request(Message("user", (Text("x" * 4000),)))
    raw = estimate_request(asked)
    assert counter.estimate(asked) == raw

    for _ in range(3):
        counter.observe("m", estimated=raw, counted=raw * 3 // 2)

    assert counter.estimate(asked) == pytest.approx(raw * 1.5, rel=0.01)
    assert counter.estimate(asked, model="other") == raw


def test_newer_counts_weigh_more():
    counter = TokenCounter()
    for _ in range(20):
        counter.observe("m", estimated=100, counted=100)
    for _ in range(20):
        counter.observe("m", estimated=100, counted=200)
    assert counter.ratio("m") == pytest.approx(2.0, rel=0.02)


@given(st.lists(st.tuples(st.integers(-5, 10**6), st.integers(-5, 10**9)), max_size=50))
def test_no_sequence_of_counts_can_switch_a_budget_off(counts: list[tuple[int, int]]):
    counter = TokenCounter()
    for estimated, counted in counts:
        counter.observe("m", estimated=estimated, counted=counted)
    assert 0.25 <= counter.ratio("m") <= 4.0
