"""Copies of the embedded store: of one moment, checked, and put back without writing over anything."""

from __future__ import annotations

import asyncio
import os
import sys
import tarfile
import time
from pathlib import Path

import apsw
import msgspec
import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.errors import Conflict, InvalidInput, NotFound, Unavailable
from foliot.store import backup
from foliot.store.backup import CONTENT, MANIFEST, back_up, restore, verify
from foliot.store.base import Filter, Key, Put
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import keyring_from_text
from foliot.store.sqlite.database import SqliteDatabase
from tests.made_up_migrations import NEWEST, go_by, write_migrations

RING = keyring_from_text("00" * 32)


def note(name: str, number: int) -> dict[str, object]:
    return {"kind": "Agent", "metadata": {"name": name}, "spec": {"number": number}}


async def filled(path: Path, *, number: int = 1) -> None:
    database = await SqliteDatabase.open(path)
    try:
        await SqlResourceStore(database, lambda: RING).write([Put(note("left", number)), Put(note("right", number))])
    finally:
        await database.close()


async def numbers(path: Path) -> set[int]:
    database = await SqliteDatabase.open(path)
    try:
        page = await SqlResourceStore(database, lambda: RING).list(Filter(kind="Agent"))
        return {item["spec"]["number"] for item in page.items}
    finally:
        await database.close()


async def test_a_backup_taken_while_others_write_holds_every_transaction_whole(tmp_path: Path) -> None:
    path = tmp_path / "foliot.db"
    database = await SqliteDatabase.open(path)
    store = SqlResourceStore(database, lambda: RING)
    await store.write([Put(note("left", 0)), Put(note("right", 0))])
    done = asyncio.Event()

    async def write() -> int:
        number = 0
        while not done.is_set():
            number += 1
            await store.write([Put(note("left", number)), Put(note("right", number))])
        return number

    writer = asyncio.create_task(write())
    try:
        before = await store.revision()
        manifests = [await asyncio.to_thread(back_up, path, tmp_path / f"b{n}.tar") for n in range(3)]
        assert await store.revision() > before, "writers went on meanwhile"
    finally:
        done.set()
        await writer
        await database.close()

    assert all(manifest.contains["resources"] == 2 for manifest in manifests)
    for n in range(3):
        restored = tmp_path / f"restored{n}.db"
        restore(tmp_path / f"b{n}.tar", restored)
        assert len(await numbers(restored)) == 1, "left and right were written together"


async def test_a_run_that_was_under_way_goes_on_after_a_restore(tmp_path: Path) -> None:
    started, gate, calls = asyncio.Event(), asyncio.Event(), []

    @tool(effect="read")
    async def look() -> str:
        """Looks."""
        calls.append(1)
        started.set()
        await gate.wait()
        return "seen"

    agent = Agent("watcher", model=ScriptedModel([{"call": "look"}, {"say": "I have {last_result} it."}]), tools=[look])
    async with Runtime(tmp_path / "foliot.db") as runtime:
        running = asyncio.create_task(runtime.run(agent, "look", run_id="r1"))
        await asyncio.wait_for(started.wait(), 60)
        await asyncio.to_thread(back_up, tmp_path / "foliot.db", tmp_path / "b.tar")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    restore(tmp_path / "b.tar", tmp_path / "again.db")
    gate.set()
    # As if an hour had passed: the lease of the process that held the run then is over.
    async with Runtime(tmp_path / "again.db", clock=lambda: time.time() + 3600) as runtime:
        result = await runtime.resume("r1", agent=agent)

    assert result.output == "I have seen it."
    assert len(calls) == 2


