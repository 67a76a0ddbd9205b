"""`foliot worker` and `foliot workers`: starting them, listing them, limits and failing classes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from foliot.store.base import Database
from foliot.store.open import open_database
from foliot.store.queue.limits import THRESHOLD, class_failed
from foliot.store.queue.placement import Offer
from foliot.store.queue.workers import beat, list_workers, register
from tests.cli.conftest import Foliot


def in_store(home: Path, work: Callable[[Database], object]) -> None:
    async def go() -> None:
        home.mkdir(exist_ok=True)
        database = await open_database(f"sqlite:///{home}/foliot.db")
        await work(database)  # type: ignore[misc]
        await database.close()

    asyncio.run(go())


def know(home: Path, *offers: Offer, ago: float = 0.0) -> None:
    async def work(database: Database) -> None:
        now = time.time() - ago
        for offer in offers:
            await register(database, offer, now=now, is_gone=lambda _: False)
            await beat(database, offer, now=now, phase="ready")

    in_store(home, work)


def test_without_workers_it_is_told_how_to_start_one(foliot: Foliot) -> None:
    said = foliot("workers")
    assert (said.code, said.out) == (0, "")
    assert "foliot worker" in said.err
    assert json.loads(foliot("workers", "-o", "json").out)["items"] == []


def test_workers_are_listed_with_load_and_sign_of_life(foliot: Foliot, home: Path) -> None:
    know(home, Offer("old", "id-old", capacity=1), ago=300)
    know(home, Offer("new", "id-new", "eu-west", True, ("m1", "m2"), {"disk": "ssd"}, 8))
    headings, first, second = foliot("workers").out.splitlines()
    assert headings.split() == ["NAME", "STATE", "RUNS", "REGION", "GPU", "HEARTBEAT", "AGE"]
    assert first.split()[:5] == ["new", "ready", "0/8", "eu-west", "yes"]
    assert second.split()[:5] == ["old", "lost", "0/1", "-", "-"]
    assert foliot("workers", "-o", "name").out.split() == ["new", "old"]
    assert "m1,m2" in foliot("workers", "-o", "wide").out
    new, old = json.loads(foliot("workers", "-o", "json").out)["items"]
    assert new["spec"]["capabilities"] == {"gpu": True, "supported_models": ["m1", "m2"]}
    assert (new["status"]["phase"], old["status"]["phase"]) == ("ready", "lost")
    assert new["metadata"]["labels"] == {"disk": "ssd"}


def test_limits_are_set_listed_and_lifted(foliot: Foliot) -> None:
    assert "no limits" in foliot("workers", "limits").err
    assert foliot("workers", "limit", "agent", "clerk", "4").out == "agent default/clerk: at most 4 at once\n"
    assert foliot("workers", "limit", "lane", "main", "2", "-n", "shop").out == "lane shop/main: at most 2 at once\n"
    assert foliot("workers", "limit", "namespace", "shop", "20").code == 0
    assert json.loads(foliot("workers", "limits", "-o", "json").out) == [
        {"scope": "agent", "name": "default/clerk", "max": 4},
        {"scope": "lane", "name": "shop/main", "max": 2},
        {"scope": "namespace", "name": "shop", "max": 20},
    ]
    assert foliot("workers", "limit", "agent", "clerk", "none").out == "agent default/clerk: no limit\n"
    assert "clerk" not in foliot("workers", "limits").out


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("limit", "agent", "clerk", "many"), 2, "'many' is not a number of runs"),
        (("limit", "agent", "clerk", "none"), 3, "there is no limit for agent 'default/clerk'"),
        (("limit", "namespace", "a/b", "1"), 2, "does not name"),
        (("mend", "x"), 3, "no execution class 'x'"),
    ],
)
def test_what_makes_no_sense_is_told(foliot: Foliot, words: tuple[str, ...], code: int, text: str) -> None:
    said = foliot("workers", *words)
    assert said.code == code
    assert text in said.err


def test_a_class_that_is_held_back_is_shown_and_can_be_mended(foliot: Foliot, home: Path) -> None:
    assert "Nothing has failed" in foliot("workers", "classes").err

    async def fail(database: Database) -> None:
        for _ in range(THRESHOLD):
            await database.write(class_failed, "k1", time.time(), namespace="default", agent="clerk")

    in_store(home, fail)
    row = foliot("workers", "classes").out.splitlines()[1]
    assert row.split()[:6] == ["k1", "default", "clerk", "-", "degraded", str(THRESHOLD)]
    (data,) = json.loads(foliot("workers", "classes", "-o", "json").out)
    assert (data["class"], data["state"], data["failures"]) == ("k1", "degraded", THRESHOLD)
    assert foliot("workers", "mend", "k1").out == "k1: runs are begun again\n"
    assert "Nothing has failed" in foliot("workers", "classes").err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--name", " "), "cannot be the name of a worker"),
        (("--label", "disk"), "'disk' is no label"),
        (("--grace", "soon"), "'soon' is not a length of time"),
        (("--capacity", "0"), "0 is not in the range"),
        (("--nats", "http://x"), "'http://x' cannot be used"),
    ],
)
def test_a_worker_that_cannot_be_started_says_why(foliot: Foliot, words: tuple[str, ...], text: str) -> None:
    said = foliot("worker", *words)
    assert said.code == 2
    assert text in said.err


def test_a_worker_ends_by_itself_with_once(foliot: Foliot) -> None:
    said = foliot("worker", "--once", "--name", "w1", "--capacity", "2")
    assert (said.code, said.out) == (0, "")
    assert "Worker w1 has 2 places" in said.err
    assert foliot("workers").out.splitlines()[1].split()[:3] == ["w1", "stopped", "0/2"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_worker_and_it_says_good_bye(number: signal.Signals, home: Path) -> None:
    command = [sys.executable, "-m", "foliot.cli", "worker", "--name", "w1"]
    phases: list[str] = []

    async def look(database: Database) -> None:
        phases[:] = [info.phase for info in await list_workers(database)]

    with subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE) as child:
        try:
            deadline = time.monotonic() + 60
            while phases != ["ready"]:
                assert child.poll() is None
                assert time.monotonic() < deadline
                in_store(home, look)
            child.send_signal(number)
            _, told = child.communicate(timeout=110)
        finally:
            child.kill()
    assert child.returncode == 0
    assert b"Stopping: no more runs are taken." in told
    in_store(home, look)
    assert phases == ["stopped"]
