"""Arguments of tool calls: the one form in which they are judged, shown, hashed and passed on.

Conditions (CEL), schemas, people, digests and tools read arguments with different parsers. What two parsers read
differently is a blind spot, so it is refused, and the caller is told how to put it right:

    repeated names            the first or the last value counts, depending on the parser
    NUL (U+0000)              CEL ends a text there; so does whatever is written in C
    half of a surrogate pair  cannot be written as UTF-8
    NaN, Infinity             are no JSON: one writer makes `null` of them, another refuses
    integers above 64 bits    CEL has none, and many parsers round them
    deep nesting, long names  parsers and people give up at different places

What is left is plain JSON: objects with text names, lists, texts, numbers, booleans, null. `canonical` is its one text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from math import isfinite
from typing import Any, Final, cast

import msgspec

DEEPEST: Final = 64
"""Levels of objects and lists, the arguments themselves among them."""
LONGEST_NAME: Final = 1024
_LEAST, _MOST = -(2**63), 2**63 - 1
_NAMED: Final = re.compile(r'"\s*:')
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
# Built in, under a name that says nothing of its result to a type checker: a cast would be a call for each value.
_kind_of: Callable[[Any], Any] = type
_canonical: Final = msgspec.json.Encoder(order="deterministic").encode


def parse_object(text: str | bytes) -> tuple[dict[str, Any] | None, str]:
    """Returns the object that a JSON text says; or None, and what is wrong with it.

    Journals are folded by this alone: a call that was run before a rule of this module was made stays what it was.
    """
    try:
        return _decode(text), ""
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return None, str(error) or type(error).__name__


def read_arguments(text: str | bytes) -> tuple[dict[str, Any] | None, str]:
    """Returns the arguments that a JSON text says; or None, and why they cannot be judged."""
    arguments, problem = parse_object(text)
    if arguments is None:
        return None, f"not a JSON object: {problem}"
    problem = repeated_name(text, arguments) or problem_of(arguments)
    return (None, problem) if problem else (arguments, "")


def canonical(arguments: Mapping[str, Any]) -> bytes:
    """Returns the one text of arguments: sorted names, no white space, UTF-8."""
    return _canonical(arguments)


def sameness(arguments: Mapping[str, Any], schema: Mapping[str, Any] | None) -> bytes:
    """Returns the one text of arguments that mean the same to a tool: `canonical`, and 1.0 is 1, and a top-level
    property that is left out has its default.
    """
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        kind = _kind_of(value)
        found[name] = _by_value(value) if kind is float or kind is dict or kind is list else value
    properties: Any = schema.get("properties") if schema else None
    if _kind_of(properties) is dict:
        for name, told in properties.items():
            if name not in found and type(told) is dict and "default" in told:
                found[name] = _by_value(told["default"])
    return _canonical(found)


def _by_value(value: Any, levels: int = DEEPEST) -> Any:
    """A call whose arguments are deeper than `levels` is refused: there they stay as they were written."""
    if type(value) is float:
        return int(value) if value.is_integer() and _LEAST <= value <= _MOST else value
    if levels and type(value) is list:
        return [_by_value(each, levels - 1) for each in cast("list[Any]", value)]
    if levels and type(value) is dict:
        return {name: _by_value(each, levels - 1) for name, each in cast("dict[str, Any]", value).items()}
    return value


def arguments_digest(arguments: Mapping[str, Any]) -> str:
    """Names arguments by their meaning: neither the order of their names nor white space counts."""
    return f"sha256:{sha256(_canonical(arguments)).hexdigest()}"


def problem_of(arguments: Any) -> str:
    """Says why arguments cannot be judged; empty when they can. Only types that JSON has are taken, no subclasses."""
    if _kind_of(arguments) is not dict:
        return "the arguments are not an object"
    for name, value in arguments.items():
        # Nearly all arguments are short texts and numbers, one level deep.
        kind = _kind_of(value)
        if kind is str:
            if "\0" in value or not (value.isascii() or _is_unicode(value)):
                return _said(_place((name,)), value)
        elif kind is int:
            if not _LEAST <= value <= _MOST:
                return _said(_place((name,)), value)
        elif kind is not bool and value is not None and (problem := _problem(value, (name,))):
            return problem
        if type(name) is str and len(name) <= LONGEST_NAME and name.isascii() and "\0" not in name:
            continue
        if problem := _problem_of_name(name, ()):
            return problem
    return ""


def problem_in(value: Any) -> str:
    """Says the same of any value that is judged, such as the output of an agent."""
    return _problem(value, ())


def repeated_name(text: str | bytes, value: Any) -> str:
    """Says which name stands twice in one object of a JSON text; empty for none. `value` is the text decoded.

    Every name is followed by a colon, so a text with no more of these than `value` has names repeats none. Only texts
    that hold such colons in strings are read a second time.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    colons = text.count('":')
    if colons != text.count(":"):
        colons = len(_NAMED.findall(text))
    try:
        if colons != _names_in(value):
            json.loads(text, object_pairs_hook=_unrepeated, parse_int=_ignored, parse_float=_ignored)
    except _Repeated as error:
        return f"the name {_short(error.name)!r} stands more than once in one object"
    except RecursionError:
        return f"it is nested more than {DEEPEST} levels deep"
    except ValueError:
        return "two JSON parsers read it differently"
    return ""


