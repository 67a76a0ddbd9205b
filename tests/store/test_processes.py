"""Several processes on one store, some of them killed."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from foliot.store.base import Filter
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import keyring_from_text

PROCESS = Path(__file__).with_name("store_process.py")
SCALE = int(os.environ.get("FOLIOT_CHAOS", "1"))

DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store/foliot.db"
    return request.getfixturevalue("postgres_url")


@contextmanager
def process(role: str, url: str, file: Path, *numbers: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(PROCESS), role, url, str(file), *map(str, numbers)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


def lines(file: Path) -> list[str]:
    """The complete lines of a file that another process appends to."""
    return file.read_text().splitlines() if file.exists() else []


def wait_until(condition: Callable[[], bool], child: subprocess.Popen[bytes], seconds: float = 60) -> None:
    """Return when the condition holds; fails when the child ends with an error, or after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if child.poll() not in (None, 0):
            assert child.stderr is not None
            pytest.fail(f"the process failed:\n{child.stderr.read().decode()}")
        assert time.monotonic() < deadline, "the process does not get on"
        time.sleep(0.002)


@pytest.mark.slow
@pytest.mark.parametrize("url", DATABASES, indirect=True)
def test_a_watcher_that_is_killed_and_restarted_sees_every_change_once_and_in_order(url: str, tmp_path: Path) -> None:
    dice = random.Random(None if os.environ.get("FOLIOT_CHAOS") else 20261117)
    changes, kills = 400 * SCALE, 6 * SCALE
    written, seen = tmp_path / "written", tmp_path / "seen"
    asyncio.run(_create(url))
    with process("write", url, written, changes, dice.randrange(10**6)) as writer:
        for _ in range(kills):
            start = len(lines(seen))
            target = min(start + dice.randrange(1, 1 + changes // kills), changes)
            with process("watch", url, seen, start) as watcher:
                wait_until(lambda target=target: len(lines(seen)) >= target, watcher)
        with process("watch", url, seen, len(lines(seen))) as watcher:
            wait_until(lambda: len(lines(seen)) >= changes, watcher)
        wait_until(lambda: lines(written) == ["done"], writer)
    recorded = [line.split() for line in lines(seen)]
    assert [int(revision) for revision, _, _ in recorded] == list(range(1, changes + 1))
    present: set[str] = set()
    for _, action, name in recorded:
        assert (name in present) == (action != "created")
        (present.discard if action == "deleted" else present.add)(name)
    assert present == asyncio.run(_names(url))


@pytest.mark.slow
@pytest.mark.parametrize("url", DATABASES, indirect=True)
def test_after_a_kill_the_store_opens_and_holds_exactly_what_was_acknowledged(url: str, tmp_path: Path) -> None:
    dice = random.Random(None if os.environ.get("FOLIOT_CHAOS") else 20261117)
    kills, lanes = 15 * SCALE, 8
    applies = 1000 * SCALE // lanes
    record = tmp_path / "record"
    for kill in range(kills):
        with process("apply", url, record, applies, lanes) as child:
            target = len(lines(record)) + dice.randrange(1, 2 * applies * lanes // kills)
            wait_until(lambda target=target: len(lines(record)) >= target or "done" in lines(record), child)
        tried = {line.split()[1] for line in lines(record) if line.startswith("try")}
        acknowledged = {line.split()[1] for line in lines(record) if line.startswith("stored")}
        stored = asyncio.run(_names(url))
        batches = {name.rpartition("-")[0] for name in stored}
        assert stored == {f"{batch}-{part}" for batch in batches for part in range(3)}, f"kill {kill}: a torn batch"
        assert acknowledged <= batches <= tried, f"kill {kill}"


async def _create(url: str) -> None:
    await (await open_database(url)).close()


async def _names(url: str) -> set[str]:
    database = await open_database(url)
    store = SqlResourceStore(database, lambda: keyring_from_text("00" * 32))
    page = await store.list(Filter("Agent"), limit=100_000)
    assert await store.revision() == len(await database.read("change_list", after=0, upto=10**9))
    await database.close()
    return {item["metadata"]["name"] for item in page.items}
