"""Where a page of resources begins: behind a cursor that was given out, or behind the name of the last item seen."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from foliot.server.errors import BadParameter
from foliot.store import cursors
from foliot.store.base import Filter, Key, Requirement, ResourceStore
from foliot.store.documents import key_text

CURSOR_HINT: Final = "send `continue` of the page before"


async def place_of(store: ResourceStore, filter: Filter, after: str | None) -> str | None:
    """The cursor for what a client says it has seen; None for the beginning.

    A name is taken where a cursor is, because that is what older clients remember of a page. Without a namespace it
    must be the name of one resource alone: lists are ordered by namespace first. Raises `BadParameter`.
    """
    if not after or is_cursor(after) or filter.kind is None:
        return after or None
    given, _, name = after.rpartition("/")
    space = given or filter.namespace or await _space_of(store, filter, name)
    return cursors.issue(cursors.Place(key_text(Key(filter.kind, space, name)), await store.revision()), filter)


def is_cursor(text: str) -> bool:
    """Whether a text was given out as a cursor, for whatever list. No name looks like one."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)[:1] == b"["
    except (binascii.Error, ValueError):
        return False


async def _space_of(store: ResourceStore, filter: Filter, name: str) -> str:
    named = Requirement("metadata.name", "=", (name,))
    page = await store.list(Filter(filter.kind, None, fields=(*filter.fields, named)), limit=2)
    if len(page.items) != 1:
        how = "no resource is" if not page.items else "resources of several namespaces are"
        raise BadParameter(f"after: {how} called {name[:60]!r}", hint=f"{CURSOR_HINT}, or namespace/name")
    return page.items[0]["metadata"]["namespace"]
