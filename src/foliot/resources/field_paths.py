"""Dotted paths into the fields of kinds, as selectors name them: `spec.model_ref`, `status.phase`, `spec.tools.0`.

A path that no resource can have would select nothing for ever, or with `!=` everything, so it is refused with the one
that was probably meant. Both spellings of a field are read (`spec.modelRef`) and become the one that is stored.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from types import UnionType
from typing import Annotated, Any, Final, TypeAlias, Union, get_args, get_origin

from foliot.errors import InvalidInput
from foliot.resources.base import Model, accepted_keys, emitted_key
from foliot.resources.kinds import KINDS
from foliot.resources.spelling import snake
from foliot.resources.suggest import suggest

_CLOSE: Final = 0.75
_Found: TypeAlias = "tuple[str, ...] | None"


def stored_path(path: str, kinds: Sequence[str] = ()) -> str:
    """The path in the spelling that resources are stored in; `kinds` are those that it may be of, all when empty.

    Raises `InvalidInput`, with what was probably meant, when none of them has such a field.
    """
    steps = tuple(path.split("."))
    models = [KINDS[kind].model() for kind in kinds or KINDS]
    for model in models:
        if (found := _stored(model, steps)) is not None:
            return ".".join(found)
    where = kinds[0] if len(kinds) == 1 else "a resource"
    meant = next((near for model in models if (near := _meant(model, steps)) is not None), None)
    hint = f"did you mean {meant}?" if meant else f"`foliot explain {kinds[0] if kinds else 'agent'}` lists the fields"
    raise InvalidInput(f"there is no field {path!r} in {where}", hint=hint)


def _stored(annotation: Any, steps: tuple[str, ...]) -> _Found:
    """The steps as they are stored; None when there can be nothing at that place."""
    if not steps:
        return ()
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _stored(arguments[0], steps)
    if origin in (Union, UnionType):
        return next((found for each in arguments if (found := _stored(each, steps)) is not None), None)
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return _in_model(annotation, steps)
    if annotation is Any:
        return steps
    first, rest = steps[0], steps[1:]
    if origin is dict:
        inner = _stored(arguments[1], rest)
    elif origin is list and first.isdecimal():
        inner = _stored(arguments[0], rest)
    else:
        return None
    return None if inner is None else (first, *inner)


def _in_model(model: type[Model], steps: tuple[str, ...]) -> _Found:
    first, rest = steps[0], steps[1:]
    for name, info in model.model_fields.items():
        if first in accepted_keys(model, name):
            inner = _stored(info.annotation, rest)
            return None if inner is None else (emitted_key(model, name), *inner)
    # A status has fields that only some resources have; a near miss of one that is known is a slip all the same.
    is_open = model.model_config.get("extra") == "allow"
    return steps if is_open and not difflib.get_close_matches(snake(first), model.model_fields, 1, _CLOSE) else None


def _meant(model: type[Model], steps: tuple[str, ...]) -> str | None:
    """The nearest path that there is: the first wrong step is replaced, and what follows it is kept if it can be."""
    for index in range(len(steps)):
        if _stored(model, steps[: index + 1]) is not None:
            continue
        if (near := suggest(model, steps[: index + 1])) is None:
            return None
        head = tuple(near.split(".")) if "." in near else (*steps[:index], near)
        found = _stored(model, (*head, *steps[index + 1 :])) or _stored(model, head)
        return ".".join(found) if found else None
    return None
