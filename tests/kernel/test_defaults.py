"""What is left out of stored bytes means, for ever, what it meant when they were written.

A field that has its default is not written. So a default is part of every journal and every stored spec that lacks the
field, although no byte of it can be seen there: changing one would change old runs silently.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import NODEFAULT, Struct, inspect

from foliot.kernel.graph.events import FACT_TYPES
from foliot.kernel.graph.plan import Plan
from foliot.kernel.run.codec import EVENT_TYPES
from foliot.kernel.run.spec import RunSpec
from tests.kernel.samples import ANSWER_USAGE, GROWN, SAMPLES
from tests.kernel.task_samples import TASK_GROWN, TASK_SAMPLES

STORED = (*EVENT_TYPES, *FACT_TYPES, RunSpec, Plan)
# Names of types are not stored; these have another one than when their lines were written.
EARLIER = {"RetryPolicy": "Retry"}
# `Type.field: default`, with the field as it is stored, for everything that is stored. A new field adds a line; no line
# ever changes or goes.
GOLDEN: dict[str, Any] = msgspec.json.decode((Path(__file__).parent / "golden_defaults.json").read_bytes())


def _structs(found: inspect.Type, seen: dict[type, inspect.StructType]) -> None:
    """All structs that a value of this type can hold."""
    if isinstance(found, inspect.StructType):
        if found.cls in seen:
            return
        seen[found.cls] = found
        for field in found.fields:
            _structs(field.type, seen)
    elif isinstance(found, inspect.UnionType):
        for each in found.types:
            _structs(each, seen)
    elif isinstance(found, inspect.VarTupleType | inspect.ListType):
        _structs(found.item_type, seen)
    elif isinstance(found, inspect.DictType):
        _structs(found.value_type, seen)


def stored_structs() -> dict[type, inspect.StructType]:
    seen: dict[type, inspect.StructType] = {}
    for each in inspect.multi_type_info(STORED):
        _structs(each, seen)
    return seen


def plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def defaults() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for cls, info in stored_structs().items():
        for field in info.fields:
            name = f"{EARLIER.get(cls.__name__, cls.__name__)}.{field.encode_name}"
            if field.default is not NODEFAULT:
                found[name] = plain(field.default)
            elif field.default_factory is not NODEFAULT:
                found[name] = plain(field.default_factory())
    return found


def test_no_default_of_what_is_stored_has_changed() -> None:
    now = defaults()
    assert {name: now.get(name, "gone") for name in GOLDEN} == GOLDEN


def test_every_default_of_what_is_stored_is_in_the_golden_file() -> None:
    missing = {name: value for name, value in defaults().items() if name not in GOLDEN}
    assert missing == {}, "add these lines to golden_defaults.json"


def _held(value: Any) -> Iterator[Struct]:
    if isinstance(value, Struct):
        yield value
        for name in value.__struct_fields__:
            yield from _held(getattr(value, name))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _held(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _held(each)


@pytest.mark.parametrize(
    "samples", [(*SAMPLES, *GROWN), (*TASK_SAMPLES, *TASK_GROWN, ANSWER_USAGE)], ids=["runs", "tasks"]
)
def test_the_samples_set_every_field_of_every_event(samples: tuple[Struct, ...]) -> None:
    """Otherwise the golden files would not hold the bytes of all that can be written."""
    known = defaults()
    never: set[str] = set()
    written: set[str] = set()
    for struct in _held(samples):
        kind = type(struct).__name__
        for name, stored in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
            field = f"{EARLIER.get(kind, kind)}.{stored}"
            never.add(field)
            if field not in known or plain(getattr(struct, name)) != known[field]:
                written.add(field)
    assert never - written == set(), "give these fields a value in a new sample"
