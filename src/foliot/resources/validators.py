"""The one place where a JSON Schema becomes something that checks values.

A schema comes from whoever declares a tool, asks for a format of an answer, or runs an MCP server; it is input like any
other. So nothing that it names is ever fetched: a `$ref` counts only inside the schema itself (or means a draft of JSON
Schema), whatever `$id`, `$schema` or `$dynamicRef` say. And it must not cost more than it is worth:

    nesting            at most `DEEPEST` levels, references followed
    references         at most `MOST_PARTS` parts when every reference is written out (two references to something
                       with two references to ... double with every step)
    patterns           run in linear time; those that need look-around or back references may go back `MOST_STEPS`
                       times in one text, then they count as not fitting
    problems           a schema that refers to itself twice at one place has a number of problems that doubles with
                       each level of a value, so of values deeper than `LISTED` levels they are not listed

Nobody else imports `jsonschema_rs`: its own defaults read files and addresses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from foliot.errors import InvalidInput

if TYPE_CHECKING:
    import jsonschema_rs

DEEPEST: Final = 200
MOST_PARTS: Final = 20_000
MOST_STEPS: Final = 10_000
LISTED: Final = 3
_PATTERN_BYTES: Final = 1 << 20
_DRAFTS: Final = frozenset(
    {
        "http://json-schema.org/draft-04/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    }
)
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_APART: Final = frozenset({"$defs", "definitions"})  # parts that count only where something refers to them
_OUTSIDE: Final = re.compile(r"^Resource '(.*?)' is not present in a registry", re.DOTALL)

Path: TypeAlias = tuple[str | int, ...]


class UnusableSchema(InvalidInput):
    """A JSON Schema that nothing can be checked with. `path` leads to the part that is wrong."""

    def __init__(self, message: str, *, path: Path = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.path = path


class Validator:
    """Checks values against one schema. `is_valid` is the checker's own: calls on the way of every tool go to it."""

    __slots__ = ("_checker", "_recursive", "is_valid")

    def __init__(self, checker: jsonschema_rs.Validator, *, recursive: bool) -> None:
        self._checker = checker
        self._recursive = recursive
        self.is_valid: Callable[[Any], bool] = checker.is_valid

    def problems(self, value: Any, *, whole: str = "the value") -> list[str]:
        """Says what is wrong with a value, each with its place; empty when it fits. `whole` names the value itself."""
        if self.is_valid(value):
            return []
        if self._recursive and _is_deeper(value, LISTED):
            return [f"{whole}: it does not fit the schema, which refers to itself; check each level against it"]
        return [
            f"{'/'.join(map(str, each.instance_path)) or whole}: {each.message}"
            for each in self._checker.iter_errors(value)
        ]


def _is_deeper(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        children = [*cast("dict[str, Any]", value).values()]
    elif isinstance(value, list):
        children = cast("list[Any]", value)
    else:
        return False
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in children)


def validator_of(schema: Mapping[str, Any] | bool) -> Validator:
    """Makes what checks values against a schema, without fetching anything. Raises `UnusableSchema` only."""
    import jsonschema_rs  # only who has a schema pays for it

    document = schema if isinstance(schema, bool) else dict(schema)
    outside, recursive = _measure(document)
    try:
        checker = jsonschema_rs.validator_for(
            document,
            retriever=_refuse,
            pattern_options=jsonschema_rs.FancyRegexOptions(
                backtrack_limit=MOST_STEPS, size_limit=_PATTERN_BYTES, dfa_size_limit=_PATTERN_BYTES
            ),
        )
        return Validator(checker, recursive=recursive)
    except jsonschema_rs.ValidationError as error:
        if found := _OUTSIDE.match(error.message):
            raise _points_outside(outside, found[1]) from None
        raise UnusableSchema(error.message[:200], path=tuple(error.instance_path)) from None
    except Exception as error:
        raise UnusableSchema(str(error)[:200]) from None
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # how a defect of the library shows; it is no `Exception`
            raise UnusableSchema("it cannot be read") from None
        raise


