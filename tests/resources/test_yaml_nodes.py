from __future__ import annotations

from typing import Any

import pytest

from foliot.resources.syntax.places import FileLimits
from foliot.resources.syntax.yaml import events_of, parse_yaml, pure_python_events


@pytest.fixture(params=[events_of, pure_python_events], ids=["libyaml", "pure"])
def parse(request: pytest.FixtureRequest):
    """Every rule holds for both parsers."""

    def parse_with(text: str, limits: FileLimits | None = None):
        return parse_yaml(text, limits or FileLimits(), events=request.param)

    return parse_with


def values(parsed: Any) -> list[Any]:
    return [document.value for document in parsed.documents]


def flaws(parsed: Any) -> list[tuple[int, int, str]]:
    return [(flaw.line, flaw.column, flaw.message) for flaw in parsed.flaws]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("Null", None),
        ("12", 12),
        ("-12", -12),
        ("+12", 12),
        ("0777", 777),
        ("0o17", 15),
        ("0xfF", 255),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("-1e3", -1000.0),
        # what YAML 1.1 took for something else is text
        ("yes", "yes"),
        ("No", "No"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("1:30", "1:30"),
        ("12:30:45", "12:30:45"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("-0x1", "-0x1"),
        ("tRue", "tRue"),
        ("=", "="),
        ('"12"', "12"),
        ("'true'", "true"),
        ("!!str 12", "12"),
        ("! 12", "12"),
        ("!!int 12", 12),
        ("!!float 12", 12.0),
        ("12345678901234567890123", 12345678901234567890123),
        ('"\\u0041\\x42"', "AB"),
    ],
)
def test_words_mean_what_yaml_1_2_says(parse, written: str, meant: object):
    [value] = values(parse(f"key: {written}\n"))

    assert value == {"key": meant}
    assert type(value["key"]) is type(meant)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: .nan\n", (1, 4, ".nan is not a number that can be stored")),
        ("a: -.INF\n", (1, 4, "-.INF is not a number that can be stored")),
        ("a: 1e999\n", (1, 4, "this number is too large")),
        (f"a: {'9' * 5000}\n", (1, 4, "the number has 5,000 digits; at most 1,000 are read")),
        (f"a: 0x{'9' * 5000}\n", (1, 4, "the number has 5,002 digits; at most 1,000 are read")),
        ('a: "x\\0"\n', (1, 4, "the text holds a NUL character, which cannot be stored")),
        ("a: !!int x\n", (1, 4, "the value is not what its tag !!int says")),
        ("a: !!int true\n", (1, 4, "the value is not what its tag !!int says")),
        ("a: !!python/object/apply:os.system [id]\n", (1, 4, "tags are not allowed in a manifest")),
        ("a: !Ref x\n", (1, 4, "tags are not allowed in a manifest")),
        ("a: !!binary aGk=\n", (1, 4, "tags are not allowed in a manifest")),
        ("!!set {a, b}\n", (1, 1, "tags are not allowed in a manifest")),
        ("a: !x!y z\n", (1, 4, "tags are not allowed in a manifest")),
    ],
)
def test_values_that_cannot_be_kept_are_refused_at_their_place(parse, text: str, place: tuple[int, int, str]):
    assert flaws(parse(text)) == [place]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: b\n\tc: d\n", (2, 1, "a tab is used for indentation; YAML allows only spaces")),
        ("a:\n\t- b\n", (2, 1, "a tab is used for indentation; YAML allows only spaces")),
        ("a:\n  b: 1\n\tc: 2\n", (3, 1, "a tab is used for indentation; YAML allows only spaces")),
        ("a: b: c\n", (1, 5, "a ':' is not expected here")),
        ("a: 'x\nb: 1\n", (1, 4, "a quoted text is not closed")),
        ("a: [1, 2\nb: c\n", (2, 2, "the list opened with [ is not closed, or a comma is missing")),
        ("a: {b: 1\n", (1, 4, "the mapping opened with { is not closed, or a comma is missing")),
        ("a:\n  - b\n c\n", (3, 2, "this line does not fit the indentation above it")),
        ("a: @b\n", (1, 4, "a text cannot start with '@' without quotes")),
        ("a: `b`\n", (1, 4, "a text cannot start with '`' without quotes")),
        ("a: %b\n", (1, 4, "a text cannot start with '%' without quotes")),
        ('a: "\\q"\n', (1, 5, "this escape is not known in double-quoted text")),
        (
            "a: *\n",
            (
                1,
                5,
                "a name of an anchor or alias is missing or has other characters than letters, digits, '-' and '_'",
            ),
        ),
        ("]\n", (1, 1, "a value is missing here")),
        ("a: - b\n", (1, 4, "a list cannot start here")),
        ("a: \x01\n", (1, 4, "the control character U+0001 is not allowed in a manifest")),
        ("a: \x7f\n", (1, 4, "the control character U+007F is not allowed in a manifest")),
        ("a: 1\nb: \0\n", (2, 4, "this is a binary file, not text (it holds a NUL byte)")),
        ("a: \ud800\n", (1, 4, "the control character U+D800 is not allowed in a manifest")),
    ],
)
def test_syntax_errors_are_told_in_human_words(text: str, place: tuple[int, int, str]):
    parsed = parse_yaml(text)

    assert values(parsed) == []
    assert flaws(parsed) == [place]


