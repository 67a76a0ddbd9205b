"""What is said of a resource that is not there, the same by every client."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, Protocol

from foliot.errors import NotFound
from foliot.store.base import Filter, Key, Page, Requirement

_LOOKED_AT: Final = 1000
"""Names compared with a wrong one. More would make a typing mistake in a large namespace slow."""


class Lister(Protocol):
    def __call__(self, filter: Filter, *, limit: int = ...) -> Awaitable[Page]: ...


async def not_found(key: Key, list: Lister, *, elsewhere: bool = True) -> NotFound:
    """Says what is missing, and names what may have been meant: alike here, or the same in another namespace.

    Not `elsewhere` for somebody who may not see other namespaces.
    """
    import difflib

    here = await list(Filter(key.kind, key.namespace), limit=_LOOKED_AT)
    names = [str(document["metadata"]["name"]) for document in here.items]
    near = difflib.get_close_matches(key.name, names, n=3, cutoff=0.6)
    near = near or [name for name in names if key.name in name][:3]
    hint = f"Did you mean {' or '.join(near)}?" if near else await _elsewhere(key, list) if elsewhere else None
    return NotFound(f"{key} is not there.", hint=hint, kind=key.kind, name=key.name, namespace=key.namespace)


async def _elsewhere(key: Key, list: Lister) -> str | None:
    by_name = (Requirement("metadata.name", "=", (key.name,)),)
    page = await list(Filter(key.kind, None, fields=by_name), limit=3)
    spaces = [str(document["metadata"]["namespace"]) for document in page.items]
    return f"There is one in namespace {' and in '.join(spaces)}: add `-n {spaces[0]}`." if spaces else None
