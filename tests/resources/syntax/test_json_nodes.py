from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foliot.resources.syntax import json_nodes
from foliot.resources.syntax.json_nodes import looks_like_json, parse_json
from foliot.resources.syntax.places import LIMITS, FileLimits, Parsed

texts = st.text(st.characters(exclude_categories=("Cs", "Cc")))
trees = st.recursive(
    texts | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=15,
)


@given(trees, st.sampled_from([None, 2, "\t"]), st.booleans())
def test_reads_what_the_standard_library_writes(tree: object, indent: str | int | None, ascii_only: bool):
    parsed = parse_json(json.dumps(tree, indent=indent, ensure_ascii=ascii_only))

    assert parsed.flaws == []
    assert [document.value for document in parsed.documents] == [tree]


def test_keeps_positions_with_tabs_as_white_space():
    [document] = parse_json('{\n\t"a":\t[1,\r\n\t\t{"b": "x"}]}').documents

    assert document.places.of_key(("a",)) == (2, 2)
    assert document.places.of_value(("a",)) == (2, 7)
    assert document.places.of_key(("a", 1, "b")) == (3, 4)
    assert document.places.of_value(("a", 1, "b")) == (3, 9)


def test_values_in_a_row_are_documents():
    assert [d.value for d in parse_json('{"a": 1}{"b": 2}\n{"c": 3}\n').documents] == [{"a": 1}, {"b": 2}, {"c": 3}]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"a": 1,\n "a": 2}', (2, 2, "the key 'a' is given twice")),
        ('{"a": 1,}', (1, 8, "a ',' before '}' is not allowed in JSON")),
        ("[1, ]", (1, 3, "a ',' before ']' is not allowed in JSON")),
        ('{"a" 1}', (1, 6, "a ':' is missing behind the key")),
        ('{"a": 1 "b": 2}', (1, 9, "a ',' or '}' is missing here")),
        ("{a: 1}", (1, 2, "a key in double quotes is missing here")),
        ('{"a": hunter2}', (1, 7, "this word is not a JSON value")),
        ("{\"a\": 'x'}", (1, 7, "JSON text needs double quotes, not single ones")),
        ('{"a": // no\n 1}', (1, 7, "JSON has no comments")),
        ('{"a": }', (1, 7, "a value is missing here")),
        ('{"a": "x', (1, 7, "a quoted text is not closed")),
        ('{"a": "x\ny"}', (1, 9, "a line break or tab inside a quoted text is not allowed in JSON")),
        ('{"a": "\\q"}', (1, 8, "this escape is not known in JSON")),
        ('{"a": "\\ud800"}', (1, 7, "the text holds half of a surrogate pair, which is not a character")),
        ('{"a": "\\u0000"}', (1, 7, "the text holds a NUL character, which cannot be stored")),
        ('{"a": 01}', (1, 7, "this is not a number JSON knows")),
        ('{"a": 1e999}', (1, 7, "this number is too large")),
        ('{"a": NaN}', (1, 7, "this word is not a JSON value")),
        ('{"a": [1, 2', (1, 7, "the list opened with [ is not closed")),
        ('{"a": {"b": 2}', (1, 1, "the object opened with { is not closed")),
        ('{"a": "\x01"}', (1, 8, "the control character U+0001 is not allowed in a manifest")),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, place: tuple[int, int, str]):
    [flaw] = parse_json(text).flaws

    assert (flaw.line, flaw.column, flaw.message) == place
    assert "hunter2" not in str(flaw)


def test_the_first_of_two_equal_keys_stays():
    parsed = parse_json('{"x": {"a": 1, "a": {"a": 2}}}')

    assert parsed.documents[0].value == {"x": {"a": 1}}
    assert parsed.flaws[0].path == ("x", "a")
    assert parsed.flaws[0].hint == "it is first given in line 1, column 8; remove one of them"


def test_limits_hold():
    assert parse_json("[" * 64 + "]" * 64).flaws == []
    assert parse_json("[" * 100_000).flaws[0].message == "values are nested more than 64 deep"
    assert parse_json("[1, 2, 3]", FileLimits(nodes=3)).flaws[0].message == "the file holds more than 3 values"
    assert parse_json("1 2 3", FileLimits(documents=2)).flaws[0].message == "the file has more than 2 documents"
    many = '{"a": 1' + ', "a": 1' * 10 + "}"
    assert [f.message for f in parse_json(many, FileLimits(flaws=2)).flaws][-1] == "more problems follow"


@given(st.text(st.sampled_from('{}[]",:0-1.eE+truefalsn\\u \n\t')))
def test_nothing_makes_it_raise_and_it_agrees_with_the_standard_library_on_what_is_json(text: str):
    parsed = parse_json(text)

    try:
        value = json.loads(text)
    except ValueError:
        assert parsed.flaws or len(parsed.documents) != 1
    else:
        assert parsed.flaws or [d.value for d in parsed.documents] == [value]


def test_what_looks_like_json_begins_with_a_brace():
    assert looks_like_json(' \n\t{"a"')
    assert not looks_like_json("a: {}")
    assert not looks_like_json("")


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_documents_may_be_separated_as_in_yaml(ending: str) -> None:
    parsed = parse_json(ending.join(["---", '{"a": 1}', "--- ", "", "---", '{"a": -2}', "---", ""]))

    assert parsed.flaws == []
    assert [document.value for document in parsed.documents] == [{"a": 1}, {"a": -2}]
    assert parsed.documents[1].places.of_value(("a",))[0] == 6


@pytest.mark.parametrize(
    "text", ['{"a": 1} ---\n{"a": 2}', '{"a":\n---\n1}', '{"a": 1}\n--- x\n{}', '{"a": 1}\n----\n{}']
)
def test_what_separates_nothing_is_a_flaw(text: str) -> None:
    assert parse_json(text).flaws


def told(parsed: Parsed) -> list[object]:
    return [(d.value, str(d.value), d.rewritten, d.places.found[0]) for d in parsed.documents]


@given(st.text(st.sampled_from('{}[]",:0-1.eE+truefalsn\\u \n\t')) | trees.map(json.dumps))
@example('{"a": 1.10, "b": [-0, 1e5, 100000000000000000000000]}')
@example('{"a": {"b": 1}, "a": 2}')
def test_the_decoder_and_the_scanner_read_the_same(text: str) -> None:
    scanned = json_nodes._scanned(text, LIMITS)  # pyright: ignore[reportPrivateUsage] - what is compared with
    parsed = parse_json(text)

    assert parsed.flaws == scanned.flaws
    assert told(parsed) == told(scanned)


def test_places_of_a_sound_text_are_found_when_they_are_asked_for() -> None:
    [document] = parse_json('{"a":\n {"b": 0.5}}').documents

    assert "found" not in vars(document.places)
    assert document.places.of_value(("a", "b")) == (2, 8)