def test_the_pure_parser_tells_syntax_errors_in_the_same_words():
    for text in (
        "a: b\n\tc: d\n",
        "a: b: c\n",
        "a: 'x\n",
        "a: [1\nb: c\n",
        "a: {b: 1\n",
        "a:\n  - b\n c\n",
        "a: [\n---\n",
    ):
        assert flaws(parse_yaml(text, events=pure_python_events)) == flaws(parse_yaml(text)), text


def test_text_behind_the_end_of_a_document_leaves_the_document():
    parsed = parse_yaml("k: v\n...\nfoo\n")

    assert values(parsed) == [{"k": "v"}]
    assert flaws(parsed) == [(3, 1, "text behind the end of a document")]


def test_an_open_bracket_noticed_later_says_where_it_began(parse):
    [flaw] = parse("a: [1,\n  2\nb: c\n").flaws

    assert flaw.line == 3
    assert flaw.hint == "it began in line 1, column 4; add the ] or the comma"


def test_duplicate_keys_name_both_places_and_the_first_value_stays(parse):
    parsed = parse("a: 1\nb: {c: 1, d: 2, c: 3}\n'a': {x: y}\n")

    assert values(parsed) == [{"a": 1, "b": {"c": 1, "d": 2}}]
    assert [(f.line, f.column, f.message, f.hint, f.path) for f in parsed.flaws] == [
        (2, 17, "the key 'c' is given twice", "it is first given in line 2, column 5; remove one of them", ("b", "c")),
        (3, 1, "the key 'a' is given twice", "it is first given in line 1, column 1; remove one of them", ("a",)),
    ]


def test_keys_that_are_not_text_are_refused_with_what_to_write(parse):
    parsed = parse("1: a\ntrue: b\n~: c\n'2': d\n? [x]\n: e\n")

    assert [(f.line, f.column, f.message, f.hint) for f in parsed.flaws] == [
        (1, 1, "the key 1 is a number, not text", 'quote it: "1"'),
        (2, 1, "the key true is true or false, not text", 'quote it: "true"'),
        (3, 1, "the key ~ is null, not text", 'quote it: "~"'),
        (5, 3, "a key must be a text", "a list, a mapping or an alias to one cannot be a key"),
    ]


def test_aliases_are_copies_of_what_they_repeat(parse):
    [value] = values(parse("a: &x {b: [1, &y two]}\nc: *x\nd: *y\n*y : key\n"))

    assert value == {"a": {"b": [1, "two"]}, "c": {"b": [1, "two"]}, "d": "two", "two": "key"}
    assert value["a"] is not value["c"]
    assert value["a"]["b"] is not value["c"]["b"]


def test_an_anchor_given_again_means_the_newer_value(parse):
    assert values(parse("a: &x 1\nb: *x\nc: &x 2\nd: *x\n")) == [{"a": 1, "b": 1, "c": 2, "d": 2}]


def test_anchors_do_not_reach_into_the_next_document(parse):
    parsed = parse("a: &x 1\n---\nb: *x\n")

    assert flaws(parsed) == [(3, 4, "this alias refers to nothing in this document")]


def test_a_value_cannot_contain_itself(parse):
    assert flaws(parse("a: &x\n  b: *x\n")) == [(2, 6, "this alias refers to the value it stands in")]


def test_the_name_of_an_unknown_alias_or_tag_is_not_repeated_since_it_may_be_a_password(parse):
    parsed = parse("password: *hunter2\ntoken: !hunter2 x\nkey: !!int hunter2\n")

    assert len(parsed.flaws) == 3
    assert not any("hunter2" in f"{flaw.message}{flaw.hint}" for flaw in parsed.flaws)


def test_merge_keys_fill_in_what_is_missing(parse):
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  <<: [*a, *b]\n  x: 3\nd: {<<: *b}\ne: {'<<': text}\n"

    [value] = values(parse(text))

    assert value["c"] == {"x": 3, "y": 1, "z": 2}
    assert value["d"] == {"y": 2, "z": 2}
    assert value["e"] == {"<<": "text"}


def test_merging_what_is_not_a_mapping_is_refused(parse):
    parsed = parse("a: {<<: text}\nb: {<<: [{x: 1}, 2]}\nc: {<<: {x: 1}, <<: {y: 2}}\n")

    assert flaws(parsed) == [
        (1, 9, "<< merges only mappings"),
        (2, 18, "<< merges only mappings"),
        (3, 17, "the merge key << is given twice in one mapping"),
    ]


