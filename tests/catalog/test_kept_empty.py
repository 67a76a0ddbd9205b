"""Where an empty list says something else than none at all, the difference is kept on every way round.

The fields are found in the kinds: one that is added later is held to the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from foliot import parse_manifests
from foliot.catalog.apply import apply_documents
from foliot.resources.base import Model, emitted_key, kept_empty
from foliot.resources.kinds import KINDS
from foliot.resources.syntax.yaml_text import dump_yaml
from foliot.resources.validate import validate_document
from foliot.store.base import Document, Key
from foliot.store.resources.database import SqlResourceStore

Place = tuple[str, ...]
# A valid spec of each kind that has such a field; in a list stands one item.
SPECS: dict[str, dict[str, Any]] = {
    "Agent": {"model_ref": "m", "delegation": {"presets": [{"name": "p", "description": "A preset."}]}},
    "AgentPolicy": {"apply_mode": "global", "sandbox": {"isolation": "sandboxed"}},
    "Tool": {"type": "http", "endpoint": "https://tool.example.com", "runtime": {"retry": {"max_attempts": 3}}},
}


def places(model: type[Model], path: Place = ()) -> Iterator[Place]:
    """Every field below a model whose emptiness counts, by the keys on the way to it."""
    for name, field in model.model_fields.items():
        here = (*path, emitted_key(model, name))
        if here[-1] in kept_empty(model):
            yield here
        for inner in inner_models(field.annotation):
            if here[-1] != "status":
                yield from places(inner, here)


def inner_models(annotation: Any) -> Iterator[type[Model]]:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        yield annotation
    for argument in get_args(annotation):
        yield from inner_models(argument)


PLACES = [(kind.name, place) for kind in KINDS.values() for place in places(kind.model())]


def holder(document: Document, place: Place) -> dict[str, Any]:
    """The object that has the field, made where it is not there; of a list the first item."""
    here: Any = document
    for step in place[:-1]:
        here = here.setdefault(step, {})
        if type(here) is list:
            here = here[0]
    return here


def written(kind: str, place: Place, *, empty: bool) -> Document:
    document: Document = {"kind": kind, "metadata": {"name": "it"}, "spec": copy.deepcopy(SPECS[kind])}
    holder(document, place).pop(place[-1], None)
    if empty:
        is_list = place[-1] != "delegation"
        holder(document, place)[place[-1]] = [] if is_list else {}
    return document


def is_empty_there(document: Document, place: Place) -> bool:
    here = holder(copy.deepcopy(document), place)
    return place[-1] in here and not here[place[-1]]


def test_the_fields_are_found_in_the_kinds() -> None:
    found = {".".join(place) for _, place in PLACES}
    assert {"spec.runtime.retry.retry_on_kinds", "spec.sandbox.network", "spec.delegation.presets.tools"} <= found


@pytest.mark.parametrize(("kind", "place"), PLACES)
@pytest.mark.parametrize("empty", [True, False])
def test_the_reader_keeps_the_difference(kind: str, place: Place, empty: bool) -> None:
    document, problems = validate_document(written(kind, place, empty=empty))
    assert (problems, document is None) == ([], False)
    again, _ = validate_document(copy.deepcopy(document or {}))
    assert again == document
    assert is_empty_there(document or {}, place) == empty


@pytest.mark.parametrize(("kind", "place"), PLACES)
async def test_apply_get_and_apply_keep_the_difference(store: SqlResourceStore, kind: str, place: Place) -> None:
    for empty in (True, False, True):
        await apply_documents(store, [written(kind, place, empty=empty)], allow_missing=True)
        live = await store.get(Key(kind, "default", "it"))
        assert is_empty_there(live, place) == empty

        shown = dump_yaml({name: value for name, value in live.items() if name != "status"})
        again = await apply_documents(store, parse_manifests(shown), allow_missing=True)

        assert [step.action for step in again.steps] in (["unchanged"], ["updated"])
        after = await store.get(Key(kind, "default", "it"))
        assert (after["spec"], is_empty_there(after, place)) == (live["spec"], empty)
