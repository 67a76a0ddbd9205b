"""From one parsed document to its normal form, or to the list of everything that is wrong with it.

The normal form has every default filled in, one spelling of each field, canonical `apiVersion` and `kind`, and no
empty values. Normalising it again changes nothing, so documents can be compared and digested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

from pydantic import ValidationError

from foliot.resources.base import API_VERSION, Resource, check_api_version
from foliot.resources.explain import explain, found
from foliot.resources.kinds import KINDS, Kind, kind_of, near_kind
from foliot.resources.problems import Path, Problem

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
    hint = f"did you mean {near.name}?" if near else None
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
        problems += [problem for problem in told.problems if _is_news(problem, problems, taken)]
        if not told.wrong and not told.unknown:
            break
        taken += told.wrong
        candidate = _without(candidate, {*told.wrong, *told.unknown})
    return None, problems


def _is_news(problem: Problem, known: list[Problem], taken: list[Path]) -> bool:
    if any(_covers(other.path, problem.path) for other in known):
        return False
    if " is required" in problem.message:
        return True
    return not any(_covers(path[:-1], problem.path) for path in taken)


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
    """What no JSON text and no database can hold, wherever it is: checked once, so that no field has to."""
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
