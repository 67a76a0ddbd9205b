from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.errors import InvalidInput
from foliot.models.scripted.model import ScriptedModel, validate_script


@pytest.mark.parametrize(
    ("script", "place", "words"),
    [
        (42, "script", "list of turns"),
        ([], "script", "no turn"),
        ({}, "script", "no turn"),
        ([{"sya": "x"}], "script[0].sya", "did you mean say"),
        ([{}], "script[0]", "does nothing"),
        ([None], "script[0]", "not nothing"),
        (["a", {"say": "b"}, {"call": 7}], "script[2].call", "tool's name"),
        ([{"call": [{"f": [1]}]}], "script[0].call[0].f", "arguments"),
        ([{"call": {"tool": "f", "arg": {}}}], "script[0].call.arg", "did you mean args"),
        ([{"call": [{"tool": "f", "id": "x"}, {"tool": "g", "id": "x"}]}], "script[0].call", "two calls"),
        ([{"say": "x", "after": "soon"}], "script[0].after", "duration"),
        ([{"say": "x", "chunk": 0}], "script[0].chunk", "1 or more"),
        ([{"fail": "boom"}], "script[0].fail", "one of rate_limit"),
        ([{"fail": "auth", "say": "x"}], "script[0].fail", "never played"),
        ([{"say": "x", "times": 2}], "script[0].times", "belongs to `fail`"),
        ([{"say": "x", "stop": "tired"}], "script[0].stop", "one of end"),
        ([{"say": "x", "usage": {"input": 1}}], "script[0].usage.input", "known here: input_tokens"),
        ([{"say": "x", "usage": {"input_tokens": -1}}], "script[0].usage.input_tokens", "0 or more"),
        ([{"say": "x", "when": "always"}], "script[0].when", "mapping of conditions"),
        ([{"say": "x", "when": {"inptu": "a"}}], "script[0].when.inptu", "did you mean input"),
        ([{"say": "x", "when": {"any": [{"step": "2"}]}}], "script[0].when.any[0].step", "whole number"),
        ([{"say": "x", "repeat": 10**9}], "script[0].repeat", "from 1 to"),
        ({"turns": ["x"], "lop": True}, "script.lop", "did you mean loop"),
        ({"turns": "x"}, "script.turns", "list of turns"),
        ({"turns": ["x"], "count": "words"}, "script.count", "conversation"),
        ({"turns": [1]}, "script.turns[0]", "mapping"),
        ({"otherwise": {"say": "x", "when": {"step": 1}}}, "script.otherwise.when", "no condition"),
        ([{"match": {"step": 1}, "turns": ["x"]}], "script[0].match.step", "no meaning"),
        ([{"turns": ["x"]}, {"turns": [{"sya": 1}]}], "script[1].turns[0].sya", "did you mean"),
    ],
)
def test_a_mistake_is_named_with_its_place(script: Any, place: str, words: str):
    problems = validate_script(script)
    assert any(where == place and words in message for where, message in problems), problems


def test_all_mistakes_are_reported_at_once_when_the_model_is_built():
    with pytest.raises(InvalidInput) as caught:
        ScriptedModel([{"sya": 1}, {"call": 7}])
    assert "script[0].sya" in caught.value.message
    assert "script[1].call" in caught.value.message
    assert len(caught.value.details["problems"]) == 3


def test_what_json_cannot_hold_is_found_when_the_script_is_loaded():
    places = [place for place, _ in validate_script([{"say": object()}, {"call": {"f": {"a": "{input}", "b": {1j}}}}])]
    assert places == ["script[0].say", "script[1].call.f"]


def test_a_list_that_holds_itself_is_refused():
    loop: list[Any] = []
    loop.append({"say": loop})
    assert validate_script(loop)


json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["say", "call", "fail", "when", "turns", "match", "usage", "tool", "any", "not", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(json)
def test_no_script_whatsoever_breaks_the_reader(script: Any):
    problems = validate_script(script)
    assert all(where.startswith("script") and message for where, message in problems)
    if not problems:
        ScriptedModel(script)
