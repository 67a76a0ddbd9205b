"""Dotted paths into the fields of kinds, as selectors name them: `spec.model_ref`, `status.phase`, `spec.tools.0`.

A path that no resource can have would select nothing for ever, or with `!=` everything, so it is refused with the one
that was probably meant. Both spellings of a field are read (`spec.modelRef`) and become the one that is stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Final, TypeAlias, Union, cast, get_args, get_origin

from foliot.common.suggestions import VERY_ALIKE, did_you_mean, nearest
from foliot.errors import InvalidInput
from foliot.resources.base import Model, accepted_keys, emitted_key
from foliot.resources.kinds import KINDS
from foliot.resources.names import snake
from foliot.resources.validate import suggest

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
    hint = did_you_mean(meant) if meant else f"`foliot explain {kinds[0] if kinds else 'agent'}` lists the fields"
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
    return steps if is_open and not nearest(snake(first), model.model_fields, alike=VERY_ALIKE) else None


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


# --- json paths ------------------------------------------------------------------------------------------------------

# Places in JSON: `$.pull_request.title`, `$.commits[0].id`, `$['odd name']`, `$.labels[*].name`.
#
# The small part of JSONPath that names one place, or with `[*]` all elements of a list. Anything else is refused when
# the path is read, so that looking something up cannot fail and costs no more than the path is long.

Step: TypeAlias = str | int | None
"""A member, an element (negative from the end), or None for all elements."""

LONGEST: Final = 200
_STEP: Final = re.compile(
    r"""\.([A-Za-z_][\w-]*) | \['([^']*)'\] | \["([^"]*)"\] | \[(-?\d{1,6})\] | \[(\*)\]""", re.VERBOSE | re.ASCII
)


@lru_cache(maxsize=1024)
def parse_path(text: str) -> tuple[Step, ...]:
    """The steps of a path. Raises `ValueError` with a sentence for people."""
    if not text.startswith("$"):
        raise ValueError("a path into JSON begins with $")
    if len(text) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    steps: list[Step] = []
    place = 1
    while place < len(text):
        found = _STEP.match(text, place)
        if found is None:
            raise ValueError(f"cannot be read from {text[place : place + 20]!r} on")
        name, single, double, index, star = found.groups()
        if star:
            steps.append(None)
        elif index is not None:
            steps.append(int(index))
        else:
            steps.append(next(part for part in (name, single, double) if part is not None))
        place = found.end()
    return tuple(steps)


def look_up(value: Any, path: str) -> Any:
    """Returns the value at the path, or None; behind `[*]` a list of the values found."""
    return _follow(value, parse_path(path))


def _follow(value: Any, steps: tuple[Step, ...]) -> Any:
    for position, step in enumerate(steps):
        match value, step:
            case list(), None:
                found = (_follow(item, steps[position + 1 :]) for item in cast("list[Any]", value))
                return [item for item in found if item is not None]
            case list(), int():
                items = cast("list[Any]", value)
                value = items[step] if -len(items) <= step < len(items) else None
            case dict(), str():
                value = cast("dict[str, Any]", value).get(step)
            case _:
                return None
    return value


# --- placeholders ----------------------------------------------------------------------------------------------------

# Texts with holes: `Report of {{ slot_date }}`.
#
# A hole is a name, never code, and what fills it is not looked at again.

_HOLE: Final = re.compile(r"\{\{\s*([^{}]{1,200}?)\s*\}\}")

SLOT_NAMES: Final = (
    "slot",
    "slot_local",
    "slot_date",
    "slot_time",
    "slot_unix",
    "schedule",
    "namespace",
    "trigger",
)
"""What a schedule knows of one of its times."""

EVENT_NAMES: Final = ("event_id", "received_at", "source", "webhook", "namespace")
"""What a webhook knows of a delivery, besides its headers (`header.NAME`) and its body (`$.path`)."""


HOOK_NAMES: Final = ("event", "event_id", "path", "hook", "namespace", "source")
"""What a hook knows of a change; `path` is below the folder that it watches."""


def names_in(text: str) -> list[str]:
    """The names of the holes, in order."""
    return _HOLE.findall(text)


def fill(text: str, value_of: Callable[[str], str]) -> str:
    """The text with every hole filled, in one pass: a value that looks like a hole stays as it is."""
    return _HOLE.sub(lambda hole: value_of(hole[1]), text)
