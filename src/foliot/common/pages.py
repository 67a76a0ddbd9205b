"""Lists that come in pages: read to their end.

Every list of Foliot, of a store or of a server, is asked with `cursor=` and answers with `items` and the `cursor` of
the next page, None on the last one. These two functions are the only loops over them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


class Paged(Protocol[Item_co]):
    """One page of a list."""

    @property
    def items(self) -> Sequence[Item_co]: ...

    @property
    def cursor(self) -> str | None: ...


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