def _refuse(uri: str) -> Any:
    raise LookupError(f"{uri} is not part of the schema")


def _points_outside(outside: list[tuple[Path, str]], uri: str) -> UnusableSchema:
    path, text = outside[0] if outside else ((), uri)
    return UnusableSchema(
        f"it refers to {text[:120]!r}, which is not in the schema itself; nothing is fetched",
        path=path,
        hint='copy that part under "$defs" and refer to it as "#/$defs/NAME"',
    )


def _measure(document: dict[str, Any] | bool) -> tuple[list[tuple[Path, str]], bool]:
    """Raises when a schema is too deep or multiplies without end.

    Else returns the references that leave it, and whether one leads back to itself.
    """
    outside: list[tuple[Path, str]] = []
    anchors: dict[str, Any] = {}
    for path, part in _parts(document):
        draft = part.get("$schema")
        if isinstance(draft, str) and draft.rstrip("#") not in _DRAFTS and ("$id" in part or not path):
            hint = "leave $schema out for draft 2020-12"
            raise UnusableSchema("the value of $schema is not a known draft", path=(*path, "$schema"), hint=hint)
        for key in ("$anchor", "$dynamicAnchor", "$id", "id"):
            if isinstance(name := part.get(key), str):
                anchors.setdefault(name if key in ("$id", "id") else f"#{name}", part)
        for key in _REFERENCES:
            if isinstance(text := part.get(key), str) and not text.startswith("#"):
                outside.append(((*path, key), text))
    expansion = _Expansion(document, anchors)
    expansion.of(document, 0)
    return outside, expansion.recursive


def _parts(document: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    waiting: list[tuple[Path, Any]] = [((), document)]
    while waiting:
        path, part = waiting.pop()
        if len(path) > DEEPEST:
            raise _too_deep()
        if isinstance(part, dict):
            part = cast("dict[str, Any]", part)
            yield path, part
            waiting += [((*path, key), child) for key, child in part.items()]
        elif isinstance(part, list | tuple):
            waiting += [((*path, index), child) for index, child in enumerate(cast("list[Any]", part))]


def _too_deep() -> UnusableSchema:
    return UnusableSchema(f"it is nested too deeply: at most {DEEPEST} levels, references followed")


class _Expansion:
    """How many parts a schema has once every reference is written out; one that leads back to itself counts once."""

    def __init__(self, document: Any, anchors: Mapping[str, Any]) -> None:
        self._document = document
        self._anchors = anchors
        self._known: dict[int, int] = {}
        self._open: set[int] = set()
        self.recursive = False

    def of(self, part: Any, depth: int) -> int:
        if depth > DEEPEST:
            raise _too_deep()
        if isinstance(part, list | tuple):
            return self._limited(1 + sum(self.of(child, depth + 1) for child in cast("list[Any]", part)))
        if not isinstance(part, dict):
            return 1
        part = cast("dict[str, Any]", part)
        if (known := self._known.get(id(part))) is not None:
            self.recursive = self.recursive or id(part) in self._open
            return known
        self._known[id(part)] = 1
        self._open.add(id(part))
        count = 1 + sum(self.of(child, depth + 1) for key, child in part.items() if key not in _APART)
        for key in _REFERENCES:
            if isinstance(text := part.get(key), str):
                count += self.of(self._target(text), depth + 1)
        self._known[id(part)] = self._limited(count)
        self._open.discard(id(part))
        return count

    def _limited(self, count: int) -> int:
        if count > MOST_PARTS:
            raise UnusableSchema(f"it is too large: at most {MOST_PARTS} parts, every reference written out")
        return count

    def _target(self, text: str) -> Any:
        if text in self._anchors:
            return self._anchors[text]
        before, _, pointer = text.partition("#")
        part = self._anchors.get(before) if before else self._document
        for step in pointer.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(part, dict):
                part = cast("dict[str, Any]", part).get(step)
            elif isinstance(part, list) and step.isascii() and step.isdigit():
                items = cast("list[Any]", part)
                part = items[int(step)] if len(step) < 6 and int(step) < len(items) else None
            else:
                return None
        return part