def read_json(text: bytes) -> Any:
    """Returns the value of a JSON text from outside, in which no object has a name twice.

    Raises `msgspec.ValidationError` for one that has, and `msgspec.DecodeError` or `RecursionError` for what is not
    JSON. Whoever signs or checks such a text may have read the other of the two values.
    """
    try:
        value = msgspec.json.decode(text)
    except UnicodeDecodeError:
        raise msgspec.DecodeError("JSON is malformed: it is not UTF-8") from None
    if problem := repeated_name(text, value):
        raise msgspec.ValidationError(problem)
    return value


# --- one value ---------------------------------------------------------------------------------------------------


def _problem(value: Any, place: tuple[str | int, ...]) -> str:
    kind = _kind_of(value)
    if kind is str:
        return _said(_place(place), value) if "\0" in value or not _is_unicode(value) else ""
    if kind is bool or value is None:
        return ""
    if kind is int:
        return "" if _LEAST <= value <= _MOST else _said(_place(place), value)
    if kind is float:
        return "" if isfinite(value) else _said(_place(place), value)
    if kind is not dict and kind is not list:
        return f"{_place(place)} is {kind.__name__!r}, which JSON does not have"
    if len(place) >= DEEPEST:
        return f"the arguments are nested more than {DEEPEST} levels deep"
    if kind is list:
        for index, item in enumerate(cast("list[Any]", value)):
            if problem := _problem(item, (*place, index)):
                return problem
        return ""
    for name, item in cast("dict[Any, Any]", value).items():
        if problem := _problem_of_name(name, place) or _problem(item, (*place, name)):
            return problem
    return ""


def _problem_of_name(name: Any, place: tuple[str | int, ...]) -> str:
    if type(name) is not str:
        return f"{_place(place)} has a name that is no text but {type(name).__name__!r}"
    if len(name) > LONGEST_NAME:
        return f"{_place(place)} has a name of {len(name):,} characters; {LONGEST_NAME:,} are allowed"
    if "\0" in name or not _is_unicode(name):
        return _said(f"a name in {_place(place)}", name)
    return ""


def _said(place: str, value: str | int | float) -> str:
    """Words the complaint without the value, which may be a secret."""
    if isinstance(value, str):
        return f"{place} holds a NUL character" if "\0" in value else f"{place} holds half of a surrogate pair"
    if isinstance(value, int):
        return f"{place} is an integer of more than 64 bits (write it as a text)"
    return f"{place} is a number that JSON does not have (NaN or Infinity)"


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _place(place: tuple[str | int, ...]) -> str:
    return "/".join(_short(part) if isinstance(part, str) else str(part) for part in place) or "the value"


def _short(name: Any) -> str:
    text = ascii(name)[1:-1] if isinstance(name, str) else str(name)
    return text if len(text) <= 60 else f"{text[:60]}…"


# --- repeated names ----------------------------------------------------------------------------------------------


class _Repeated(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        raise _Repeated(next(name for name, _ in pairs if name in seen or seen.add(name)))
    return found


def _ignored(number: str) -> int:
    return 0


def _names_in(value: Any) -> int:
    count, left = 0, [value]
    while left:  # no recursion: how deep that may go differs between Pythons
        inside = left.pop()
        if _kind_of(inside) is dict:
            count += len(inside)
            inside = inside.values()
        elif _kind_of(inside) is not list:
            continue
        for item in inside:
            if _kind_of(item) is dict or _kind_of(item) is list:
                left.append(item)
    return count
