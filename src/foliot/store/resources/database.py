"""Declared resources on a database: the `ResourceStore` of both SQLite and PostgreSQL.

Reads go to the last committed state; a write is one transaction whatever its size. What a write means is in
changes.py, how changes are followed in watch.py, how secret values are kept in secrets.py.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial

from foliot.common.times import iso
from foliot.errors import InvalidInput, NotFound, SecretError
from foliot.resources.agreed import Agreed
from foliot.resources.field_owners import decode_owners, leaves
from foliot.resources.references import Reference
from foliot.store.base import (
    THE_PROCESS,
    Change,
    ChangedSince,
    Database,
    DeclaredBy,
    Delete,
    Document,
    Filter,
    Key,
    Owned,
    Page,
    Put,
    Revealed,
    Rotation,
    WriteBody,
    Written,
)
from foliot.store.ledger.pushes import reseal_key
from foliot.store.resources import cursors
from foliot.store.resources.changes import Keyed, apply_changes, check_crossing, crossing, keyed, shown
from foliot.store.resources.documents import check_labels, decode, decode_all, key_of, key_range, key_text, plain
from foliot.store.resources.feed import changed, follow
from foliot.store.resources.mcp_pins import read_agreed
from foliot.store.resources.selectors import matches
from foliot.store.secrets import sealing as secrets
from foliot.store.secrets.store_key import ROTATING, StoreKey, retired_keys
from foliot.store.transaction import Alone, Row, Tx, one, run

# Rows read in one query. A list that filters in memory takes as many rounds as it needs to fill its page, and lets
# other tasks run between them: a page is short only when nothing is left.
ROUND = 1000
SECRETS_PER_ROUND = 100
FORGOTTEN_PER_ROUND = 10_000


class SqlResourceStore:
    """Resources with versions, and every change to them in order. See the protocol for the promises.

    `keyring` is called when the first secret value is sealed, so that a command without secrets never loads
    cryptography, and may make a key; `existing`, which makes none, for a store that is sealed already.
    `now` gives the seconds since 1970.
    """

    def __init__(
        self,
        database: Database,
        keyring: Callable[[], secrets.Sealer],
        *,
        existing: Callable[[], secrets.Sealer] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self.keys = StoreKey(database, keyring, existing)
        self._now = now
        self._revision_at: tuple[object, int] | None = None
        self._seen: tuple[asyncio.AbstractEventLoop, int] | None = None
        self._askers: list[asyncio.Future[int]] = []
        self._answering: asyncio.Task[None] | None = None

    async def get(self, key: Key) -> Document:
        return shown(await self._stored(key))

    async def owned(self, keys: Sequence[Key]) -> dict[Key, Owned]:
        by_text = {key_text(key): key for key in keys}
        texts = [*by_text]
        found: dict[Key, Owned] = {}
        for start in range(0, len(texts), ROUND):
            wanted = json.dumps(texts[start : start + ROUND])
            for row in await self._database.read("resource_get_many", keys=wanted):
                document = shown(decode(row["document"]))
                found[by_text[row["key"]]] = Owned(document, decode_owners(row["owners"], leaves(document)))
        return found

    async def list(self, filter: Filter, *, limit: int = 500, cursor: str | None = None) -> Page:
        if limit < 1:
            raise InvalidInput(f"a page cannot have {limit} items", hint="ask for at least one")
        after, before = key_range(filter)
        if cursor is None:
            revision = await self.revision()
        else:
            after, revision = cursors.resolve(cursor, filter)
        items: list[Document] = []
        last = after
        count = min(ROUND, limit + 1)  # one more than the page tells whether it is the last one
        while True:
            found = await self._candidates(filter, after, before, count)
            for row, stored in zip(found, decode_all([row["document"] for row in found]), strict=True):
                document = shown(stored)
                if not matches(document, filter):
                    continue
                if len(items) == limit:
                    return Page(items, cursors.issue(cursors.CursorPlace(last, revision), filter), revision)
                items.append(document)
                last = row["key"]
            if len(found) < count:
                return Page(items, None, revision)
            after = found[-1]["key"]
            count = min(ROUND, 2 * count)  # few of them match: look at more at a time
            await asyncio.sleep(0)

    async def write(
        self,
        changes: Sequence[Put | Delete],
        *,
        in_transaction: WriteBody | None = None,
        by: DeclaredBy | None = None,
        dry: bool = False,
    ) -> list[Written]:
        prepared = [_prepared(change) for change in changes]
        if not prepared:
            return []
        ring = await self.keys.sealing() if any(each.key.kind == secrets.KIND for each in prepared) else None
        now, uids, declarer = iso(self._now()), _uids(len(prepared)), by or THE_PROCESS
        if found := crossing(prepared):
            in_transaction = partial(_check_with, prepared, found, in_transaction)
        if dry:
            in_transaction = partial(_take_back, in_transaction)
            try:
                return await self._database.write(
                    Alone(_apply_with), prepared, now, uids, ring, declarer, in_transaction
                )
            except _TakenBack as undone:
                return [_foreseen(each) for each in undone.written]
        if in_transaction is None:
            return await self._database.write(apply_changes, prepared, now, uids, ring, declarer)
        return await self._database.write(_apply_with, prepared, now, uids, ring, declarer, in_transaction)

    def watch(self, filter: Filter, *, after: int) -> AsyncIterator[Change]:
        key_range(filter)  # refuses what cannot be a kind or a namespace now, not at the first change
        return follow(self._database, filter, after)

    async def changed(self, after: int, kinds: Sequence[str]) -> ChangedSince | None:
        return await changed(self._database, kinds, after)

    async def revision(self) -> int:
        """One look serves all who ask in the same turn of the event loop.

        Nobody is told less than he can know: whoever was woken by a change, or by word of it, has his turn after the
        look was forgotten.
        """
        seen = self.revision_at_hand()
        if seen is not None:
            return seen
        version = self._database.version()
        if version is None:
            return await self._ask_together()
        revision = await self._revision_of(version)
        loop = asyncio.get_running_loop()
        self._seen = loop, revision
        loop.call_soon(self._forget, loop)
        return revision

    def revision_at_hand(self) -> int | None:
        seen = self._seen
        return seen[1] if seen is not None and seen[0] is asyncio.get_running_loop() else None

    def _show(self, loop: asyncio.AbstractEventLoop, revision: int) -> None:
        self._seen = loop, revision

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._seen is not None and self._seen[0] is loop:
            self._seen = None

    async def _revision_of(self, version: object) -> int:
        known = self._revision_at
        if known is not None and known[0] == version:
            return known[1]
        # The version was looked at first: a commit since then makes the next look differ, and this is read again.
        revision = await self._read_revision()
        self._revision_at = version, revision
        return revision

    async def _read_revision(self) -> int:
        return (await self._database.read("feed_bounds"))[0]["revision"]

    def _ask_together(self) -> asyncio.Future[int]:
        """One round trip for all who ask while another one is under way; never one that began before they asked."""
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._askers.append(asked)
        if self._answering is None:
            self._answering = asyncio.create_task(self._answer())
        return asked

    async def _answer(self) -> None:
        """Reads the revision until no caller waits for it."""
        asked: list[asyncio.Future[int]] = []
        try:
            while self._askers:
                asked, self._askers = self._askers, []
                try:
                    revision = await self._read_revision()
                except Exception as error:
                    for each in asked:
                        if not each.done():
                            each.set_exception(error)
                else:
                    # Those who asked go on between these two calls, and nobody else: what they look up on their way
                    # needs no other look.
                    loop = asyncio.get_running_loop()
                    loop.call_soon(self._show, loop, revision)
                    for each in asked:
                        if not each.done():
                            each.set_result(revision)
                    loop.call_soon(self._forget, loop)
        finally:
            self._answering = None
            for each in (*asked, *self._askers):
                each.cancel()  # those that have no answer, because this was stopped

    async def reveal(self, key: Key) -> Revealed:
        document = await self._stored(key)
        if key.kind != secrets.KIND:
            raise InvalidInput(f"{key} is not a Secret and has no values to reveal")
        return secrets.reveal(key, document, await self.keys.opening())

    async def agreed(self, namespace: str, server: str = "", tool: str = "") -> list[Agreed]:
        return await read_agreed(self._database, namespace, server, tool)

    async def rotate_key(self, *, forget: bool = False) -> Rotation:
        """Make a new key the active one and seal every stored secret value with it, in place.

        Small transactions, so that others can write meanwhile. When it is killed, every value still opens, and the next
        call goes on with the key that the unfinished one had made. Older keys are kept, because backups are sealed with
        them; with `forget` those are given up, last of all, that had been retired before: the key that was active until
        now opens the newest backups, and stays.
        """
        ring, before = await self.keys.rotating(_with_new_key)
        earlier = frozenset(await retired_keys(self._database)) - {before, ring.active_id}
        sealed, values, old = 0, 0, frozenset[str]()
        last: str | None = ""
        while last is not None:
            last, more, its_values, its_keys = await self._database.write(
                secrets.reseal_page, ring, last, SECRETS_PER_ROUND
            )
            sealed, values, old = sealed + more, values + its_values, old | its_keys
        await self._database.write(reseal_key, ring)
        await self.keys.rotated(ring, sorted({*old, before} - {ring.active_id}))
        once = await retired_keys(self._database)
        retired = _retire(ring, earlier) if forget else ()
        if retired:
            await self.keys.forgotten(retired)
        await self._database.write(run, "setting_delete", name=ROTATING)
        kept = tuple(each for each in once if each in ring.key_ids)
        return Rotation(ring.active_id, sealed, values, retired, kept)

    async def compact(self, *, keep: int) -> int:
        if keep < 0:
            raise InvalidInput(f"cannot keep {keep} changes", hint="keep none or more")
        forgotten = 0
        while (more := await self._database.write(_forget_some, keep)) > 0:
            forgotten += more
        return forgotten

    async def _stored(self, key: Key) -> Document:
        found = await self._database.read("resource_get", key=key_text(key))
        if not found:
            raise NotFound(f"there is no {key}", key=str(key))
        return decode(found[0]["document"])

    async def _candidates(self, filter: Filter, after: str, before: str, count: int) -> list[Row]:
        """The next rows that may match, by the index that leaves out most."""
        for each in filter.labels:
            if each.op in ("=", "in") and len(each.values) == 1:
                place = {"label": each.key, "value": each.values[0], "after": after, "before": before}
                return await self._database.read("resource_list_label", **place, count=count)
        if filter.kind is None and filter.namespace is not None:
            place = {"namespace": filter.namespace, "after": after, "before": before}
            return await self._database.read("resource_list_namespace", **place, count=count)
        return await self._database.read("resource_list", after=after, before=before, count=count)


def _apply_with(
    changes: Sequence[Keyed],
    now: str,
    uids: Sequence[str],
    ring: secrets.Sealer | None,
    by: DeclaredBy,
    in_transaction: WriteBody,
) -> Tx[list[Written]]:
    written = yield from apply_changes(changes, now, uids, ring, by)
    yield from in_transaction(written)
    return written


class _TakenBack(Exception):
    """Ends a dry run: the database undoes whatever raises."""

    def __init__(self, written: Sequence[Written]) -> None:
        super().__init__("a dry run is never stored")
        self.written = written


def _take_back(in_transaction: WriteBody | None, written: Sequence[Written]) -> Tx[None]:
    if in_transaction is not None:
        yield from in_transaction(written)
    raise _TakenBack(written)


def _foreseen(written: Written) -> Written:
    """Removes what only the store could have given. A change that is none, or a deletion, keeps what it has."""
    if written.action in ("unchanged", "deleted"):
        return written
    given = ("resourceVersion", "updatedAt", *(("uid", "createdAt") if written.action == "created" else ()))
    metadata = {name: value for name, value in written.document["metadata"].items() if name not in given}
    return replace(written, document={**written.document, "metadata": metadata})


def _check_with(
    changes: Sequence[Keyed],
    found: dict[int, list[Reference]],
    in_transaction: WriteBody | None,
    written: Sequence[Written],
) -> Tx[None]:
    yield from check_crossing(changes, written, found)
    if in_transaction is not None:
        yield from in_transaction(written)


def _prepared(change: Put | Delete) -> Keyed:
    if isinstance(change, Delete):
        if change.expect == "absent":
            raise InvalidInput(f"{change.key} cannot be deleted on the condition that it is absent")
        return keyed(change, None, change.key)
    document = plain(change.document)
    if change.written:
        change = replace(change, written=plain(dict(change.written)))
    key = key_of(document)
    check_labels(document, key)
    return keyed(change, document, key)


def _with_new_key(ring: secrets.Sealer) -> secrets.Sealer:
    try:
        return ring.rotate()
    except SecretError:
        # Keys from the environment cannot be added to; with several of them the new one was put in front by hand.
        if len(ring.key_ids) < 2:
            raise
        return ring


def _retire(ring: secrets.Sealer, old: frozenset[str]) -> tuple[str, ...]:
    """Give up the keys that sealed something here and no longer do; others in the file may serve another store."""
    retired = tuple(sorted(old & frozenset(ring.key_ids)))
    try:
        if retired:
            ring.retire(retired)
    except SecretError:
        return ()  # keys from the environment are taken out by hand
    return retired


def _uids(count: int) -> list[str]:
    import uuid  # only writers need it

    return [str(uuid.uuid4()) for _ in range(count)]


def _forget_some(keep: int) -> Tx[int]:
    bounds = yield from one("feed_bounds_lock")
    assert bounds is not None  # migration 0001 made the row
    upto = min(bounds["revision"] - keep, bounds["compacted"] + FORGOTTEN_PER_ROUND)
    if upto <= bounds["compacted"]:
        return 0
    yield from run("compacted_set", upto=upto)
    return (yield from run("change_forget", upto=upto))