def test_positions_lead_to_keys_and_values_and_else_to_the_nearest_that_is_there(parse):
    [first, second] = parse(
        "# comment\n\na:\n  - b: 1\n    c: [x,\n      y]\n---\nd: &d {e: 1}\nf: *d\ng: {<<: *d}\n"
    ).documents

    assert first.line == 3
    assert first.places.of_key(("a", 0, "c")) == (5, 5)
    assert first.places.of_value(("a", 0, "c")) == (5, 8)
    assert first.places.of_value(("a", 0, "c", 1)) == (6, 7)
    assert first.places.of_value(("a", 0, "missing", 3)) == (4, 5)
    assert first.places.of_value(("a", "wrong", 7)) == (3, 1)
    assert first.places.of_value(("a", 9)) == (3, 1)
    assert second.line == 8
    assert second.places.of_value(("f",)) == (9, 4)
    assert second.places.of_value(("f", "e")) == (8, 11)
    assert second.places.of_key(("g", "e")) == (8, 8)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_lines_are_counted_whatever_ends_them(parse, newline: str):
    [document] = parse(newline.join(["a: 1", "b:", "  - é", "  - c: d", ""])).documents

    assert document.places.of_value(("b", 1, "c")) == (4, 8)


def test_reading_goes_on_behind_a_broken_document(parse):
    text = "---\na: [\n---\nb: 1\n--- @\n---\nc: 'x\n---\nd: 1\nd: 2\n"

    parsed = parse(text)

    assert values(parsed) == [{"b": 1}, {"d": 1}]
    assert [flaw.line for flaw in parsed.flaws] == [2, 5, 7, 10]
    assert parsed.documents[1].places.of_value(("d",)) == (9, 4)


def test_a_file_of_nothing_but_broken_documents_is_not_reported_without_end(parse):
    parsed = parse("---\na: [\n" * 1000)

    assert len(parsed.flaws) == 21
    assert parsed.flaws[-1].message == "more problems follow"


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n", "---\n---\n# x\n---\n"])
def test_nothing_said_is_no_document(parse, text: str):
    parsed = parse(text)

    assert parsed.documents == []
    assert parsed.flaws == []


def test_null_that_is_written_is_a_document(parse):
    assert values(parse("~\n")) == [None]


@pytest.mark.parametrize("text", ["[" * 65, "- " * 65 + "x", "{a: " * 65, "? " * 65 + "x", "[" * 100_000])
def test_nesting_is_limited(text: str):
    [flaw] = parse_yaml(text).flaws

    assert flaw.message == "values are nested more than 64 deep"


def test_nesting_up_to_the_limit_is_read(parse):
    assert parse("[" * 64 + "]" * 64).flaws == []


def test_aliases_cannot_nest_beyond_the_limit(parse):
    text = "a: &a [[[x]]]\nb: &b [[*a]]\nc: [[*b]]\n"

    assert parse(text, FileLimits(depth=8)).flaws == []
    assert flaws(parse(text, FileLimits(depth=7))) == [(3, 6, "values are nested more than 7 deep")]


def test_an_alias_bomb_is_refused_before_it_grows(parse):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]

    [flaw] = parse("\n".join(lines)).flaws

    assert flaw.message == "aliases repeat more than a manifest may hold"


def test_few_aliases_of_one_long_text_are_a_bomb_as_well(parse):
    text = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 50)}]\n"

    [flaw] = parse(text).flaws

    assert flaw.message == "aliases repeat more than a manifest may hold"


def test_the_number_of_values_documents_and_flaws_is_limited(parse):
    for text in ("[0, 0, 0, 0]", "[a, b, c, d]", "{a: b, c: d}", "- a\n- b\n- c\n- d", "{a: &x {}, b: *x}"):
        assert len(parse(text, FileLimits(nodes=4)).flaws) == 1, text
        assert parse(text, FileLimits(nodes=5)).flaws == [], text
    assert flaws(parse("[0, 0, 0, 0]", FileLimits(nodes=4))) == [(1, 11, "the file holds more than 4 values")]
    assert flaws(parse("--- a\n--- b\n--- c\n", FileLimits(documents=2))) == [
        (3, 1, "the file has more than 2 documents")
    ]
    parsed = parse("a: 1\n" * 10, FileLimits(flaws=3))
    assert [f.message for f in parsed.flaws] == ["the key 'a' is given twice"] * 3 + ["more problems follow"]


def test_tag_lines_are_counted_before_the_parser_compares_each_with_all_others():
    text = "".join(f"%TAG !a{number}! tag:x\n" for number in range(200_000)) + "---\na: 1\n"

    assert flaws(parse_yaml(text)) == [(17, 1, "tags are not allowed in a manifest")]
    assert values(parse_yaml("%TAG !a! tag:x\n---\na: '%TAG'\n")) == [{"a": "%TAG"}]
