"""Arguments and ids of tool calls, made safe in both directions.

A model may write arguments that are no JSON, and they stand in the journal as written; providers refuse such a history,
so it is sent as an object that says the same. Some providers give calls no id, or the same id twice; within a run an
id must be unique, and it must be the same when the same question is asked again after a crash.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import msgspec

from foliot.kernel.messages import ModelRequest

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY = msgspec.json.Decoder()
_OWN = "foliot_"

# What providers take as the id of a call. An id goes back as it came wherever it fits: some models go by it.
ANY_ID = re.compile(r".{1,40}")
PLAIN_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
NINE_ID = re.compile(r"[a-zA-Z0-9]{9}")  # Mistral


def arguments_text(arguments: str) -> str:
    """Arguments as the text of a JSON object: unchanged when they are one, else under the key `input`."""
    try:
        _OBJECT.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return msgspec.json.encode(arguments_object(arguments)).decode()
    return arguments


def arguments_object(arguments: str) -> dict[str, Any]:
    """Arguments as an object: nothing is lost, whatever the model wrote."""
    if not arguments.strip():
        return {}
    try:
        value: Any = _ANY.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError):
        # A lone surrogate cannot be sent in UTF-8 at all.
        return {"input": arguments.encode("utf-8", "replace").decode()}
    if isinstance(value, dict):
        return value  # pyright: ignore[reportUnknownVariableType]  # JSON: the keys are strings
    return {"input": value if isinstance(value, str) else arguments}


def raw_piece(value: msgspec.Raw) -> str:
    """Returns the text the model wrote, which a provider sent as a string, or as an object where a string was due."""
    text = bytes(value).decode()
    if text.startswith('"'):
        return str(_ANY.decode(text))
    return "" if text == "null" else text


def raw_arguments(value: msgspec.Raw) -> str:
    """The same for whole arguments, where none means an empty object."""
    return raw_piece(value) or "{}"


def sendable_id(call_id: str, fits: re.Pattern[str] = PLAIN_ID) -> str:
    """An id that the provider takes. Ids of one provider reach another when a run falls back to it."""
    if fits.fullmatch(call_id):
        return call_id
    digest = blake2b(call_id.encode("utf-8", "replace"), digest_size=12).hexdigest()
    return digest[:9] if fits is NINE_ID else f"{_OWN}{digest}"


def is_own_id(call_id: str) -> bool:
    """Was this id made here, so that the provider has never heard of it?"""
    return call_id.startswith(_OWN)


class CallIds:
    """Ids for the calls of one answer. `seed` is asked only when an id must be made: usually never."""

    def __init__(self, request: ModelRequest, seed: Callable[[], bytes]) -> None:
        self._request = request
        self._seed = seed
        self._used: set[str] | None = None
        self._digest = ""
        self._made = 0

    def claim(self, given: str | None) -> str:
        """The provider's id if it is new in this run, else one made from the whole question and the call's place."""
        used = self._used
        if used is None:
            used = self._used = {call.id for message in self._request.messages for call in message.calls}
        if given and given not in used:
            used.add(given)
            return given
        self._digest = self._digest or blake2b(self._seed(), digest_size=9).hexdigest()
        while (made := f"{_OWN}{self._digest}_{self._made}") in used:
            self._made += 1
        used.add(made)
        return made


# --- counts ----------------------------------------------------------------------------------------------------------

# Token counts as providers send them, made into numbers that can be added up.
#
# Budgets are kept by these counts, so a count below zero must not give anything back, and one beyond all bounds must
# still fit into the journal.

Count: TypeAlias = int | float | None
"""What stands in an answer: some proxies write whole numbers as 12.0."""
_MOST: Final = 2**53 - 1
TICKS: Final = 10_000_000_000
"""How many of the parts in which x.ai states a price make a dollar."""
_USUAL: Final = frozenset({"", "auto", "default", "standard", "on_demand", "scale"})


def count(value: Count) -> int:
    """The count as a whole number from 0 on; 0 when there is none."""
    return 0 if not value or value < 0 else int(min(value, _MOST))


def dollars(value: Count) -> float | None:
    """A price as the provider gives it; None when there is none, or none that can be one."""
    return None if value is None or not 0 <= value < _MOST else float(value)


def tier_of(said: str | None) -> str:
    """The tier that an answer was served at, as price tables name it; "" for the usual one."""
    tier = (said or "").lower().removeprefix("service_tier_").removeprefix("on_demand_")
    return "" if tier in _USUAL else "priority" if tier == "fast" else tier
