"""Cursors of lists: opaque, and good only for the filter they were issued for.

A cursor holds the key of the last item handed out and the revision of the first page, so that every page of one list
names the same place for a watch to take over. The check is against mistakes, not against forgery: a cursor grants
nothing that its filter does not.
"""

from __future__ import annotations

from typing import NamedTuple

from foliot.common.cursors import foreign_cursor, read_cursor, write_cursor
from foliot.store.base import Filter


class CursorPlace(NamedTuple):
    after: str
    revision: int


def issue(place: CursorPlace, filter: Filter) -> str:
    """The cursor for what comes behind `place`."""
    return write_cursor([place.after, place.revision, _check(place, filter)])


def resolve(cursor: str, filter: Filter) -> CursorPlace:
    """Decodes a cursor. Raises `InvalidInput` when it was not issued for this filter, or was changed."""
    after, revision, check = read_cursor(cursor, tuple[str, int, str])
    place = CursorPlace(after, revision)
    if check != _check(place, filter):
        raise foreign_cursor()
    return place


def _check(place: CursorPlace, filter: Filter) -> str:
    import hashlib  # 3 ms that a list of one page does not need

    # Spelled out as it was when the first cursors were issued: they are in clients' hands.
    text = f"(Place(after={place.after!r}, revision={place.revision!r}), {filter!r})"
    return hashlib.blake2s(text.encode("utf-8", "replace"), digest_size=12).hexdigest()
