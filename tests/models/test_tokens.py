from __future__ import annotations

import base64
from base64 import b64encode
from typing import Any

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
from foliot.kernel.tokens import (
    estimate_media,
    estimate_message,
    estimate_request,
    estimate_text,
    estimate_tools,
    image_rule,
    image_size,
)
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


# --- pictures --------------------------------------------------------------------------------------------------------


def png(width: int, height: int) -> str:
    head = b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4) + b"IHDR" + width.to_bytes(4) + height.to_bytes(4) + bytes(32)
    return b64encode(head).decode()


def jpeg(width: int, height: int) -> str:
    comment = b"\xff\xfe" + (2002).to_bytes(2) + bytes(2000)
    frame = b"\xff\xc0" + (17).to_bytes(2) + b"\x08" + height.to_bytes(2) + width.to_bytes(2) + bytes(10)
    return b64encode(b"\xff\xd8" + comment + frame).decode()


@pytest.mark.parametrize(
    ("model", "width", "height", "tokens"),
    [
        ("claude-sonnet-4-5", 1000, 1000, 1334),
        ("claude-sonnet-4-5", 4000, 4000, 1600),
        ("gpt-4o", 1024, 1024, 765),
        ("gpt-4o", 2048, 4096, 1105),
        ("gemini-2.5-pro", 300, 300, 258),
        ("gemini-2.5-pro", 1536, 768, 516),
    ],
)
@pytest.mark.parametrize("made", [png, jpeg])
def test_a_picture_is_counted_by_the_rule_of_its_model(made: Any, model: str, width: int, height: int, tokens: int):
    picture = Media("image/png", data=made(width, height))
    assert estimate_media(picture, image_rule(model)) == tokens


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(0, 100_000))
def test_the_bytes_of_a_picture_do_not_count(width: int, height: int, padding: int):
    small = Media("image/png", data=png(width, height))
    large = Media("image/png", data=png(width, height) + "A" * (padding // 4 * 4))
    for model in ("claude-3", "gpt-4o", "gpt-5", "gpt-4.1-mini", "gemini-2.0", "llama"):
        rule = image_rule(model)
        assert 0 < estimate_media(small, rule) == estimate_media(large, rule) <= 60_000


@given(st.binary(max_size=200))
def test_no_bytes_break_the_look_at_a_picture(data: bytes):
    for head in (b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF....WEBPVP8 "):
        size = image_size(b64encode(head + data).decode())
        assert size is None or (size[0] >= 0 and size[1] >= 0)
    assert estimate_media(Media("image/png", data=data.decode("latin-1")), image_rule("claude")) > 0


@given(st.text(max_size=300), st.text(max_size=300))
def test_a_longer_text_is_never_estimated_shorter(first: str, second: str):
    assert estimate_text(first) <= estimate_text(first + second) <= estimate_text(first) + estimate_text(second) + 1


def test_chinese_takes_about_a_token_a_sign():
    assert 80 <= estimate_text("我" * 100) <= 130
