from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.kernel.messages import ModelSettings
from foliot.kernel.run.spec import RunSpec, encode_spec
from foliot.server.openai.errors import BadRequest
from foliot.server.openai.requests import adjusted, check_target, read_chat, read_response
from foliot.server.runs.targets import WorkTarget

SAID = [{"role": "user", "content": "hello"}]


def chat(**members: Any) -> bytes:
    return json.dumps({"model": "m", "messages": SAID, **members}).encode()


def test_an_agent_never_gets_more_room_than_it_had() -> None:
    spec = RunSpec("a", "m", settings=ModelSettings(max_output_tokens=100, temperature=0.5), system="Be kind.")

    more = adjusted(read_chat(chat(max_tokens=500)), spec)
    less = adjusted(read_chat(chat(max_completion_tokens=50, temperature=1, stop="END")), spec)

    assert more.settings == spec.settings
    assert (less.settings.max_output_tokens, less.settings.temperature, less.settings.stop) == (50, 1, ("END",))


def test_what_is_not_said_changes_nothing() -> None:
    spec = RunSpec("a", "m", settings=ModelSettings(top_p=0.5, seed=3), system="Be kind.")

    assert adjusted(read_chat(chat(store=True, service_tier="auto", parallel_tool_calls=None)), spec) == spec


def test_what_is_said_about_calls_and_effort_is_passed_on_as_it_is() -> None:
    tool = {"type": "function", "function": {"name": "look"}}
    choice = {"type": "function", "function": {"name": "look"}}
    order = read_chat(chat(tools=[tool], tool_choice=choice, parallel_tool_calls=False, reasoning_effort="xhigh"))
    settings = adjusted(order, RunSpec("a", "m")).settings

    assert (settings.tool_choice, settings.parallel_tool_calls, settings.reasoning_effort) == ("look", False, "xhigh")


def test_instructions_stand_behind_the_prompt() -> None:
    spec = RunSpec("a", "m", system="Be kind.")
    body = json.dumps({"model": "m", "input": "x", "instructions": "Be brief."}).encode()

    assert adjusted(read_response(body), spec).system == "Be kind.\n\nBe brief."


def test_a_system_takes_no_settings() -> None:
    system = WorkTarget("system", {"kind": "AgentSystem", "metadata": {"name": "s"}, "spec": {}})

    check_target(read_chat(chat()), system)
    for order in (chat(temperature=1), chat(response_format={"type": "json_object"})):
        with pytest.raises(BadRequest):
            check_target(read_chat(order), system)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"model": "a\x00b"}, "model"),
        ({"model": "m" * 600}, "model"),
        ({"user": "a\x00"}, "user"),
        ({"metadata": {"k": "\x00"}}, "metadata.k"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
        ({"seed": 2**70}, "seed"),
        ({"max_tokens": 2**40}, "max_completion_tokens"),
        ({"top_p": -1}, "top_p"),
        ({"stop": 5}, "stop"),
        ({"stream_options": []}, "stream_options"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}},
            "response_format.schema",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(members: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read_chat(chat(**members))

    assert refused.value.details["param"] == param


def test_a_missing_member_is_named() -> None:
    with pytest.raises(BadRequest) as refused:
        read_chat(b'{"messages": []}')

    assert refused.value.details["param"] == "model"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
PART = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["text", "image_url", "input_image", "file", "input_file", "input_audio", "refusal", "x"]
        )
    },
    optional={
        "text": JSON,
        "image_url": JSON | st.fixed_dictionaries({"url": st.text(max_size=9)}),
        "file": JSON,
        "file_data": JSON,
        "input_audio": JSON | st.fixed_dictionaries({"data": JSON, "format": JSON}),
    },
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "x"]) | JSON},
    optional={"content": JSON | st.lists(PART, max_size=3), "tool_calls": JSON, "type": JSON},
)
BODY = st.fixed_dictionaries(
    {"model": st.text(max_size=5) | JSON},
    optional={
        "messages": st.lists(MESSAGE, max_size=4) | JSON,
        "input": st.lists(MESSAGE, max_size=4) | JSON,
        "response_format": JSON,
        "text": JSON,
        "max_tokens": JSON,
        "seed": JSON,
        "stop": JSON,
        "metadata": JSON,
        "conversation": JSON,
        "stream": JSON,
    },
)


@given(BODY)
def test_whatever_is_sent_is_an_order_that_can_be_kept_or_a_bad_request(body: dict[str, Any]) -> None:
    for read in (read_chat, read_response):
        with suppress(BadRequest):
            encode_spec(adjusted(read(json.dumps(body).encode()), RunSpec("a", "m")))


@given(st.binary(max_size=80))
def test_whatever_bytes_are_sent_are_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read_chat(body)
