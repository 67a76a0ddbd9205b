"""From pydantic's errors to problems that people can act on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, cast

from pydantic import ValidationError

from foliot.resources.base import Model
from foliot.resources.problems import Path, Problem, render_path
from foliot.resources.spelling import spellings
from foliot.resources.suggest import model_at, suggest, twin

_TYPES: Final[dict[str, str]] = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS: Final[dict[str, tuple[str, str]]] = {
    "greater_than_equal": (">=", "ge"),
    "greater_than": (">", "gt"),
    "less_than_equal": ("<=", "le"),
    "less_than": ("<", "lt"),
}
_QUOTED: Final = re.compile(r"'([^']*)'")


@dataclass(slots=True)
class Told:
    """Problems in the input's spelling, and where in the validated data their causes are.

    `wrong` holds the values that cannot be used, `unknown` the fields that do not exist.
    """

    problems: list[Problem] = field(default_factory=list[Problem])
    wrong: list[Path] = field(default_factory=list[Path])
    unknown: list[Path] = field(default_factory=list[Path])


Error: TypeAlias = dict[str, Any]
# To look for what was meant takes half a millisecond a field, and somebody may send a hundred thousand of them.
MOST_EXPLAINED: Final = 100


def explain(model: type[Model], error: ValidationError, raw: dict[str, Any]) -> Told:
    """Say what each error means; `raw` is what the person wrote."""
    told = Told()
    for item in cast("list[Error]", error.errors(include_url=False)):
        loc = tuple(step for step in item["loc"] if step != "[key]")
        if len(told.problems) >= MOST_EXPLAINED:
            (told.unknown if item["type"] == "extra_forbidden" else told.wrong).append(loc)
        elif item["type"] == "rules":
            told.problems += _rules(item["ctx"]["problems"], loc, raw)
            if loc and loc not in (("spec",), ("metadata",)):
                told.wrong.append(loc)
        elif item["type"] == "extra_forbidden":
            told.problems.append(_unknown(model, loc, raw))
            told.unknown.append(loc)
        else:
            told.problems.append(_field(item, loc, raw))
            told.wrong.append(loc)
    return told


def found(value: object) -> str:
    """What a value is, in words; never the value itself, which may be secret."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return type(value).__name__


def locate(path: Iterable[str | int], raw: Any) -> Path:
    """`path` as the input spells it, cut where the input has no such place (`edges: [x]` has no `edges[0].to`)."""
    steps: list[str | int] = []
    for step in path:
        if isinstance(raw, dict):
            given = cast("dict[Any, Any]", raw)
            key = next((key for key in (step, *spellings(str(step))) if key in given), step)
            raw = given.get(key)
            steps.append(key)
        elif isinstance(raw, list) and isinstance(step, int):
            items = cast("list[Any]", raw)
            raw = items[step] if step < len(items) else None
            steps.append(step)
        elif raw is None:
            steps.append(step)
        else:
            break
    return tuple(steps)


def _rules(problems: Iterable[Problem], loc: Path, raw: Any) -> Iterable[Problem]:
    for problem in problems:
        path = locate((*loc, *problem.path), raw)
        yield replace(problem, path=path, message=_fill(problem.message, path))


def _fill(message: str, path: Path) -> str:
    return message.replace("{field}", render_path(path), 1)


def _unknown(model: type[Model], loc: Path, raw: dict[str, Any]) -> Problem:
    key = str(loc[-1])
    owner = model_at(model, loc[:-1])
    path = locate(loc, raw)
    if owner is not None:
        if (instead := owner.removed.get(key)) is not None:
            return Problem(path, f"{render_path(path)} has been removed; use {instead}", at="key")
        if (other := twin(owner, key, raw, loc[:-1])) is not None:
            return Problem(path, f"given twice: as {other} and as {key}", "keep one of the two", at="key")
    hint = suggest(model, loc)
    return Problem(path, f'unknown field "{key[:80]}"', f"did you mean {hint}?" if hint else None, at="key")


def _field(item: Error, loc: Path, raw: dict[str, Any]) -> Problem:
    path = locate(loc, raw)
    kind, value, context = item["type"], item.get("input"), item.get("ctx", {})
    name = render_path(path)
    if kind in _TYPES:
        expected = _TYPES[kind]
        if kind == "int_from_float":
            return Problem(path, f"{name} must be a whole number", expected=expected)
        return Problem(path, f"{name} must be {expected}, not {found(value)}", _type_hint(expected, value), expected)
    if kind == "literal_error":
        choices = _QUOTED.findall(context["expected"])
        return _choice(path, value, choices)
    if kind in _BOUNDS:
        sign, bound = _BOUNDS[kind]
        limit = f"{sign} {context[bound]}"
        return Problem(path, f"invalid {name} {value}: expected {limit}", expected=limit)
    return Problem(path, f"{name}: {item['msg'][:1].lower()}{item['msg'][1:]}")


def _type_hint(expected: str, value: object) -> str | None:
    if expected == "a string" and isinstance(value, (bool, int, float)):
        return "put it in quotes"
    if expected in ("a whole number", "a number", "true or false") and isinstance(value, str):
        return "remove the quotes" if _TYPED_TEXT.fullmatch(value.strip()) else None
    return None


_TYPED_TEXT: Final = re.compile(r"[-+]?[0-9.]+|true|false", re.IGNORECASE)


def _choice(path: Path, value: object, choices: list[str]) -> Problem:
    expected = one_of(choices)
    if not isinstance(value, str):
        return Problem(path, f"{render_path(path)} must be {expected}, not {found(value)}", expected=expected)
    near = difflib.get_close_matches(value.strip().lower(), [choice.lower() for choice in choices], n=1)
    hint = next((f"did you mean {choice}?" for choice in choices if near and choice.lower() == near[0]), None)
    return Problem(path, f'invalid {render_path(path)} "{value[:80]}": expected {expected}', hint, expected)


def one_of(choices: list[str]) -> str:
    """`a or b`; `a, b, or c`."""
    if len(choices) <= 2:
        return " or ".join(choices)
    return f"{', '.join(choices[:-1])}, or {choices[-1]}"
