"""Shell completion: kinds, names, namespaces. It never raises: at worst it offers nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from foliot.errors import FoliotError
from foliot.resources.kinds import KINDS, find_kind
from foliot.store.base import Filter

if TYPE_CHECKING:
    from foliot.runtime.groups.groups import StoreGroups

T = TypeVar("T")
ENOUGH = 200


def kinds(context: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [kind.plural for kind in KINDS.values() if kind.plural.startswith(incomplete.lower())]


def targets(context: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """A kind first; names of it after `agent `, `agent/` or for the last of `agents,tools`."""
    words: tuple[str, ...] = tuple(context.params.get(param.name or "") or ())
    if "/" in incomplete:
        kind, _, start = incomplete.partition("/")
        return [f"{kind}/{name}" for name in _names(kind, start)]
    if words and "/" not in words[0]:
        return _names(words[0].rpartition(",")[2], incomplete)
    before, comma, start = incomplete.rpartition(",")
    return [f"{before}{comma}{kind.plural}" for kind in KINDS.values() if kind.plural.startswith(start.lower())]


def budgets(context: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return _names("budget", incomplete)


def namespaces(context: click.Context, incomplete: str) -> list[str]:
    async def ask(client: StoreGroups) -> set[str]:
        page = await client.resources.list(Filter(), limit=1000)
        return {str(document["metadata"]["namespace"]) for document in page.items}

    return sorted(name for name in _ask(ask, set[str]()) if name.startswith(incomplete))


def _names(word: str, start: str) -> list[str]:
    from foliot.cli.reach import namespace

    async def ask(client: StoreGroups) -> list[str]:
        page = await client.resources.list(Filter(find_kind(word).name, namespace()), limit=1000)
        return [str(document["metadata"]["name"]) for document in page.items]

    return [name for name in _ask(ask, list[str]()) if name.startswith(start)][:ENOUGH]


def _ask(question: Callable[[StoreGroups], Awaitable[T]], otherwise: T) -> T:
    from foliot.cli.reach import connected, run

    async def ask() -> T:
        async with connected() as client:
            return await question(client)

    try:
        return run(ask())
    except (FoliotError, OSError):
        return otherwise  # a message here would be written into the line that is being typed
