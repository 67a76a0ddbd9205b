"""Events as bytes, and back, for ever.

The bytes are JSON that names its own type, so a journal can be exported and read without its table. Version 1 of a type
is tagged `tool.finished`, version 2 `tool.finished@2`: the decoder picks the right shape by the tag alone.

Values keep the order of their names. A model that was asked for `reasoning` before `answer` reads its own answers, and
what tools return, in that order; a journal that sorted them would send other bytes than the process that wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from operator import is_
from typing import Any, Final, Generic, TypeVar, Union, cast, get_args

import msgspec
from msgspec import Struct

from foliot.kernel.errors import NewerEvent, Unencodable, UnknownEvent
from foliot.kernel.run import events
from foliot.kernel.run.events import Event, Fact

F = TypeVar("F", bound=Struct)
# 2 and 2.0 are the same default; True is another thing than 1.
_NUMBERS: Final = {int, float}
ENCODING_ERRORS: Final = (UnicodeEncodeError, TypeError, ValueError, OverflowError)


class Opaque(Struct, frozen=True):
    """An event of a type or version that this version does not know: to be shown, never to be acted on."""

    type: str
    data: dict[str, Any]


class Codec(Generic[F]):
    """Encodes `current` types; decodes them and the `retired` ones, which it turns into current ones."""

    def __init__(self, current: tuple[type[F], ...], retired: Mapping[type[Any], Callable[[Any], Any]]) -> None:
        self._retired = dict(retired)
        shapes: Any = Union[(*current, *retired)]
        self._names = frozenset(str(shape.__struct_config__.tag) for shape in (*current, *retired))
        # Without the translation of its errors, for whoever does that in the same breath.
        self.dump: Final = msgspec.json.Encoder().encode
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(shapes).decode

    def encode(self, event: F) -> bytes:
        """JSON, in the order of the fields and of what they hold. Raises `Unencodable`."""
        try:
            return self.dump(event)
        except ENCODING_ERRORS as error:
            raise Unencodable(f"{type_of(event)} cannot be written as JSON: {error}") from error

    def decode(self, data: bytes) -> F:
        """The event, in its newest version. Raises `UnknownEvent`, and `NewerEvent` for a name that it has not."""
        try:
            event: Any = self._decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            name = _name_in(data)
            what = "an event" if name is None else f"event {name!r}"
            kind = UnknownEvent if name is None or name in self._names else NewerEvent
            raise kind(f"{what} cannot be read by this version of foliot: {error}") from error
        while (upcast := self._retired.get(event.__class__)) is not None:
            event = upcast(event)
        return event


S = TypeVar("S", bound=Struct)


def settled(value: S) -> S:
    """Returns an equal struct in which each field that equals its default holds that very object, at every depth.

    msgspec leaves a field out when it *is* the default, not when it equals it. Without this two equal specs would give
    other bytes, and other digests, depending on whether somebody had spelled a default out.
    """
    changed: dict[str, Any] = {}
    for name, default in _defaults(type(value)):
        given = getattr(value, name)
        if given is default:
            continue
        kept = _settled(given)
        kinds: set[type[Any]] = {type(kept), type(default)}
        if kept == default and (len(kinds) == 1 or kinds == _NUMBERS):
            kept = default
        if kept is not given:
            changed[name] = kept
    return msgspec.structs.replace(value, **changed) if changed else value


@cache
def _defaults(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    """The fields of a struct with their defaults. msgspec evaluates every annotation to say so: 3 ms for a spec."""
    return tuple((field.name, field.default) for field in msgspec.structs.fields(kind))


def _settled(value: Any) -> Any:
    """The same of what a field holds; the very value when there is nothing to change in it."""
    if isinstance(value, Struct):
        return settled(value)
    if type(value) is tuple:
        items = cast("tuple[Any, ...]", value)
        made = tuple(map(_settled, items))
        return items if all(map(is_, made, items)) else made
    if type(value) is dict:
        named = cast("dict[Any, Any]", value)
        held = any(isinstance(item, Struct) for item in named.values())
        return {name: _settled(item) for name, item in named.items()} if held else named
    return value


def type_of(event: Struct) -> str:
    """The name of the event's type without its version, for example `tool.finished`."""
    return NAMES.get(type(event)) or str(type(event).__struct_config__.tag).partition("@")[0]


def _name_in(data: bytes) -> str | None:
    try:
        return str(msgspec.json.decode(data)["type"])
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
        return None


EVENT_TYPES: Final[tuple[type[Fact], ...]] = get_args(events.Event)
# Shapes that are no longer written, each with the step to the next newer one. Only ever added to.
RETIRED: Final[Mapping[type[Fact], Callable[[Any], Any]]] = {}
# The names of current types, as `type_of` gives them.
NAMES: Final[dict[type[Any], str]] = {t: str(t.__struct_config__.tag).partition("@")[0] for t in EVENT_TYPES}
_codec: Final[Codec[Fact]] = Codec(EVENT_TYPES, RETIRED)


def encode(event: Event) -> bytes:
    """Encodes an event as JSON; decoding and encoding it again gives the same bytes. Raises `Unencodable`."""
    try:
        return _codec.dump(event)
    except ENCODING_ERRORS as error:
        raise Unencodable(f"{type_of(event)} cannot be written as JSON: {error}") from error


def decode(data: bytes) -> Event:
    """Decodes an event that this or any earlier version encoded.

    Raises `UnknownEvent`: do not act on such a journal.
    """
    return _codec.decode(data)  # pyright: ignore[reportReturnType] - the codec was built from the members of Event


def read(data: bytes) -> Event | Opaque:
    """Decodes an event for traces and exports only: an event of a newer version comes back as `Opaque`."""
    try:
        return decode(data)
    except UnknownEvent:
        try:
            raw = msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raw = {"raw": data.decode("utf-8", "replace")}
        return Opaque(str(raw.get("type", "unknown")), raw)
