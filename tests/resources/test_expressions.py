"""What an expression reads is found in its tree: wherever it stands, however it is spelt, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.resources.expressions import reads_of
from foliot.resources.schema_fields import impossible

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "category": {"enum": ["bug", "idea"]},
        "score": {"enum": [1, 2]},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        "open": {"type": "object"},
        "of": {"$ref": "#/$defs/of"},
        "either": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"a": {}}}]},
    },
    "$defs": {"of": {"type": "object", "properties": {"kind": {"type": "boolean"}}}},
}

NEVER = {
    'value.categroy == "bug"': "category",
    "has(value.categroy)": "category",
    "!has(value.categroy)": "category",
    "value['categroy'] == 'bug'": "category",
    "'categroy' in value": "category",
    "value.category == 'bgu'": "bug",
    "'bgu' == value.category": "bug",
    "value.category in ['bug', 'bgu']": "bug",
    "true ? value.categroy == 'x' : false": "category",
    "value.category // value.x\n == 'bgu'": "bug",
    "value.score in [1, 3]": "1, 2",
    "'rde' in value.tags": "red",
    "value.tags.exists(t, t == 'rde')": "red",
    "value.tags[0] == 'rde'": "red",
    "value.lines.exists(line, line.skew == 'a')": "sku",
    "size(value.lines.filter(line, line.sku == 'a' && has(line.skew))) > 0": "sku",
    "value.of.knid": "kind",
    "value.either.b == 1": "it has a",
    "value.of.kind == 'true'": "of type boolean",
    "value.lines.exists(line, line.sku in [5])": "of type string",
    "value.score == '1'": "of type number",
    "value.lines == 'x'": "of type array",
    "value.lines.exists(line, line.sku == 5)": "of type string",
    "{'a': value.categroy}['a'] == 'x'": "category",
    "size([value.categroy]) == 1": "category",
}


@pytest.mark.parametrize(("text", "meant"), NEVER.items())
def test_what_can_never_be_is_found_wherever_it_stands(text: str, meant: str) -> None:
    found = [each for read in reads_of(text) for each in impossible(read, SCHEMA, "it")]
    assert [meant in (hint or "") for _, hint in found] == [True], found


@pytest.mark.parametrize(
    "text",
    [
        "value.category == 'bug' || value.category in ['idea'] && 'category' in value",
        "value.score == 1 || value.score == 2.0",
        "'blue' in value.tags && value.tags.all(t, t != 'x')",
        "value.lines.exists(value, value.sku == 'a')",  # the variable of the loop hides that of the condition
        "value.open.anything == 'x' && value.open['a'].b",
        "value.of.kind == true && value.lines[0].sku == 'a' && value.either.a == 1",
        "value.either == null",
        "output.contains('value.categroy')  // value.categroy",
        'output == """value.categroy"""',
        "input.categroy == 'x'",
        "value.category == input.category",
        "[{'categroy': 1}].exists(each, each.categroy == 1)",
    ],
)
def test_what_can_be_is_left_alone(text: str) -> None:
    assert [each for read in reads_of(text) if read.root == "value" for each in impossible(read, SCHEMA, "it")] == []


TWO = {"anyOf": [{"properties": {"kind": {"const": "bug"}, "severity": {}}}, {"properties": {"votes": {}}}]}
SCORED = {"type": "object", "properties": {"score": {"enum": [0.5, 1.0, 2]}, "kind": {"enum": ["bug", "idea"]}}}


@pytest.mark.parametrize(
    "schema",
    [
        SCORED | TWO,
        SCORED | {"oneOf": TWO["anyOf"]},
        SCORED | TWO | {"oneOf": [{"required": ["score"]}, {"required": ["votes"]}]},
        SCORED | {"$ref": "#/$defs/two", "$defs": {"two": TWO}},
        {"anyOf": [SCORED | TWO, {"type": "null"}]},
    ],
)
def test_parts_of_a_schema_count_together(schema: dict[str, Any]) -> None:
    def asked(text: str) -> list[str | None]:
        return [hint for read in reads_of(text) for _, hint in impossible(read, schema, "it")]

    assert asked("value.score > 0.7 && value.score == 1.0 && value.score in [2, 2.0, 1, 0.5]") == []
    assert asked("value.kind == 'bug' && value.severity > 1 && has(value.votes)") == []
    assert asked("value.score == 3.0") == ["it is one of 0.5, 1, 2"]
    assert asked("value.vote > 1") == ["did you mean votes?"]


def test_a_schema_of_a_million_alternatives_is_left_alone() -> None:
    parts = {f"a{level}": {"anyOf": [{"$ref": f"#/$defs/a{level + 1}"}] * 100} for level in range(3)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**parts, "a3": {"properties": {"a": {}}}}}
    assert [each for read in reads_of("value.b == 1") for each in impossible(read, schema, "it")] == []


def test_nothing_is_said_of_a_field_that_two_parts_describe() -> None:
    inner = [{"properties": {"of": {"properties": {"a": {}}}}}]
    schema = {"type": "object", "properties": {"of": {"properties": {"b": {}}}}, "anyOf": inner}
    assert [each for read in reads_of("value.of.a == value.of.b") for each in impossible(read, schema, "it")] == []


@pytest.mark.parametrize("keyword", ["allOf", "not", "if", "patternProperties", "additionalProperties"])
def test_a_schema_that_leaves_it_open_rules_out_nothing(keyword: str) -> None:
    more: dict[str, Any] = {"allOf": [{}], "patternProperties": {"x": {}}, "additionalProperties": {"type": "string"}}
    schema = {**SCHEMA, keyword: more.get(keyword, {"const": 1})}
    assert [each for read in reads_of("value.categroy == 'x'") for each in impossible(read, schema, "it")] == []


@given(st.text(st.sampled_from("value.args[]'\"()&|!=in ae5,?:{}\n\\/"), max_size=60))
def test_every_text_has_an_answer(text: str) -> None:
    assert isinstance(reads_of(text), tuple)


@given(st.text(min_size=1, max_size=30))
def test_a_literal_is_read_as_it_is_written(word: str) -> None:
    quoted = '"' + "".join(f"\\U{ord(each):08x}" for each in word) + '"'
    if "\x00" not in word and not any(0xD800 <= ord(each) < 0xE000 for each in word):
        assert [read.wanted for read in reads_of(f"value.a == {quoted}")] == [(word,)]