async def test_secrets_stay_sealed_and_the_key_is_only_named(tmp_path: Path) -> None:
    path = tmp_path / "foliot.db"
    database = await SqliteDatabase.open(path)
    store = SqlResourceStore(database, lambda: RING)
    await store.write(
        [Put({"kind": "Secret", "metadata": {"name": "s"}, "spec": {"data": {"a": "Z2VoZWltZXMgV29ydA=="}}})]
    )
    await database.close()

    manifest = back_up(path, tmp_path / "b.tar")

    assert manifest.keys == (RING.active_id,)
    content = (tmp_path / "b.tar").read_bytes()
    assert b"geheimes Wort" not in content
    assert b"Z2VoZWltZXMgV29ydA" not in content
    restore(tmp_path / "b.tar", tmp_path / "again.db")
    database = await SqliteDatabase.open(tmp_path / "again.db")
    try:
        revealed = await SqlResourceStore(database, lambda: RING).reveal(Key("Secret", "default", "s"))
    finally:
        await database.close()
    assert revealed == {"a": b"geheimes Wort"}


async def test_a_backup_is_private_and_never_written_over(tmp_path: Path) -> None:
    await filled(tmp_path / "foliot.db")
    file = tmp_path / "b.tar"
    back_up(tmp_path / "foliot.db", file)
    content = file.read_bytes()

    with pytest.raises(Conflict, match="not written over"):
        back_up(tmp_path / "foliot.db", file)

    assert file.read_bytes() == content
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["b.tar", "foliot.db"], "nothing half done is left"


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        back_up(tmp_path / "foliot.db", tmp_path / "b.tar")
    assert list(tmp_path.iterdir()) == []


async def test_a_store_in_the_way_is_refused_or_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "foliot.db"
    await filled(path, number=1)
    back_up(path, tmp_path / "b.tar")
    await filled(path, number=2)

    with pytest.raises(Conflict, match="not written over"):
        restore(tmp_path / "b.tar", path)
    assert await numbers(path) == {2}

    _, aside = restore(tmp_path / "b.tar", path, replace=True)
    assert aside is not None
    assert await numbers(path) == {1}
    assert await numbers(aside) == {2}


async def test_a_store_that_another_process_has_open_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "foliot.db"
    await filled(path, number=1)
    back_up(path, tmp_path / "b.tar")
    await filled(path, number=2)
    script = (
        "import asyncio, sys\n"
        "from foliot.store.sqlite.database import SqliteDatabase\n"
        "async def main():\n"
        "    db = await SqliteDatabase.open(sys.argv[1])\n"
        "    print('open', flush=True)\n"
        "    await asyncio.to_thread(sys.stdin.read)\n"
        "    await db.close()\n"
        "asyncio.run(main())\n"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(path), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    try:
        assert await asyncio.wait_for(child.stdout.readline(), 60) == b"open\n"
        with pytest.raises(Unavailable, match="has the store") as refused:
            restore(tmp_path / "b.tar", path, replace=True)
        assert "stop every foliot" in (refused.value.hint or "")
    finally:
        await asyncio.wait_for(child.communicate(b""), 60)
    assert await numbers(path) == {2}
    restore(tmp_path / "b.tar", path, replace=True)
    assert await numbers(path) == {1}


async def test_a_damaged_store_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "foliot.db"
    await filled(path)
    back_up(path, tmp_path / "b.tar")
    path.write_bytes(b"no longer a store" * 1000)

    _, aside = restore(tmp_path / "b.tar", path, replace=True)

    assert await numbers(path) == {1}
    assert aside is not None
    assert aside.read_bytes().startswith(b"no longer")


async def test_the_log_of_a_store_that_is_gone_is_not_taken_for_a_part_of_the_restored_one(tmp_path: Path) -> None:
    await filled(tmp_path / "foliot.db")
    back_up(tmp_path / "foliot.db", tmp_path / "b.tar")
    (tmp_path / "again.db-wal").write_bytes(b"left over")
    with pytest.raises(Conflict, match="log of a store that is gone"):
        restore(tmp_path / "b.tar", tmp_path / "again.db")
    assert not (tmp_path / "again.db").exists()


def repacked(source: Path, target: Path, *, manifest: dict[str, object] | None = None, flip: bool = False) -> None:
    """The same backup, with something changed."""
    import io

    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for member in old:
            stream = old.extractfile(member)
            assert stream is not None
            data = bytearray(stream.read())
            if member.name == MANIFEST and manifest is not None:
                data = bytearray(msgspec.json.encode({**msgspec.json.decode(data), **manifest}))
            if member.name == CONTENT and flip:
                data[len(data) // 2] ^= 1
            member.size = len(data)
            new.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"flip": True}, "damaged"),
        ({"manifest": {"sha256": "0" * 64}}, "damaged"),
        ({"manifest": {"schema": 9999}}, "newer Foliot"),
        ({"manifest": {"schema": NEWEST - 1}}, "holds schema"),
        ({"manifest": {"format_version": 2}}, "cannot read"),
        ({"manifest": {"bytes": "many"}}, "manifest cannot be read"),
    ],
)
async def test_a_backup_that_was_changed_is_refused_before_anything_happens(tmp_path: Path, change, says) -> None:
    await filled(tmp_path / "foliot.db")
    back_up(tmp_path / "foliot.db", tmp_path / "b.tar")
    repacked(tmp_path / "b.tar", tmp_path / "changed.tar", **change)

    with pytest.raises(InvalidInput, match=says):
        restore(tmp_path / "changed.tar", tmp_path / "foliot.db", replace=True)
    with pytest.raises(InvalidInput, match=says):
        verify(tmp_path / "changed.tar")

    assert await numbers(tmp_path / "foliot.db") == {1}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["b.tar", "changed.tar", "foliot.db"]


