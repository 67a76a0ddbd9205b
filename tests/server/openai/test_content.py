from __future__ import annotations

from typing import Any

import pytest

from foliot.kernel.messages import Media, Message, Text
from foliot.server.openai.content import chat_conversation, parts_of, response_conversation
from foliot.server.openai.errors import BadRequest

DATA = "aGVsbG8="


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "text", "text": "a"}, Text("a")),
        ({"type": "output_text", "text": "a", "annotations": []}, Text("a")),
        ({"type": "refusal", "refusal": "no"}, Text("no")),
        (
            {"type": "image_url", "image_url": {"url": "https://x.test/a.jpg?b=1"}},
            Media("image/jpeg", url="https://x.test/a.jpg?b=1"),
        ),
        ({"type": "image_url", "image_url": {"url": f"data:image/gif;base64,{DATA}"}}, Media("image/gif", data=DATA)),
        ({"type": "input_image", "image_url": "https://x.test/a"}, Media("image/png", url="https://x.test/a")),
        ({"type": "input_audio", "input_audio": {"data": DATA, "format": "mp3"}}, Media("audio/mpeg", data=DATA)),
        (
            {"type": "file", "file": {"file_data": DATA, "filename": "a.pdf"}},
            Media("application/pdf", data=DATA, name="a.pdf"),
        ),
        (
            {"type": "input_file", "file_data": f"data:text/csv;base64,{DATA}", "filename": "a.csv"},
            Media("text/csv", data=DATA, name="a.csv"),
        ),
        (
            {"type": "input_file", "file_url": "https://x.test/a.pdf"},
            Media("application/pdf", url="https://x.test/a.pdf"),
        ),
    ],
)
def test_parts_are_those_of_the_kernel(part: dict[str, Any], expected: object) -> None:
    assert parts_of([part], "m") == [expected]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (5, "m.content"),
        ([5], "m.content[0]"),
        ([{"type": "text"}], "m.content[0].text"),
        ([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], "m.content[0].image_url.url"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}}], "m.content[0].image_url.url"),
        ([{"type": "image_url", "image_url": "x"}], "m.content[0].image_url"),
        ([{"type": "input_audio", "input_audio": {"data": DATA, "format": "ogg"}}], "m.content[0].input_audio.format"),
        ([{"type": "file", "file": {"file_id": "file-1"}}], "m.content[0].file.file_id"),
        ([{"type": "input_image", "file_id": "file-1"}], "m.content[0].file_id"),
        ([{"type": "file", "file": {}}], "m.content[0].file.file_data"),
    ],
)
def test_what_is_wrong_in_a_part_is_said_with_its_place(content: object, place: str) -> None:
    with pytest.raises(BadRequest) as wrong:
        parts_of(content, "m")

    assert wrong.value.details["param"] == place


def test_what_is_said_now_is_the_last_of_the_user_and_the_rest_is_history() -> None:
    found = chat_conversation(
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
            {"role": "user", "content": [{"type": "text", "text": "d"}]},
        ]
    )
    before, now = found.split("messages")

    assert before == (Message("user", (Text("a"),)), Message("assistant", (Text("b"),)))
    assert now == (Message("user", (Text("c"),)), Message("user", (Text("d"),)))
    assert found.instructions == ["Be brief."]


def test_items_that_were_only_shown_are_passed_over() -> None:
    found = response_conversation(
        [
            {"role": "user", "content": "a"},
            {"type": "reasoning", "summary": []},
            {"type": "mcp_call", "id": "m", "name": "add", "arguments": "{}"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "c"}]},
        ]
    )

    assert [message.text for message in found.messages] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]},
        {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "https://x.test/a"}}]},
        {"role": "user", "content": ""},
        {"role": "user", "content": None},
        {"content": "x"},
    ],
)
def test_messages_that_cannot_be_taken_are_refused(message: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        chat_conversation([message])
