"""Content that is stored once under its digest: putting it into the store, and keeping it until somebody owns it.

Many may add the same content at the same moment. On PostgreSQL the second of them waits for the transaction of the
first, so new content is locked like any other row, and has its places in the order (`LOCK_ORDER`): behind the rows
that a transaction is about, where it waits for nobody who wants one of those, and before the heads, which nobody keeps
while waiting for content. A transaction adds all its texts and files in one statement, in the order of their digests
(`content`), and after them the plans and specs that something is pinned to (`definition`): the end of a run stores what
it said before it can know what begins next.

Content that is there already is only kept from being purged (`keep_alive`). That waits for nobody but a purge, which
waits for nobody: it has no place in the order.

Used by:    the journal, the files of sessions, the folders of users, the plans of tasks.
Invariant:  a transaction that refers to content holds it until the commit, and says by then who needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foliot.store.transaction import Tx, many, one, run


def keep_alive(digest: str) -> Tx[bool]:
    """Keeps content from being purged until the transaction ends, which is to say who owns it. False if it is gone."""
    return (yield from one("blob_hold", digest=digest)) is not None


def put_content(content: Mapping[str, bytes], at: float) -> Tx[None]:
    """Stores texts and files that are not there yet, without keeping those that are."""
    yield from many("blob_put", _rows(content, sorted(content), at))


def keep_content(content: Mapping[str, bytes], at: float) -> Tx[None]:
    """Stores texts and files, and keeps all of them for an owner that the transaction will name.

    It looks first: what is there already is not locked, and has no place in the order.
    """
    missing = yield from _gone(sorted(content))
    while missing:
        yield from many("blob_put", _rows(content, missing, at))
        missing = yield from _gone(missing)


def keep_for_run(run_key: int, content: Mapping[str, bytes], at: float) -> Tx[None]:
    """Stores texts and files that a run refers to, and that it does."""
    yield from put_content(content, at)
    for name in sorted(content):
        while not (yield from run("blob_use", digest=name, run=run_key)) and not (yield from keep_alive(name)):
            # It was there, and has been purged since.
            yield from put_content({name: content[name]}, at)


def keep_definitions(definitions: Mapping[str, bytes], at: float) -> Tx[None]:
    """Keeps the plans and specs that something is about to be pinned to; most are there, and others are stored."""
    missing = yield from _gone(sorted(definitions))
    while missing:
        yield from many("definition_put", _rows(definitions, missing, at))
        missing = yield from _gone(missing)


def put_anew(content: Mapping[str, bytes], at: float, run_id: str) -> Tx[None]:
    """Stores content that counts as young from now on, and that a run refers to, if there is one of this id."""
    owner = (yield from one("run_get", id=run_id)) if run_id else None
    names = sorted(content)
    yield from many("blob_put_anew", _rows(content, names, at))
    if owner is not None:
        yield from many("blob_use", [{"digest": name, "run": owner["key"]} for name in names])


def _gone(names: Sequence[str]) -> Tx[list[str]]:
    """Returns those of these names of which there is no content; that of the others is kept."""
    gone: list[str] = []
    for name in names:
        if not (yield from keep_alive(name)):
            gone.append(name)
    return gone


def _rows(content: Mapping[str, bytes], names: Sequence[str], at: float) -> list[dict[str, object]]:
    return [{"digest": name, "data": content[name], "at": at} for name in names]
