"""A process that writes to a store or watches it, for tests that kill it. Run as: store_process.py ROLE URL FILE …"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from foliot.errors import Conflict, NotFound
from foliot.store.base import Delete, Filter, Key, Put
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import keyring_from_text

RING = keyring_from_text("00" * 32)


def document(name: str, number: int) -> dict[str, object]:
    return {"kind": "Agent", "metadata": {"name": name}, "spec": {"number": number}}


def append(file: int, *words: object) -> None:
    """One line, in one system call: it is there whole or not at all when the process is killed."""
    os.write(file, (" ".join(map(str, words)) + "\n").encode())


async def write_changes(store: SqlResourceStore, file: int, changes: int, seed: int) -> None:
    """Random puts and deletes in random batches until the store is at revision `changes`."""
    dice = random.Random(seed)
    while (revision := await store.revision()) < changes:
        batch: list[Put | Delete] = [
            Put(document(f"n{dice.randrange(10)}", dice.randrange(10**9)))
            if dice.random() < 0.8
            else Delete(Key("Agent", "default", f"n{dice.randrange(10)}"), expect="any")
            for _ in range(min(dice.randrange(1, 5), changes - revision))
        ]
        await store.write(batch)
    append(file, "done")


async def watch(store: SqlResourceStore, file: int, after: int) -> None:
    """Write down the revision, action and name of every change behind `after`."""
    async for change in store.watch(Filter(), after=after):
        append(file, change.revision, change.action, change.document["metadata"]["name"])


async def apply(store: SqlResourceStore, file: int, applies: int, lanes: int) -> None:
    """Apply batches of three from several lanes at once, saying before and after what is tried and what is stored."""

    async def lane(number: int) -> None:
        for n in range(applies):
            name = f"l{number}-{n:04}"
            try:
                await store.get(Key("Agent", "default", f"{name}-0"))
                continue
            except NotFound:
                append(file, "try", name)
            try:
                await store.write([Put(document(f"{name}-{part}", n), expect="absent") for part in range(3)])
            except Conflict:
                continue  # a server may still finish the commit of a client that was killed
            append(file, "stored", name)

    await asyncio.gather(*(lane(number) for number in range(lanes)))
    append(file, "done")


async def main(role: str, url: str, path: str, *numbers: str) -> None:
    database = await open_database(url)
    store = SqlResourceStore(database, lambda: RING)
    file = os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    await {"write": write_changes, "watch": watch, "apply": apply}[role](store, file, *map(int, numbers))
    await database.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
