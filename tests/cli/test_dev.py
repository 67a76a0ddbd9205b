"""`foliot dev services`, with real processes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import nats
import pytest

from foliot.dev import development
from foliot.dev.development import DevServices
from foliot.dev.postgres import can_enter, unprivileged_user
from foliot.dev.service import is_held

pytestmark = pytest.mark.services


@pytest.fixture
def home() -> Iterator[Path]:
    """Not in tmp_path, which is private: root's PostgreSQL must get in, as somebody else."""
    with tempfile.TemporaryDirectory(prefix="foliot-dev-") as folder:
        Path(folder).chmod(0o711)
        home = Path(folder) / "home"
        yield home
        DevServices(home).down(purge=True)


def foliot(home: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FOLIOT_HOME": str(home), "PATH": path or os.environ["PATH"]}
    return subprocess.run(
        [sys.executable, "-m", "foliot.cli", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def exports(text: str) -> dict[str, str]:
    words = [shlex.split(line) for line in text.splitlines()]
    assert all(word[0] == "export" and len(word) == 2 for word in words), text
    return dict(word[1].split("=", 1) for word in words)


def report(home: Path) -> tuple[int, dict[str, dict[str, object]]]:
    done = foliot(home, "dev", "services", "status", "-o", "json")
    return done.returncode, {each["name"]: each for each in json.loads(done.stdout)}


async def test_up_twice_down_up_again_keeps_address_and_data_until_purged(home: Path) -> None:
    first = foliot(home, "dev", "services", "up")
    assert first.returncode == 0, first.stderr
    addresses = exports(first.stdout)
    assert list(addresses) == ["FOLIOT_STORE", "FOLIOT_NATS"]
    await store_something(addresses)
    code, running = report(home)
    assert code == 0

    assert exports(foliot(home, "dev", "services", "up").stdout) == addresses, "a second up changes nothing"
    assert report(home) == (0, running), "the same processes"

    assert foliot(home, "dev", "services", "down").returncode == 0
    code, stopped = report(home)
    assert code == 1
    assert {each["running"] for each in stopped.values()} == {False}

    assert exports(foliot(home, "dev", "services", "up").stdout) == addresses
    await find_it_again(addresses)

    folders = [Path(str(each["folder"])) for each in running.values()]
    assert foliot(home, "dev", "services", "down", "--purge").returncode == 0
    assert [folder for folder in folders if folder.exists() or is_held(folder / "alive.lock")] == []


async def store_something(addresses: dict[str, str]) -> None:
    connection = await asyncpg.connect(addresses["FOLIOT_STORE"])
    try:
        await connection.execute("CREATE EXTENSION vector; CREATE TABLE kept AS SELECT 42 AS answer")
    finally:
        await connection.close()
    client = await nats.connect(addresses["FOLIOT_NATS"], allow_reconnect=False)
    try:
        await client.jetstream().add_stream(name="kept", subjects=["kept.>"])
    finally:
        await client.close()


async def find_it_again(addresses: dict[str, str]) -> None:
    connection = await asyncpg.connect(addresses["FOLIOT_STORE"])
    try:
        assert await connection.fetchval("SELECT answer FROM kept") == 42
    finally:
        await connection.close()
    client = await nats.connect(addresses["FOLIOT_NATS"], allow_reconnect=False)
    try:
        assert [info.config.name for info in await client.jetstream().streams_info()] == ["kept"]
    finally:
        await client.close()


def test_before_the_first_up_status_and_down_are_calm(home: Path) -> None:
    status = foliot(home, "dev", "services", "status")

    assert status.returncode == 1
    assert status.stderr == ""
    assert [line.split()[:3] for line in status.stdout.splitlines()] == [
        ["SERVICE", "STATE", "ADDRESS"],
        ["PostgreSQL", "stopped", "-"],
        ["NATS", "stopped", "-"],
    ]
    assert foliot(home, "dev", "services", "down").returncode == 0
    assert not home.exists()


def test_status_shows_no_password(home: Path) -> None:
    addresses = exports(foliot(home, "dev", "services", "up").stdout)

    shown = foliot(home, "dev", "services", "status")

    assert shown.returncode == 0
    passwords = [url.split(":")[2].split("@")[0] for url in addresses.values()]
    assert [password for password in passwords if password in shown.stdout + shown.stderr] == []


def test_missing_programs_are_told_with_what_to_install(home: Path, tmp_path: Path) -> None:
    code = (
        "import pathlib, sys; from foliot.dev import postgres as programs\n"
        "programs.WHEEL, programs.SYSTEM = 'no_such_wheel', pathlib.Path('/nowhere')\n"
        "sys.argv = ['foliot', 'dev', 'services', 'up']\n"
        "from foliot.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FOLIOT_HOME": str(home), "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )

    assert done.returncode == 7
    assert "error: no PostgreSQL 16 or newer with pgvector can be run here" in done.stderr
    assert "hint: pip install 'foliot-runtime[services]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as somebody else")
def test_a_private_home_of_root_is_not_opened_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir(mode=0o700)
    elsewhere = home.parent / "system"
    monkeypatch.setattr(development, "SYSTEM_FOLDER", elsewhere)

    postgres, _ = DevServices(home).up()

    user = unprivileged_user()
    assert user is not None
    assert postgres.folder.is_relative_to(elsewhere)
    assert not can_enter(user, home)
    assert (home / "services" / "postgres").resolve() == postgres.folder
    DevServices(home).down(purge=True)
    assert list(elsewhere.iterdir()) == []
