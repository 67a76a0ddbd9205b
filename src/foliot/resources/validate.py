"""From one parsed document to its normal form, or to the list of everything that is wrong with it.

The normal form has every default filled in, one spelling of each field, canonical `apiVersion` and `kind`, and no
empty values. Normalising it again changes nothing, so documents can be compared and digested.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, TypeAlias, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

from foliot.common.suggestions import VERY_ALIKE, did_you_mean, nearest, suggestion
from foliot.resources.base import Model, Resource, accepted_keys, check_api_version, emitted_key
from foliot.resources.kinds import KINDS, Kind, kind_of, near_kind
from foliot.resources.names import snake, spellings
from foliot.resources.problems import Path, Problem, render_path
from foliot.resources.wording import API_VERSION

# --- suggest ---------------------------------------------------------------------------------------------------------

# What was probably meant by a field that does not exist: a near name here, or the same name somewhere else.

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
    """Returns another spelling of the field `key` that the input gives as well."""
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
    if near := nearest(word, here, alike=_VERY_CLOSE):
        return here[near[0]]
    if many := next((other for other in (f"{word}s", word.removesuffix("s")) if other in here), None):
        return here[many]
    if word in elsewhere:
        return elsewhere[word]
    if near := nearest(word, here, alike=VERY_ALIKE):
        return here[near[0]]
    if len(ending := [key for key in here if key.endswith(f"_{word}")]) == 1:
        return here[ending[0]]
    if near := nearest(word, elsewhere, alike=VERY_ALIKE):
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


# --- explain ---------------------------------------------------------------------------------------------------------

# From pydantic's errors to problems that people can act on.

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
class InputProblems:
    """Problems in the input's spelling, and where in the validated data their causes are.

    `wrong` holds the values that cannot be used, `unknown` the fields that do not exist.
    """

    problems: list[Problem] = field(default_factory=list[Problem])
    wrong: list[Path] = field(default_factory=list[Path])
    unknown: list[Path] = field(default_factory=list[Path])


Error: TypeAlias = dict[str, Any]
# To look for what was meant takes half a millisecond a field, and somebody may send a hundred thousand of them.
MOST_EXPLAINED: Final = 100


def explain(model: type[Model], error: ValidationError, raw: dict[str, Any]) -> InputProblems:
    """Say what each error means; `raw` is what the person wrote."""
    told = InputProblems()
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
    """Describes a value by its type in words; never the value itself, which may be secret."""
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
    return Problem(path, f'unknown field "{key[:80]}"', did_you_mean(hint) if hint else None, at="key")


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
    hint = suggestion(value.strip(), choices)
    return Problem(path, f'invalid {render_path(path)} "{value[:80]}": expected {expected}', hint, expected)


def one_of(choices: list[str]) -> str:
    """`a or b`; `a, b, or c`."""
    if len(choices) <= 2:
        return " or ".join(choices)
    return f"{', '.join(choices[:-1])}, or {choices[-1]}"


# --- validate --------------------------------------------------------------------------------------------------------

Document: TypeAlias = dict[str, Any]

MAX_DEPTH: Final = 64
_ROUNDS: Final = 6
_MAX_PROBLEMS: Final = 100


def validate_document(raw: Mapping[str, Any]) -> tuple[Document | None, list[Problem]]:
    """The normal form of `raw` (None when there are errors), and all problems at once.

    Never raises, whatever `raw` holds. Paths are in the spelling of the input. No message carries a secret value.
    """
    resource, problems = validated(raw)
    return (None if resource is None else resource.model_dump(by_alias=True)), problems


def validated(raw: Mapping[str, Any]) -> tuple[Resource[Any, Any] | None, list[Problem]]:
    """Validate as `validate_document` does, and return the model, which also knows what of it was `given`."""
    if not isinstance(raw, dict):
        said = found(raw)
        return None, [
            Problem((), f"a resource must be a mapping, not {said}", expected="a mapping with kind, metadata and spec")
        ]
    if problems := _unstorable(raw):
        return None, problems
    kind, problems = _kind_of(raw)
    version = raw.get("apiVersion", raw.get("api_version"))
    if not _blank(version) and (problem := check_api_version(version)) is not None:
        place = "apiVersion" if "apiVersion" in raw else "api_version"
        problems.append(Problem((place,), problem.message, expected=problem.expected))
    if kind is None:
        return None, problems
    return _validate(kind, raw, problems)


def _kind_of(raw: dict[str, Any]) -> tuple[Kind | None, list[Problem]]:
    value = raw.get("kind")
    if _blank(value):
        return None, [Problem(("kind",), "kind is required", expected=f"one of {', '.join(KINDS)}")]
    if not isinstance(value, str):
        return None, [
            Problem(("kind",), f"kind must be text, not {found(value)}", expected=f"one of {', '.join(KINDS)}")
        ]
    if (kind := kind_of(value)) is not None:
        return kind, []
    near = near_kind(value)
    hint = did_you_mean(near.name) if near else None
    expected = None if near else f"one of {', '.join(KINDS)}"
    return None, [Problem(("kind",), f'unsupported kind "{value[:80]}"', hint, expected)]


def _validate(
    kind: Kind, raw: dict[str, Any], problems: list[Problem]
) -> tuple[Resource[Any, Any] | None, list[Problem]]:
    model = kind.model()
    candidate = {key: value for key, value in raw.items() if key not in ("apiVersion", "api_version")}
    candidate |= {"apiVersion": API_VERSION, "kind": kind.name}
    if "apiVersion" in raw and "api_version" in raw:
        problems.append(Problem(("api_version",), "given twice: as apiVersion and as api_version"))
    for part in ("metadata", "spec"):
        if _blank(candidate.get(part)):
            candidate[part] = {}
    resource, found_problems = _check(model, candidate, raw)
    problems += found_problems
    if resource is None or problems:
        return None, problems[:_MAX_PROBLEMS]
    return resource, []


def _check(
    model: type[Resource[Any, Any]], candidate: Any, raw: dict[str, Any]
) -> tuple[Resource[Any, Any] | None, list[Problem]]:
    """Validate, and to find all that is wrong, again without the parts that are.

    A rule between fields runs only when the fields themselves are sound. So what was found wrong is taken out and the
    rest is tried again; from such a later round a rule is believed only where nothing it may look at was taken out.
    """
    problems: list[Problem] = []
    taken: list[Path] = []
    for _ in range(_ROUNDS):
        try:
            resource = model.model_validate(candidate)
        except ValidationError as error:
            told = explain(model, error, raw)
        else:
            return (None if problems else resource), problems
        problems += [problem for problem in told.problems if _is_news(model, problem, problems, taken)]
        if not told.wrong and not told.unknown:
            break
        taken += told.wrong
        candidate = _without(candidate, {*told.wrong, *told.unknown})
    return None, problems


def _is_news(model: type[Model], problem: Problem, known: list[Problem], taken: list[Path]) -> bool:
    if any(_covers(other.path, problem.path) for other in known):
        return False
    if " is required" in problem.message:
        return not any(_covers(problem.path, path) or _excuses(model, path, problem.path) for path in taken)
    return not any(_covers(path[:-1], problem.path) for path in taken)


def _excuses(model: type[Model], taken: Path, missing: Path) -> bool:
    """Whether a field need not be given because of one that was taken out: `model_ref` of an agent with a runner."""
    owner, depth = model_at(model, missing[:-1]), len(missing) - 1
    if owner is None or taken[:depth] != missing[:-1] or len(taken) <= depth:
        return False
    rules = [rule(owner) for name, rule in owner.excused.items() if emitted_key(owner, name) == missing[-1]]
    return any(str(taken[depth]) in _keys_of(rule) for rule in rules)


def _keys_of(rule: Any) -> set[str]:
    """The fields that a rule of a JSON Schema looks at."""
    if isinstance(rule, list):
        return {key for each in cast("list[Any]", rule) for key in _keys_of(each)}
    if not isinstance(rule, dict):
        return set()
    given = cast("dict[str, Any]", rule)
    inner = {key for value in given.values() for key in _keys_of(value)}
    return inner | set(given.get("properties", ()))


def _covers(path: Path, other: Path) -> bool:
    return other[: len(path)] == path


def _without(value: Any, paths: set[Path]) -> Any:
    """A copy of `value` that lacks what `paths` name; what is not on the way to one of them is shared."""
    if () in paths:
        return {}
    inner: dict[str | int, set[Path]] = {}
    for path in paths:
        inner.setdefault(path[0], set()).add(path[1:])
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {k: _without(v, inner[k]) if k in inner else v for k, v in items if () not in inner.get(k, ())}
    if isinstance(value, list):
        kept = enumerate(cast("list[Any]", value))
        return [_without(v, inner[i]) if i in inner else v for i, v in kept if () not in inner.get(i, ())]
    return value


def _unstorable(raw: dict[str, Any]) -> list[Problem]:
    """Finds values that no JSON text and no database can hold, at any depth: checked once, so that no field has to."""
    problems: list[Problem] = []
    todo: list[tuple[Any, Path]] = [(raw, ())]
    while todo and len(problems) < _MAX_PROBLEMS:
        value, path = todo.pop()
        if isinstance(value, str):
            if (wrong := _bad_text(value)) is not None:
                problems.append(Problem(path, f"the text {wrong}"))
        elif isinstance(value, dict):
            if len(path) >= MAX_DEPTH:
                problems.append(Problem(path, f"nested more than {MAX_DEPTH} levels deep"))
                continue
            for key, item in cast("dict[Any, Any]", value).items():
                if type(key) is not str:
                    hint = "put it in quotes" if isinstance(key, (bool, int, float)) else None
                    problems.append(Problem(path, f"a key must be text, not {found(key)}", hint))
                elif (wrong := _bad_text(key)) is not None:
                    problems.append(Problem(path, f"a key {wrong}"))
                elif item is not None and type(item) is not bool:
                    todo.append((item, (*path, key)))
        elif isinstance(value, list):
            if len(path) >= MAX_DEPTH:
                problems.append(Problem(path, f"nested more than {MAX_DEPTH} levels deep"))
                continue
            todo.extend((item, (*path, index)) for index, item in enumerate(cast("list[Any]", value)))
        elif isinstance(value, float):
            if not math.isfinite(value):
                problems.append(Problem(path, "a number must be finite"))
        elif value is not None and not isinstance(value, int):
            problems.append(
                Problem(path, f"a value of type {type(value).__name__} cannot be stored", "put it in quotes")
            )
    return problems


def _bad_text(text: str) -> str | None:
    if text.isascii() and "\0" not in text:
        return None
    if "\0" in text:
        return "holds a NUL character, which cannot be stored"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half of a surrogate pair, which is not Unicode"
    return None


def _blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())
