"""Files that people send: whatever they are called and hold, they land in one folder, and only there."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot import Agent, Runtime, ScriptedModel
from foliot.engine.workspaces.assets import (
    LARGEST_ATTACHMENTS,
    MOST_ATTACHMENTS,
    Asset,
    Attachment,
    asset_name,
    asset_text,
    check_attachments,
    path_of,
    with_assets,
)
from foliot.engine.workspaces.trees import PIECE, WorkspaceTree
from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.kernel.run.events import WorkspaceSnapshot
from foliot.store.journal.database import SqlJournal
from foliot.store.sessions.base import NewSession, Place, Session
from foliot.store.sessions.database import SqlSessions

CLERK = Agent("clerk", model=ScriptedModel({"otherwise": {"say": "{input}"}}))


@pytest.mark.parametrize(
    ("given_name", "safe"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("/", "file"),
        ("..", "file"),
        ("", "file"),
        (".bashrc", "bashrc"),
        ("-rf", "rf"),
        ("a b\tc.txt", "a_bc.txt"),
        ("a;rm -rf $HOME.sh", "a_rm_-rf__HOME.sh"),
        ("evil\u202egpj.exe", "evilgpj.exe"),
        ("zero\u200bwidth\x00.txt", "zerowidth.txt"),
        ("e\u0301.txt", "\u00e9.txt"),
        ("x" * 500 + ".tar", "x" * 116 + ".tar"),
        ("\U0001f600" * 100, "\U0001f600" * 30),
        ("a." + "b" * 40, "a." + "b" * 40),
    ],
)
def test_a_name_becomes_one_that_is_safe(given_name: str, safe: str) -> None:
    assert asset_name(given_name) == safe


@given(st.text())
def test_whatever_a_file_is_called_its_name_is_one_part_of_a_path_and_stays_the_same(name: str) -> None:
    safe = asset_name(name)

    assert 0 < len(safe.encode()) <= 120
    assert safe not in (".", "..")
    assert not re.search(r"[/\\\x00-\x1f]", safe)
    assert asset_name(safe) == safe


@pytest.mark.parametrize(
    ("given_attachments", "complaint"),
    [
        ([{"name": "a", "data": "aGk="}] * (MOST_ATTACHMENTS + 1), "21 attachments, and a message may have 20"),
        ([{"name": "a", "data": "QUFB" * (LARGEST_ATTACHMENTS // 4)}], "bytes of JSON"),
        ([{"name": "a"}], r"attachments\[0\]: give either data or a digest"),
        ([{"name": "a", "data": "aGk=", "digest": "sha256:" + "0" * 64}], "give either"),
        ([{"name": "a", "data": "no base64!"}], r"attachments\[0\].data must be base64"),
        ([{"name": "a", "data": "aGk="}, {"name": "b", "digest": "sha256:XYZ"}], r"attachments\[1\].digest"),
        ([{"data": "aGk="}], r"attachments\[0\]"),
        ([{"name": 5, "data": "aGk="}], r"attachments\[0\]"),
        ([{"name": "a", "data": "aGk=", "path": "/etc"}], "there is no field 'path'"),
        ([{"name": "a", "data": "aGk=", "media_type": "text/html\nX: y"}], "media_type"),
        ([{"name": "a", "data": object()}], "cannot be written as JSON"),
    ],
)
def test_attachments_that_make_no_sense_are_refused_in_words(given_attachments: list[Any], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        check_attachments(given_attachments)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def rt(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else str(tmp_path / "foliot.db")
    async with Runtime(url) as made:
        yield made


async def session(rt: Runtime, id: str = "s-1") -> Session:
    new = NewSession(id, Place("default", "clerk", "ann", id))
    return await SqlSessions(rt.inside.database).create(new, now=time.time())


async def laid(rt: Runtime, snapshot: WorkspaceSnapshot | None, *assets: Asset) -> dict[str, bytes]:
    """The files of a snapshot with these assets, by path."""
    journal = rt.inside.runs.journal
    found, content = await with_assets(journal, snapshot, assets)
    assert found is not None

    async def fetch(digest: str) -> bytes:
        return content[digest] if digest in content else await journal.get_blob(digest)

    tree = await WorkspaceTree.load(fetch, found.digest)
    return {path: await fetch(entry.content) for path, entry in tree.walk() if entry.kind == "file"}


async def test_two_files_of_one_name_do_not_meet_and_the_same_file_is_one(rt: Runtime) -> None:
    await session(rt)
    one = await rt.inside.assets.save_asset("a/photo.png", b"one", session="s-1", media_type="image/png")
    two = await rt.inside.assets.save_asset("photo.png", b"two", session="s-1")
    again = await rt.inside.assets.save_asset("photo.png", b"one", session="s-1", media_type="image/png")

    assert again == one
    assert await laid(rt, None, one, two, again) == {path_of(one): b"one", path_of(two): b"two"}
    assert path_of(one).startswith("assets/")
    assert path_of(one).endswith("_photo.png")


async def test_an_agent_is_told_where_the_files_are(rt: Runtime) -> None:
    await session(rt)
    asset = await rt.inside.assets.save_asset("a.txt", b"hello", session="s-1", media_type="text/plain")

    told = asset_text([asset])

    assert told is not None
    assert f"- {path_of(asset)} (text/plain, 5 bytes)" in told.text
    assert asset_text([]) is None


async def test_a_message_brings_files_along_or_names_those_of_its_session_by_digest(rt: Runtime) -> None:
    mine, other = await session(rt), await session(rt, "s-2")
    large = await rt.inside.assets.save_asset("large.bin", b"x" * 100_000, session="s-1")
    named = check_attachments(
        [{"name": "note.txt", "data": base64.b64encode(b"hi").decode()}, {"name": "l", "digest": large.digest}]
    )

    found = await rt.inside.assets.resolve(named, mine)

    assert [each.name for each in found] == ["note.txt", "large.bin"]
    with pytest.raises(NotFound, match="no file of this digest was sent to session s-2"):
        await rt.inside.assets.resolve([Attachment("stolen", digest=large.digest)], other)


async def test_content_that_is_stored_for_something_else_is_no_file_of_a_session(rt: Runtime) -> None:
    mine = await session(rt)
    secret = await rt.inside.runs.journal.put_blob(b"of another tenant")

    with pytest.raises(NotFound):
        await rt.inside.assets.resolve([Attachment("stolen", digest=secret)], mine)


async def test_a_file_waits_for_its_turn_through_every_purge_and_goes_with_its_session(rt: Runtime) -> None:
    await session(rt)
    asset = await rt.inside.assets.save_asset("big", b"y" * (PIECE + 10), session="s-1")
    journal = rt.inside.runs.journal
    assert isinstance(journal, SqlJournal)

    await journal.purge_content(before=time.time() + 3600)
    assert len(await journal.get_blob(asset.digest)) > 0
    await SqlSessions(rt.inside.database).delete("s-1")
    await journal.purge_content(before=time.time() + 3600)

    with pytest.raises(NotFound):
        await journal.get_blob(asset.digest)


async def test_no_file_is_taken_by_a_session_that_is_archived_or_not_there(rt: Runtime) -> None:
    await session(rt)
    await SqlSessions(rt.inside.database).archive("s-1", now=time.time())

    with pytest.raises(Conflict, match="archived"):
        await rt.inside.assets.save_asset("a", b"a", session="s-1")
    with pytest.raises(NotFound, match="there is no session 's-9'"):
        await rt.inside.assets.save_asset("a", b"a", session="s-9")


@pytest.mark.parametrize("kind", ["link", "file"])
async def test_a_link_in_the_place_of_the_folder_is_replaced_and_never_followed(rt: Runtime, kind: str) -> None:
    from foliot.engine.workspaces.trees import TreeEntry, encode_folder

    journal = rt.inside.runs.journal
    target = "/etc" if kind == "link" else await journal.put_blob(b"a file")
    entry = TreeEntry("assets", kind, 0 if kind == "link" else 0o644, 0 if kind == "link" else 6, target)  # type: ignore[arg-type]
    before = WorkspaceSnapshot(await journal.put_blob(encode_folder([entry])), 3, 1, 0)
    run = await rt.inside.run(CLERK, "hello")
    asset = await rt.inside.assets.save_asset("a.txt", b"sent", run_id=run.run_id)

    assert await laid(rt, before, asset) == {path_of(asset): b"sent"}
