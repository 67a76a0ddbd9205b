"""Arguments that many verbs share, checked once: before either implementation of a group sees them.

A `limit` is how many rows are wanted. A server reads 0 as "as many as you give" for the sake of older clients, and a
store as none at all, so a verb refuses it before it asks either of them. So it does with what is no text where a text
is asked for: no type checker may have looked at the caller. What only some verbs take (words such as a phase or a
decision, an input that must not be empty) is checked by the service below, which both reach.

Used by: every class of work.py and store.py.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from foliot.errors import InvalidInput

Verb = Callable[..., Awaitable[Any]]
# As they stand in the source: annotations are not evaluated here.
_TEXTS = frozenset({"str", "str | None"})


class Group(ABC):  # noqa: B024 (the verbs are abstract, and each group has its own)
    """The base of every group of verbs.

    A verb raises `InvalidInput` for a `limit` below 1, and for anything but a text where its signature has one.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, verb in [*vars(cls).items()]:
            if inspect.iscoroutinefunction(verb) and not name.startswith("_"):
                setattr(cls, name, _with_checked_arguments(verb))


def _with_checked_arguments(verb: Verb) -> Verb:
    texts = {name: kind for name, kind in verb.__annotations__.items() if kind in _TEXTS}
    named = [*inspect.signature(verb).parameters]
    limited = "limit" in (getattr(verb, "__kwdefaults__", None) or ())
    if not texts and not limited:
        return verb

    @functools.wraps(verb)
    async def checked(*args: Any, **kwargs: Any) -> Any:
        limit = kwargs.get("limit", 1)
        if limited and (not isinstance(limit, int) or limit < 1):
            raise InvalidInput(f"a list cannot have {limit!r:.80} items", hint="limit is a whole number from 1 on")
        for name, value in (*zip(named, args, strict=False), *kwargs.items()):
            if (
                name in texts
                and not isinstance(value, str)
                and (value is not None or verb.__annotations__[name] == "str")
            ):
                raise InvalidInput(f"{name} is a text, and not {type(value).__name__}", field=name)
        return await verb(*args, **kwargs)

    return checked


@asynccontextmanager
async def time_limit(seconds: float | None, otherwise: str) -> AsyncGenerator[None]:
    """Raise `TimeoutError` when the block takes longer, saying how things stand: `otherwise`. None sets no limit."""
    import asyncio

    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():  # one from within: of a connection, of a tool
            raise
        raise TimeoutError(f"{otherwise} after {seconds:g} seconds") from error
