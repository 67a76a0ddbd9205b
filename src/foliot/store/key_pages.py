"""The newest keys of a list that several queries answer together, each by its own index.

One text for all filters would be answered by looking at every row, so a list has one query for each index (see
queries/tasks.sql and runs.sql). What several of them find, such as one for each of two phases, is put together here.

Where several filters hold, nobody knows which of them leaves the fewest rows: a label may be that of all tasks, or of
one. So each is walked along for a while, in turns, until one of the walks has found enough or is at its end: a list
costs what the rarest of its filters costs, times the number of filters. Over all namespaces an index that begins with
the filter is still parted by namespaces: there a filter that few rows have is read whole, and one that many have is
looked for in each namespace, if it is not met among the newest of all.

Called by:  work/tasks/list.py, store/journal/database.py.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby, islice
from operator import neg
from typing import Any, Final, NamedTuple

import msgspec

from foliot.errors import ReadTooLong
from foliot.store.base import Database

# Behind every key.
NEWEST: Final = 2**62
# So many keys are taken at the first turn of a walk, and twice as many at each further one, up to the most.
FIRST_STRIDE: Final = 200
LONGEST_STRIDE: Final = 3200
# The seconds after which a list that has to look at more and more gives up.
LONGEST: Final = 10.0


# Of a filter that no more rows have than these, a list over all namespaces reads all keys. What has more is met among
# the newest, or is looked for in each namespace.
RARE: Final = 5000


class KeySource(NamedTuple):
    """A query that gives keys below `:before`, largest first, at most `:count` of them, and its other parameters.

    One that looks in each namespace costs what all of these have together: `any_order` is the query for the same keys
    as they come, which is better where they are few.
    """

    query: str
    params: Mapping[str, Any]
    any_order: str = ""


def key_source(query: str, params: Mapping[str, Any]) -> KeySource:
    """Returns the source of a filter: within the namespace that its parameters name, or over all of them."""
    if "namespace" in params:
        return KeySource(query, params)
    return KeySource(f"{query}_everywhere", params, f"{query}_any_order")


async def newest_keys(database: Database, sources: Sequence[KeySource], *, before: int, count: int) -> list[int]:
    """Returns the largest keys below `before` that any of the sources gives, each once, at most `count`."""
    found: list[list[int]] = []
    for source in sources:
        rows = await database.read(source.query, before=before, count=count, **source.params)
        found.append([row["key"] for row in rows])
    # What a source has left out is smaller than all that it gave, so the largest ones of all are among these.
    merged = (key for key, _ in groupby(heapq.merge(*found, key=neg)))
    return list(islice(merged, count))


async def matching_keys(
    database: Database,
    walks: Sequence[Sequence[KeySource]],
    matching: KeySource | None,
    *,
    before: int,
    count: int,
    clock: Callable[[], float] = time.monotonic,
    fitting: Callable[[list[int]], Awaitable[list[int]]] | None = None,
) -> list[int]:
    """Returns the largest keys below `before` for which all filters of a list hold, at most `count`.

    The sources of each walk give all keys for which one of the filters holds; `matching` is the query that says for
    which `:keys` the others do, None where there are no others. `fitting` leaves those for which the filters hold that
    no query knows. Raises `ReadTooLong`.
    """
    if matching is None and fitting is None:
        return await newest_keys(database, walks[0], before=before, count=count)

    async def fit(keys: list[int]) -> list[int]:
        if matching is not None and keys:
            rows = await database.read(matching.query, keys=keys_array(keys), **matching.params)
            keys = sorted((row["key"] for row in rows), reverse=True)
        return await fitting(keys) if fitting is not None and keys else keys

    began = clock()
    places, found = [before] * len(walks), [list[int]() for _ in walks]
    stride = first = min(max(FIRST_STRIDE, count), LONGEST_STRIDE)
    rare: list[int] | None = None
    looked = False
    while True:
        for number, sources in enumerate(walks):
            in_each = any(source.any_order for source in sources)
            if in_each and not looked:
                looked, rare = True, await _rarest(database, walks, before)
            if rare is not None:
                return await _of_rare(rare, fit, count)
            asked = first if in_each else stride  # so many of each namespace
            keys = await newest_keys(database, sources, before=places[number], count=asked)
            found[number] += await fit(keys)
            if len(keys) < asked or len(found[number]) >= count:
                return found[number][:count]
            places[number] = keys[-1]
        if (took := clock() - began) > LONGEST:
            raise ReadTooLong.of(walks[0][0].query if matching is None else matching.query, took)
        stride = min(2 * stride, LONGEST_STRIDE)


async def _rarest(database: Database, walks: Sequence[Sequence[KeySource]], before: int) -> list[int] | None:
    """Returns all keys of the first walk that has few of them, largest first; None when all have many."""
    for sources in walks:
        if not all(source.any_order for source in sources):
            continue
        found: set[int] = set()
        for source in sources:
            rows = await database.read(source.any_order, before=before, count=RARE + 1 - len(found), **source.params)
            found.update(row["key"] for row in rows)
            if len(found) > RARE:
                break
        else:
            return sorted(found, reverse=True)
    return None


async def _of_rare(rare: list[int], fit: Callable[[list[int]], Awaitable[list[int]]], count: int) -> list[int]:
    found: list[int] = []
    stride = min(max(FIRST_STRIDE, count), LONGEST_STRIDE)
    for start in range(0, len(rare), stride):
        found += await fit(rare[start : start + stride])
        if len(found) >= count:
            break
    return found[:count]


def keys_array(keys: Sequence[int]) -> str:
    """Keys as a query takes many of them."""
    return msgspec.json.encode([str(key) for key in keys]).decode()
