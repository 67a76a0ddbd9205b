"""Laws of normalisation, over documents that nobody would think of."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foliot.resources.base import Model
from foliot.resources.kinds import KINDS
from foliot.resources.names import spellings
from foliot.resources.validate import model_at, validate_document

PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)

WORDS = st.sampled_from(
    [
        "",
        " ",
        "a",
        "A",
        "x/y",
        "0s",
        "30s",
        "***",
        "YQ==",
        "http",
        "quorum",
        "https://h/p",
        "@daily",
        "UTC",
        "no such thing",
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 5)
    | st.floats()
    | WORDS
    | st.text(max_size=6)
    | st.dates()
    | st.binary(max_size=3)
)
GARBAGE = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=8,
)


def field_names(model: type[Model]) -> list[str]:
    return [key for name in model.model_fields for key in spellings(name)]


@st.composite
def near_documents(draw: st.DrawFn) -> dict[str, Any]:
    """Documents with the right fields and any values: the kind of wrong that people write."""
    kind = draw(st.sampled_from(list(KINDS)))
    root = KINDS[kind].model()

    def part(model: type[Model], depth: int) -> dict[str, Any]:
        chosen = draw(st.lists(st.sampled_from([*field_names(model), "unheard_of"]), max_size=5, unique=True))
        return {key: value(model, key, depth) for key in chosen}

    def value(model: type[Model], key: str, depth: int) -> Any:
        inner = model_at(model, (key,))
        if inner is not None and depth < 4 and draw(st.integers(0, 5)):
            item = part(inner, depth + 1)
            return draw(st.sampled_from([item, [item], {"a": item}]))
        return draw(GARBAGE)

    spec = model_at(root, ("spec",))
    metadata = model_at(root, ("metadata",))
    assert spec is not None
    assert metadata is not None
    return {
        "kind": kind,
        "metadata": draw(st.just({"name": "it"}) | st.builds(lambda: part(metadata, 1))),
        "spec": part(spec, 1),
    }


@PROPERTY
@given(near_documents())
def test_whatever_is_accepted_is_a_fixed_point_and_survives_json(raw: dict[str, Any]) -> None:
    before = copy.deepcopy(raw)
    document, problems = validate_document(raw)

    assert repr(raw) == repr(before)
    if document is None:
        assert any(problem.severity == "error" for problem in problems)
        assert all(str(problem) for problem in problems)
    else:
        assert validate_document(document) == (document, [])
        assert json.loads(json.dumps(document, allow_nan=False)) == document


@PROPERTY
@given(GARBAGE)
def test_garbage_is_refused_and_never_raises(raw: Any) -> None:
    document, problems = validate_document(raw)
    assert document is None
    assert problems


@PROPERTY
@given(st.sampled_from(list(KINDS)), GARBAGE, GARBAGE, GARBAGE, GARBAGE)
def test_garbage_inside_an_envelope_never_raises(
    kind: str, metadata: Any, spec: Any, status: Any, version: Any
) -> None:
    raw = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec, "status": status}
    document, problems = validate_document(raw)
    assert (document is None) == any(problem.severity == "error" for problem in problems)


@pytest.mark.parametrize("kind", KINDS)
def test_one_unknown_field_in_a_good_document_is_all_that_is_found(
    kind: str, specimens: dict[str, dict[str, Any]]
) -> None:
    specimens[kind]["spec"]["unheard_of"] = 1
    document, problems = validate_document(specimens[kind])
    assert document is None
    assert [problem.path for problem in problems] == [("spec", "unheard_of")]


def respelled(model: type[Model] | None, value: Any, choose: Any) -> Any:
    """`value` with each key of a model in another of its spellings; keys of free maps stay."""
    if isinstance(value, list):
        return [respelled(model, item, choose) for item in value]
    if not isinstance(value, dict) or model is None:
        return value
    names = set(field_names(model))
    if not set(value) <= names:
        return value if not names else {key: respelled(model, item, choose) for key, item in value.items()}
    return {choose(spellings(key)): respelled(model_at(model, (key,)), item, choose) for key, item in value.items()}


@pytest.mark.parametrize("kind", KINDS)
@PROPERTY
@given(choices=st.randoms(use_true_random=False))
def test_every_spelling_gives_the_same_document(kind: str, specimens: dict[str, dict[str, Any]], choices: Any) -> None:
    spec = model_at(KINDS[kind].model(), ("spec",))
    raw = {**specimens[kind], "spec": respelled(spec, specimens[kind]["spec"], choices.choice)}
    assert validate_document(raw) == (specimens[kind], [])
