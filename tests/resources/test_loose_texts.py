"""Text that was written without quotes is stored as it was written, or refused with the quotes to write."""

from __future__ import annotations

import base64
import random
from typing import Any

import pytest

from foliot.resources.kinds import KINDS
from foliot.resources.reader import parse_text
from foliot.resources.schema import preferred_schema
from foliot.resources.syntax.loose_texts import with_source_texts
from foliot.resources.syntax.yaml import parse_yaml

# Words that YAML takes for something else than text, and words that other readers of YAML do.
NUMBERS = ["0042", "12e4", "1.10", "0e12345", "+1", "-0", "1.", ".5", "0x1F", "0o17", "00", "1e-7", "9" * 30, "8080"]
BOOLEANS = ["true", "TRUE", "False"]
TEXTS = ["yes", "No", "on", "off", "2024-01-01", "2024-01-01T10:00:00Z", "1_000", "1:30", "0b11", "0777x", "1.2.3"]


def values_of(text: str) -> dict[str, Any]:
    bundle = parse_text(text)
    assert bundle.findings == []
    return bundle.documents[0]


@pytest.mark.parametrize("word", [*NUMBERS, *BOOLEANS, *TEXTS])
def test_a_secret_is_what_was_written(word):
    document = values_of(f"kind: Secret\nmetadata: {{name: s}}\nspec: {{stringData: {{pin: {word}}}}}")

    assert base64.b64decode(document["spec"]["data"]["pin"]).decode() == word


