from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.kernel.backoff import RetryPolicy
from foliot.resources.digest import canonical_json, definition_digest
from foliot.resources.reader import parse_text
from foliot.resources.syntax.yaml_text import dump_yaml
from foliot.resources.validate import validate_document
from foliot.runtime.agent import Agent
from foliot.work.tasks.base import Command
from foliot.work.tasks.commands import command_of, content_digest, encode_command


def test_the_digest_is_of_the_wish_and_of_nothing_else(specimens: dict[str, dict[str, Any]]) -> None:
    agent = specimens["Agent"]
    digest = definition_digest(agent)
    other = copy.deepcopy(agent)
    other["metadata"] = {"name": "another", "namespace": "elsewhere"}
    other["status"] = {"phase": "Running"}

    assert digest.startswith("sha256:")
    assert len(digest) == 71
    assert definition_digest(other) == digest
    other["spec"]["prompt"] += "!"
    assert definition_digest(other) != digest


def test_the_digest_is_the_same_however_the_wish_was_written() -> None:
    short = {"kind": "Tool", "metadata": {"name": "t"}, "spec": {"runtime": {"timeout": "60s"}}}
    long = {
        "apiVersion": "orloj.dev/v1",
        "kind": "TOOL",
        "metadata": {"name": "t"},
        "spec": {"riskLevel": "LOW", "runtime": {"timeouts": {"total": "1m0s"}}},
    }
    (first, _), (second, _) = validate_document(short), validate_document(long)
    assert first is not None
    assert second is not None
    assert definition_digest(first) == definition_digest(second)


def test_the_digest_of_a_known_document_never_changes() -> None:
    document = {"apiVersion": "foliot.dev/v1", "kind": "Worker", "spec": {"b": 1.0, "a": "é", "c": [0.1, True, None]}}
    assert canonical_json(document["spec"]) == '{"a":"é","b":1,"c":[0.1,true,null]}'.encode()
    digest = "624b3e43a98ef092e20d897cf01fde7abfb7ac629dde16ff16e4a58e93d4a5b4"
    assert definition_digest(document) == f"sha256:{digest}"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_a_round_trip_through_json_text_keeps_the_canonical_form(value: Any) -> None:
    try:
        text = json.dumps(value).encode()
        canonical = canonical_json(value)
    except UnicodeEncodeError:  # lone surrogates never get past validation
        return
    assert canonical_json(json.loads(text)) == canonical
    assert canonical_json(json.loads(canonical)) == canonical


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
names = st.text("abcdefz", min_size=1, max_size=3)
leaves = st.fixed_dictionaries(
    {"type": st.just("number")},
    optional={
        "minimum": st.integers(-5, 5) | st.just(0.5) | st.just(1e20),
        "title": texts,
        "default": st.integers(0, 9),
    },
)


@st.composite
def wishes(draw: st.DrawFn) -> dict[str, Any]:
    """The spec of an Agent with something of each sort in it: texts, numbers, lists, and a schema."""
    leaf = draw(leaves)
    properties = dict.fromkeys(draw(st.lists(names, min_size=1, max_size=4, unique=True)), leaf)
    return {
        "model_ref": "m",
        "prompt": draw(texts) + "é😀",
        "tools": draw(st.lists(names, max_size=3, unique=True)),
        "limits": {"max_steps": draw(st.integers(1, 20)), "max_cost_usd": draw(st.sampled_from([1, 2.5, 3]))},
        "model_settings": {"temperature": draw(st.sampled_from([0, 1, 0.5])), "extra": {"k": draw(st.integers(0, 3))}},
        "output_schema": {"type": "object", "properties": properties, "required": list(properties)},
    }


def rewritten(value: Any, draw: Any) -> Any:
    """The same in other words: names in another order, whole numbers as fractions."""
    if isinstance(value, dict):
        return {name: rewritten(value[name], draw) for name in draw(st.permutations(list(value)))}
    if isinstance(value, list):
        return [rewritten(item, draw) for item in value]
    # `max_steps` counts, and a count is no fraction.
    return value


def with_fractions(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: item if name == "max_steps" else with_fractions(item) for name, item in value.items()}
    if isinstance(value, list):
        return [with_fractions(item) for item in value]
    return float(value) if type(value) is int else value


@settings(max_examples=40, derandomize=True)
@given(wishes(), st.data())
def test_a_definition_has_one_digest_in_yaml_json_and_python(wish: dict[str, Any], data: st.DataObject) -> None:
    def read(text: str, file: str = "m.yaml") -> dict[str, Any]:
        bundle = parse_text(text, file)
        bundle.raise_for_errors()
        return bundle.documents[0]

    head = {"apiVersion": "foliot.dev/v1", "kind": "Agent", "metadata": {"name": "a"}}
    given = read(json.dumps({**head, "spec": wish}), "m.json")
    other = rewritten(with_fractions(wish), data.draw)
    anchored = json.dumps({**head, "spec": {**wish, "output_schema": {}}}, ensure_ascii=False).removesuffix("}}")
    leaf, *rest = wish["output_schema"]["properties"]
    first = json.dumps(wish["output_schema"]["properties"][leaf], ensure_ascii=False)
    shared = "".join(f", {json.dumps(name)}: *leaf" for name in rest)
    anchored = anchored.replace(
        '"output_schema": {',
        f'"output_schema": {{"required": {json.dumps([leaf, *rest])}, "type": "object", "properties": {{'
        f"{json.dumps(leaf)}: &leaf {first}{shared}}}",
    )
    in_python = {key: value for key, value in other.items() if key not in ("model_ref", "output_schema")}
    forms = {
        "JSON, other order and numbers": definition_digest(read(json.dumps({"spec": other, **head}), "m.json")),
        "YAML": definition_digest(read(dump_yaml({**head, "spec": other}))),
        "YAML as it was stored": definition_digest(read(dump_yaml(given))),
        "YAML with an anchor": definition_digest(read(anchored + "}}")),
        "Python": Agent("a", model="m", output=other["output_schema"], **in_python).digest,
    }
    assert forms == dict.fromkeys(forms, definition_digest(given))


def test_a_command_has_one_digest_however_it_was_put_together() -> None:
    """`foliot apply` makes it from a resource, `foliot task run` from what was typed, a server from JSON."""
    task = {"kind": "Task", "metadata": {"name": "t"}, "spec": {"agent": "a", "input": {"topic": "x", "b": "y"}}}
    document, _ = validate_document(task)
    assert document is not None
    declared = command_of(document)
    typed = Command("agent", "a", input={"b": "y", "topic": "x"})
    spelled = Command("agent", "a", input=declared.input, retry=RetryPolicy(1, 0, 86_400), lane="".join(()))
    sent = msgspec.json.decode(encode_command(spelled), type=Command)
    assert {content_digest(each) for each in (declared, typed, spelled, sent)} == {content_digest(typed)}
    assert content_digest(Command("agent", "a", timeout=60)) == content_digest(Command("agent", "a", timeout=60.0))
    assert content_digest(Command("agent", "a", input={"topic": "y"})) != content_digest(typed)