@pytest.mark.parametrize("content", [b"", b"text\n" * 500, os.urandom(4096)])
def test_a_file_that_is_no_backup_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.tar").write_bytes(content)
    with pytest.raises(InvalidInput, match="not a backup"):
        restore(tmp_path / "b.tar", tmp_path / "foliot.db")
    assert not (tmp_path / "foliot.db").exists()


async def test_a_backup_that_ends_early_is_refused(tmp_path: Path) -> None:
    await filled(tmp_path / "foliot.db")
    back_up(tmp_path / "foliot.db", tmp_path / "b.tar")
    whole = (tmp_path / "b.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInput):
        verify(tmp_path / "cut.tar")


async def test_an_older_store_is_brought_up_to_date_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(tmp_path / "old.db", number=3)
    manifest = back_up(tmp_path / "old.db", tmp_path / "b.tar")
    assert manifest.schema == NEWEST
    go_by(monkeypatch, write_migrations(tmp_path / "made_up", "CREATE TABLE tag (name TEXT PRIMARY KEY);"))
    restore(tmp_path / "b.tar", tmp_path / "foliot.db")
    assert await numbers(tmp_path / "foliot.db") == {3}
    await filled(tmp_path / "foliot.db", number=7)
    assert await numbers(tmp_path / "foliot.db") == {7}
    assert back_up(tmp_path / "foliot.db", tmp_path / "c.tar").schema == NEWEST + 1


async def test_a_restored_store_writes_to_a_log_as_every_store_does(tmp_path: Path) -> None:
    await filled(tmp_path / "foliot.db")
    back_up(tmp_path / "foliot.db", tmp_path / "b.tar")
    restore(tmp_path / "b.tar", tmp_path / "again.db")
    connection = apsw.Connection(str(tmp_path / "again.db"))
    assert connection.pragma("journal_mode") == "wal"
    connection.close()


async def test_a_name_that_is_taken_at_the_last_moment_is_not_written_over(tmp_path: Path, monkeypatch) -> None:
    await filled(tmp_path / "foliot.db")
    pack = backup._pack

    def slow(packed: Path, *rest) -> None:
        pack(packed, *rest)
        (tmp_path / "b.tar").write_text("somebody else's")

    monkeypatch.setattr(backup, "_pack", slow)
    with pytest.raises(Conflict, match="meanwhile"):
        back_up(tmp_path / "foliot.db", tmp_path / "b.tar")
    assert (tmp_path / "b.tar").read_text() == "somebody else's"