PLACES = {
    "labels": ("kind: AgentRole\nmetadata: {name: a, labels: {x: WORD}}", ("metadata", "labels", "x")),
    "annotations": ("kind: AgentRole\nmetadata: {name: a, annotations: {x: WORD}}", ("metadata", "annotations", "x")),
    "input": ("kind: Task\nmetadata: {name: a}\nspec: {agent: a, input: {x: WORD}}", ("spec", "input", "x")),
    "env": (
        "kind: McpServer\nmetadata: {name: a}\nspec: {transport: stdio, command: c, env: [{name: X, value: WORD}]}",
        ("spec", "env", 0, "value"),
    ),
    "args": (
        "kind: McpServer\nmetadata: {name: a}\nspec: {transport: stdio, command: c, args: [-p, WORD]}",
        ("spec", "args", 1),
    ),
    "headers": (
        "kind: Tool\nmetadata: {name: a}\nspec: {endpoint: http://x.example, http: {headers: {X: WORD}}}",
        ("spec", "http", "headers", "X"),
    ),
    "route": (
        "kind: AgentSystem\nmetadata: {name: a}\nspec: {graph: {a: {edges: [{to: b, when: {x: WORD}}]}}}",
        ("spec", "graph", "a", "edges", 0, "when", "x"),
    ),
    "user": (
        "kind: Budget\nmetadata: {name: a}\nspec: {scope: {user: WORD}, limit: {tokens: 1}}",
        ("spec", "scope", "user"),
    ),
    "options": (
        "kind: ModelEndpoint\nmetadata: {name: a}\nspec: {default_model: m, options: {x: WORD}}",
        ("spec", "options", "x"),
    ),
    "anchor": (
        "kind: Task\nmetadata: {name: a, labels: {x: &v WORD}}\nspec: {agent: a, input: {y: *v}}",
        ("spec", "input", "y"),
    ),
    "merge": (
        "kind: Task\nmetadata: {name: a, labels: &l {x: WORD}}\nspec: {agent: a, input: {<<: *l}}",
        ("spec", "input", "x"),
    ),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("word", ["0042", "12e4", "1.10", "0x1F", "TRUE", "yes"])
def test_every_place_of_loose_text_keeps_the_word(place, word):
    text, path = PLACES[place]
    value: Any = values_of(text.replace("WORD", word))
    for step in path:
        value = value[step]

    assert value == word


def test_a_list_of_resources_and_a_json_file_keep_it_too():
    task = '{"kind": "Task", "metadata": {"name": "a"}, "spec": {"agent": "a", "input": {"v": 1.10}}}'
    text = f'{{"kind": "List", "items": [{task}]}}'

    assert values_of(text)["spec"]["input"] == {"v": "1.10"}
    assert parse_text(text, "x.json").documents[0]["spec"]["input"] == {"v": "1.10"}


@pytest.mark.parametrize("word", ["007", "1.10", "TRUE"])
@pytest.mark.parametrize("field", ["agent", "lane", "idempotency_key"])
def test_a_strict_text_is_refused_with_the_quotes_to_write(word, field):
    bundle = parse_text(f"kind: Task\nmetadata: {{name: a}}\nspec:\n  system: s\n  {field}: {word}")

    assert any(f.line == 5 and f'put it in quotes: "{word}"' in str(f) for f in bundle.findings)


@pytest.mark.parametrize("word", ["~", "null", "Null"])
def test_null_where_a_text_belongs_is_refused_with_the_quotes_to_write(word):
    bundle = parse_text(f"kind: Task\nmetadata: {{name: a}}\nspec: {{agent: a, input: {{x: {word}}}}}")

    assert f'put it in quotes: "{word}"' in str(bundle.findings[0])


def test_what_may_be_a_secret_is_not_repeated():
    bundle = parse_text("kind: Secret\nmetadata: {name: s}\nspec: {data: {pin: 004200}, stringData: {x: 1e999}}")

    assert len(bundle.findings) == 2
    assert "004200" not in "".join(map(str, bundle.findings))
    assert "1e999" not in "".join(map(str, bundle.findings))


@pytest.mark.parametrize("word", ["1.10", "007", "~", "true"])
def test_a_key_that_is_no_text_is_refused_with_the_quotes_to_write(word):
    bundle = parse_text(f"kind: Task\nmetadata: {{name: a}}\nspec: {{agent: a, input: {{on: x, {word}: y}}}}")

    assert f'quote it: "{word}"' in str(bundle.findings[0])


def test_what_is_no_text_field_keeps_its_type():
    document = values_of("kind: Tool\nmetadata: {name: a}\nspec: {price_usd: 0.10, input_schema: {maximum: 1.10}}")

    assert document["spec"]["input_schema"] == {"maximum": 1.1}
    assert document["spec"]["price_usd"] == "0.10"


def _loose_places(schema: dict[str, Any], part: Any, path: tuple[str | int, ...]) -> Any:
    """Every path to a text that the exported schema lets be a number or a boolean, status left out."""
    if "$ref" in part:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]]
    if part.get("type") == ["string", "number", "boolean"]:
        yield path
    for key, inner in part.get("properties", {}).items():
        if path or key != "status":
            yield from _loose_places(schema, inner, (*path, key))
    if isinstance(inner := part.get("additionalProperties"), dict):
        yield from _loose_places(schema, inner, (*path, "k"))
    if isinstance(inner := part.get("items"), dict):
        yield from _loose_places(schema, inner, (*path, 0))
    for choice in part.get("anyOf", ()):
        yield from _loose_places(schema, choice, path)


def _nested(path: tuple[str | int, ...], word: str) -> str:
    if not path:
        return word
    step, inner = path[0], _nested(path[1:], word)
    return f"[{inner}]" if isinstance(step, int) else f"{{{step}: {inner}}}"


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_that_the_schema_lets_be_a_number_is_kept(kind):
    """What editors allow unquoted and what the reader keeps are one set, whatever field is added later."""
    words = random.Random(kind)
    paths = sorted(set(_loose_places(preferred_schema(kind), preferred_schema(kind), ())), key=str)
    assert ("metadata", "labels", "k") in paths
    for path in paths:
        word = words.choice(["0042", "12e4", "1.10", "0x1F", "TRUE"])
        source = parse_yaml(_nested(path, word)).documents[0]
        assert source.rewritten
        value = with_source_texts(KINDS[kind].model(), source.value, source.places.entry(()))
        for step in path:
            value = value[step]
        assert value == word, path


def test_a_word_that_prints_as_it_is_written_costs_nothing():
    assert not parse_yaml("{a: 8, b: 1.5, c: true, d: x, e: ~, f: -3}").documents[0].rewritten
