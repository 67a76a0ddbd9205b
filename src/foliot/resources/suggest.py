"""What was probably meant by a field that does not exist: a near name here, or the same name somewhere else."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, cast, get_args, get_origin

from pydantic import BaseModel

from foliot.resources.base import Model, accepted_keys, emitted_key
from foliot.resources.problems import Path
from foliot.resources.spelling import snake

_CLOSE: Final = 0.75
_VERY_CLOSE: Final = 0.9


def model_at(root: type[Model], path: Path) -> type[Model] | None:
    """The model whose fields stand at `path`, or None where keys are free."""
    here: type[Model] | None = root
    steps = list(path)
    while steps and here is not None:
        step = steps.pop(0)
        name = next((name for name in here.model_fields if step in accepted_keys(here, name)), None)
        if name is None:
            return None
        inner, skip = _inner(here.model_fields[name].annotation)
        if len(steps) < skip:
            return None
        del steps[:skip]
        here = inner
    return here


def twin(owner: type[Model], key: str, raw: Any, path: Path) -> str | None:
    """Another spelling of the field `key` that the input gives as well."""
    for step in path:
        raw = raw[step]
    given = cast("dict[str, Any]", raw)
    for name in owner.model_fields:
        keys = accepted_keys(owner, name)
        if key in keys:
            return next((other for other in keys if other != key and other in given), None)
    return None


def suggest(root: type[Model], loc: Path) -> str | None:
    """The name (or, when it belongs elsewhere, the full path) of the field that was probably meant by `loc`."""
    word = snake(str(loc[-1]).replace("-", "_"))
    owner = model_at(root, loc[:-1])
    here = (
        {snake(key): emitted_key(owner, name) for name in owner.model_fields for key in accepted_keys(owner, name)}
        if owner
        else {}
    )
    if word in here:
        return here[word]
    elsewhere = _paths(root)
    # A letter away in the same place is meant rather than the same word in another.
    if near := difflib.get_close_matches(word, list(here), n=1, cutoff=_VERY_CLOSE):
        return here[near[0]]
    if word in elsewhere:
        return elsewhere[word]
    if near := difflib.get_close_matches(word, list(here), n=1, cutoff=_CLOSE):
        return here[near[0]]
    if len(ending := [key for key in here if key.endswith(f"_{word}")]) == 1:
        return here[ending[0]]
    if near := difflib.get_close_matches(word, list(elsewhere), n=1, cutoff=_CLOSE):
        return elsewhere[near[0]]
    return None


@cache
def _paths(root: type[Model]) -> dict[str, str]:
    """The path of each field name outside status, the shortest when there are several."""
    paths: dict[str, str] = {}
    for path in sorted(_walk(root, ""), key=lambda path: path.count(".")):
        paths.setdefault(snake(path.rpartition(".")[2]), path)
    return paths


def _walk(model: type[Model], prefix: str) -> Iterator[str]:
    for name, info in model.model_fields.items():
        path = f"{prefix}{emitted_key(model, name)}"
        if path == "status":
            continue
        yield path
        inner, skip = _inner(info.annotation)
        if inner is not None and inner is not model:
            yield from _walk(inner, f"{path}.{'<name>.' * skip}")


def _inner(annotation: Any) -> tuple[type[Model] | None, int]:
    """The model inside an annotation, and how many keys or indexes stand between the field and it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation, 0) if issubclass(annotation, Model) else (None, 0)
    origin_is_container = get_origin(annotation) in (list, dict)
    for argument in get_args(annotation):
        inner, skip = _inner(argument)
        if inner is not None:
            return inner, skip + origin_is_container
    return None, 0
