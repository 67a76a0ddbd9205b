"""Lists that come in pages: read to their end, or as far as was asked for.

Every list of Foliot, of a store or of a server, is asked with `cursor=` and answers with `items` and the `cursor` of
the next page, None on the last one. A page may be shorter than what was asked for: only its cursor says whether more
follows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


class Paged(Protocol[Item_co]):
    """One page of a list."""

    @property
    def items(self) -> Sequence[Item_co]: ...

    @property
    def cursor(self) -> str | None: ...


class Part(NamedTuple, Generic[Item]):
    """A part of a list, as a `Paged`. `cursor` is where the next one begins, None at the end of the list."""

    items: list[Item]
    cursor: str | None


Page = TypeVar("Page", bound=Paged[Any])


async def read_pages(ask: Callable[..., Awaitable[Page]], *given: Any, **options: Any) -> AsyncIterator[Page]:
    """Yield the pages of `ask(*given, cursor=…, **options)` in order; stop asking when the reader stops."""
    page = await ask(*given, **options)
    yield page
    while page.cursor is not None:
        page = await ask(*given, cursor=page.cursor, **options)
        yield page


async def read_all(ask: Callable[..., Awaitable[Paged[Item]]], *given: Any, **options: Any) -> list[Item]:
    """Return the items of all pages: `await read_all(store.list, Filter("Tool", "default"))`."""
    return [item async for page in read_pages(ask, *given, **options) for item in page.items]


async def read_first(
    count: int,
    ask: Callable[..., Awaitable[Paged[Item]]],
    *given: Any,
    cursor: str | None = None,
    **options: Any,
) -> Part[Item]:
    """Return the first `count` items behind the cursor, of as many pages as that takes.

    Each page is asked with `limit=`, how many are still missing; whoever answers may send fewer at a time.
    """
    found: list[Item] = []
    while len(found) < count:
        page = await ask(*given, cursor=cursor, limit=count - len(found), **options)
        found += page.items
        cursor = page.cursor
        if cursor is None:
            break
    return Part(found, cursor)
