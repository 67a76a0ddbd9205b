"""Cursors: the place where a page of a list ended, as a text that its reader hands back unread.

A cursor is base64 of the kind of list, a colon and the place as JSON, without padding; lists that are older than kinds
leave the kind out. It grants nothing that the list itself does not, but it can be read, so a server seals it before it
gives it out (`server/cursors.py`). What is in clients' hands must be read for as long as the list exists, so the shape
of a place changes only with a new kind.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final, TypeVar

import msgspec

from foliot.errors import InvalidInput

Place = TypeVar("Place")
# No key is larger, and every database can hold it.
LARGEST_KEY: Final = 2**62


def write_cursor(place: Any, *, kind: str = "") -> str:
    """Return the cursor of a place: anything that JSON can hold."""
    data = msgspec.json.encode(place)
    return base64.urlsafe_b64encode(f"{kind}:".encode() + data if kind else data).decode().rstrip("=")


def read_cursor(cursor: str, type: type[Place], *, kind: str = "") -> Place:
    """Return the place that a cursor of this kind names. Raises `InvalidInput` for any other text."""
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        if data.startswith(prefix := f"{kind}:".encode() if kind else b""):
            return msgspec.json.decode(data.removeprefix(prefix), type=type)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        pass
    raise foreign_cursor()


def read_key(cursor: str, *, kind: str) -> int:
    """Return the place in a list that is in the order of a key. Raises `InvalidInput` as `read_cursor`."""
    key = read_cursor(cursor, int, kind=kind)
    if not 0 <= key <= LARGEST_KEY:
        raise foreign_cursor()
    return key


def foreign_cursor() -> InvalidInput:
    """Return the refusal of a cursor that another list issued, or nobody."""
    return InvalidInput(
        "the cursor does not belong to this list", hint="start again from the first page, without a cursor"
    )
