"""The variables and fields that an expression in CEL reads, and what they are compared with. Nothing is evaluated.

    reads_of('value.category == "bug" && has(value.score)')
        Read("value", ("category",), ("bug",)), Read("value", ("score",))

The library compiles the text and hands out the tree, as the message `cel.expr.CheckedExpr` of Protocol Buffers. What
is no part of such a path (a variable of a loop over something else, the result of a function) is passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from cel_expr_python import cel  # pyright: ignore[reportMissingTypeStubs] - its types come without the marker

# Every name that some expression of a manifest may mention.
ROOTS: Final = ("output", "value", "route", "input", "args", "tool", "agent", "caller")
# The step from a list to what is in it.
EACH: Final = "[]"
_DEEPEST: Final = 200
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


class Read(NamedTuple):
    """One mention of a variable, down to the field that is meant. `wanted` are what it is compared with for equality.

    `holding` are texts that are looked for in it: fields of an object, items of a list. `types` are those of `wanted`
    as a schema names them.
    """

    root: str
    steps: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    holding: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        steps = (
            f".{each}" if _PLAIN.issuperset(each) else each if each == EACH else f"[{each!r}]" for each in self.steps
        )
        return self.root + "".join(steps)


@lru_cache(maxsize=1024)
def reads_of(text: str) -> tuple[Read, ...]:
    """Returns everything that `text` reads, in its order; nothing for what is no expression, which others tell."""
    try:
        tree = _environment().compile(text).serialize()
    except RuntimeError:
        return ()
    checked = _last(_fields(tree), _PACKED)
    return tuple(dict.fromkeys(_read(_last(_fields(checked), _EXPR), {name: (name, ()) for name in ROOTS}, 0)))


@cache
def _environment() -> cel.Env:
    from cel_expr_python import cel  # pyright: ignore[reportMissingTypeStubs] - its types come without the marker

    return cel.NewEnv(variables=dict.fromkeys(ROOTS, cel.Type.DYN))


# --- the tree --------------------------------------------------------------------------------------------------------

# Numbers of fields in cel/expr/checked.proto and cel/expr/syntax.proto.
_PACKED: Final = 2  # of google.protobuf.Any, which the tree is packed in
_EXPR: Final = 4  # of CheckedExpr
_CONST, _IDENT, _SELECT, _CALL, _LIST, _STRUCT, _LOOP = 3, 4, 5, 6, 7, 8, 9  # of Expr

_COMPARING: Final = ("_==_", "@in")

_Fields: TypeAlias = Sequence[tuple[int, Any]]
_Path: TypeAlias = tuple[str, tuple[str, ...]]
_Scope: TypeAlias = Mapping[str, _Path | None]


def _fields(message: bytes) -> _Fields:
    """The fields of a message, each with its number: a number, or the bytes of a text, message or double."""
    found: list[tuple[int, Any]] = []
    at = 0
    while at < len(message):
        tag, at = _number(message, at)
        match tag & 7:
            case 0:
                value, at = _number(message, at)
            case 2:
                size, at = _number(message, at)
                value, at = message[at : at + size], at + size
            case kind:
                size = 8 if kind == 1 else 4
                value, at = message[at : at + size], at + size
        found.append((tag >> 3, value))
    return found


def _number(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _last(fields: _Fields, number: int, default: Any = b"") -> Any:
    return next((value for each, value in reversed(fields) if each == number), default)


def _all(fields: _Fields, number: int) -> list[Any]:
    return [value for each, value in fields if each == number]


def _kind(expression: bytes) -> tuple[int, Any]:
    """Which of the kinds of an expression it is, and the message that says the rest."""
    return next(((number, value) for number, value in _fields(expression) if number >= _CONST), (0, b""))


def _path(expression: bytes, scope: _Scope) -> _Path | None:
    """The variable and the fields that an expression names; None when it is something else."""
    number, body = _kind(expression)
    if number == _IDENT:
        return scope.get(_text(_last(_fields(body), 1)))
    if number == _SELECT:
        fields = _fields(body)
        above = _path(_last(fields, 1), scope)
        return None if above is None else (above[0], (*above[1], _text(_last(fields, 2))))
    if number == _CALL and _text(_last(_fields(body), 2)) == "_[_]":
        given, index = _all(_fields(body), 3)
        above, literal = _path(given, scope), _literal(index)
        if above is None or _kind(index)[0] != _CONST or literal is None:
            return None
        return above[0], (*above[1], literal if _is_text(index) else EACH)
    return None


def _read(expression: bytes, scope: _Scope, depth: int) -> Iterator[Read]:
    if depth > _DEEPEST:
        return
    number, body = _kind(expression)
    if (path := _path(expression, scope)) is not None:
        yield Read(*path)
        return
    fields: _Fields = _fields(body) if number not in (0, _CONST) else ()
    if number == _CALL:
        name, parts = _text(_last(fields, 2)), [*_all(fields, 1), *_all(fields, 3)]
        found = _compared(name, parts[0], parts[1], scope) if name in _COMPARING and len(parts) == 2 else None
        if found is not None:
            yield found
            return
        for part in parts:
            yield from _read(part, scope, depth + 1)
    elif number == _SELECT:
        yield from _read(_last(fields, 1), scope, depth + 1)
    elif number == _LIST:
        for part in _all(fields, 1):
            yield from _read(part, scope, depth + 1)
    elif number == _STRUCT:
        for entry in _all(fields, 2):
            for part in (3, 4):
                yield from _read(_last(_fields(entry), part), scope, depth + 1)
    elif number == _LOOP:
        given = _last(fields, 2)
        yield from _read(given, scope, depth + 1)
        path, inner = _path(given, scope), dict(scope)
        inner[_text(_last(fields, 3))] = None
        second = _text(_last(fields, 8))
        inner[_text(_last(fields, 1))] = None if path is None or second else (path[0], (*path[1], EACH))
        if second:
            inner[second] = None
        for part in (4, 5, 6, 7):
            # A variable of the loop alone says nothing that the list did not.
            yield from (
                each
                for each in _read(_last(fields, part), inner, depth + 1)
                if each.steps[-1:] != (EACH,) or each.wanted
            )


def _compared(name: str, left: bytes, right: bytes, scope: _Scope) -> Read | None:
    """A path that is compared with literals, whichever stands first."""
    if name == "_==_":
        for one, other in ((left, right), (right, left)):
            path, literal = _path(one, scope), _literal(other)
            if path is not None and literal is not None:
                return Read(*path, wanted=(literal,), types=(_type(other),))
        return None
    if (path := _path(left, scope)) is not None:
        number, body = _kind(right)
        items = _all(_fields(body), 1) if number == _LIST else []
        literals = tuple(text for each in items if (text := _literal(each)) is not None)
        if number != _LIST or len(literals) < len(items):
            return None
        return Read(*path, wanted=literals, types=tuple(map(_type, items)))
    path, literal = _path(right, scope), _literal(left)
    return Read(*path, holding=(literal,)) if path is not None and literal is not None and _is_text(left) else None


def _type(expression: bytes) -> str:
    """The type of a constant: CEL compares numbers of all kinds with each other, and nothing else across types."""
    kinds = [kind for kind, _ in _fields(_kind(expression)[1])]
    return "string" if 6 in kinds else "boolean" if 2 in kinds else "number"


def _is_text(expression: bytes) -> bool:
    number, body = _kind(expression)
    return number == _CONST and any(each == 6 for each, _ in _fields(body))


def _literal(expression: bytes) -> str | None:
    """A constant as the text that a label has; None for null, and for what is no constant."""
    number, body = _kind(expression)
    for kind, value in _fields(body) if number == _CONST else ():
        match kind:
            case 2:
                return "true" if value else "false"
            case 3:
                return str(value - (1 << 64) if value >> 63 else value)
            case 4:
                return str(value)
            case 5:
                (number,) = struct.unpack("<d", value)
                return str(int(number)) if number.is_integer() else str(number)
            case 6:
                return _text(value)
            case _:
                pass
    return None


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
