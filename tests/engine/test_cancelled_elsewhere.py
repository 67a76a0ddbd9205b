"""Work that one process drives and another one cancels: nothing begins behind the commit of the cancel.

What was recorded is looked at in the transaction of the cancel itself, so the order is that of the store and no clock
has a part in it: every start in any journal of the family, and every payment in the book of the tool, was there then.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Runtime
from foliot.kernel.run.events import CancelRequested, ModelResponded, StepStarted, ToolStarted
from foliot.resources.validate import validate_document
from foliot.store.base import Put
from foliot.store.journal.base import TERMINAL, RunInfo
from foliot.store.transaction import Tx, rows
from foliot.work.tasks.base import Command
from tests.engine.cancelled_process import pay as tool

TRIES = 14
CLERK, AIDE = {"agent:clerk": {"input": "pay"}}, {"agent:aide": {"input": "pay"}}


def pay(order: str) -> dict[str, Any]:
    return {"pay": {"order": order}}


SCRIPT = [
    {
        "match": {"agent": "head"},
        "turns": [
            {"call": CLERK},
            {"call": pay("h1")},
            {"call": [pay("h2"), pay("h3"), CLERK]},
            {"call": pay("h4")},
            {"say": "head is done"},
        ],
    },
    {
        "match": {"agent": "clerk"},
        "turns": [{"call": pay("c1")}, {"call": [pay("c2"), AIDE]}, {"call": pay("c3")}, {"say": "clerk is done"}],
    },
    {"match": {"agent": "aide"}, "turns": [{"call": pay("a1")}, {"call": pay("a2")}, {"say": "aide is done"}]},
]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FOLIOT_HOME", str(tmp_path / "home"))
    return str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
async def runtime(url: str) -> AsyncIterator[Runtime]:
    async with Runtime(url, tools=[tool]) as opened:
        declared = {"prompt": "Pay.", "model_ref": "brain"}
        brain = {"provider": "scripted", "default_model": "scripted", "script": SCRIPT}
        for kind, name, spec in [
            ("ModelEndpoint", "brain", brain),
            ("Agent", "aide", {**declared, "tools": ["pay"]}),
            ("Agent", "clerk", {**declared, "tools": ["pay", "agent:aide"]}),
            ("Agent", "head", {**declared, "tools": ["pay", "agent:clerk"]}),
        ]:
            document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
            assert document is not None, problems
            await opened.inside.resources.write([Put(document)])
        yield opened


@pytest.fixture
def book(tmp_path: Path) -> Path:
    found = tmp_path / "book"
    found.touch()
    return found


@pytest.fixture
def elsewhere(runtime: Runtime, url: str, book: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).with_name("cancelled_process.py")), url, str(book)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


class Family:
    """The runs of one order: what was recorded of them when their cancel was stored, and in the end."""

    def __init__(self, runtime: Runtime, head: str) -> None:
        self._runtime = runtime
        self._head = head
        self.at_cancel: dict[str, int] = {}

    def look(self, *_: str) -> Tx[None]:
        """Notes how long the journals are, as a part of the transaction that stores the cancel."""
        head = yield from rows("run_key", id=self._head)
        keys = [row["key"] for row in head]
        below = yield from rows("run_below", keys=json.dumps(keys))
        found = yield from rows("run_fences", keys=json.dumps([*keys, *(row["key"] for row in below)]))
        self.at_cancel.update({row["id"]: row["last_seq"] for row in found})

    async def runs(self) -> list[RunInfo]:
        everybody = await self._runtime.inside.runs.journal.list(limit=1000)
        family = {self._head}
        for info in reversed(everybody):  # oldest first, so callers stand before those they call
            if info.parent in family:
                family.add(info.id)
        return [info for info in everybody if info.id in family]

    async def over(self) -> list[RunInfo]:
        async with asyncio.timeout(60):
            while not (found := await self.runs()) or any(info.phase not in TERMINAL for info in found):
                await asyncio.sleep(0.02)
        return found

    async def check(self, book: Path) -> int:
        """Nothing began behind the cancel; returns how many runs of the family it cancelled."""
        runs, started = await self.over(), set[str]()
        for info in runs:
            known = self.at_cancel.get(info.id, 0)
            facts = [event for _, event in await self._runtime.inside.runs.facts(info.id)]
            if info.phase == "succeeded":
                known = known or len(facts)  # it had ended before
            late = [event for event in facts[known:] if isinstance(event, ToolStarted | StepStarted)]
            assert late == [], f"{info.agent} began behind the cancel, which it had at {known}"
            started |= {event.key for event in facts if isinstance(event, ToolStarted)}
            if self.at_cancel.get(info.id):
                assert any(isinstance(event, CancelRequested) for event in facts) or info.phase == "succeeded"
                # What came back before it was heard is not lost.
                answered = [event for event in facts[known:] if isinstance(event, ModelResponded)]
                assert len(answered) <= 1
        ids = {info.id for info in runs}
        paid = [key for key in book.read_text().split() if key.rpartition("/")[0] in ids]
        assert len(paid) == len(set(paid))
        assert set(paid) <= started
        return sum(info.phase == "cancelled" for info in runs)


async def paid_times(book: Path, times: int) -> None:
    """Waits until so many payments have begun."""
    async with asyncio.timeout(60):
        while len(book.read_text().split()) < times:
            await asyncio.sleep(0.001)


async def test_a_run_that_another_process_drives_begins_nothing_behind_its_cancel(
    runtime: Runtime, elsewhere: subprocess.Popen[str], book: Path
) -> None:
    assert elsewhere.stdin is not None
    cancelled = 0
    for number in range(TRIES):
        before = len(book.read_text().split())
        print(run_id := f"run-{number}", file=elsewhere.stdin, flush=True)
        await paid_times(book, before + 1 + number % 7)
        family = Family(runtime, run_id)
        await runtime.inside.cancel(run_id, by="ann", in_transaction=family.look)
        cancelled += await family.check(book)
    assert cancelled > TRIES  # sub-agents among them


async def test_a_task_that_a_worker_elsewhere_does_begins_nothing_behind_its_cancel(
    runtime: Runtime, elsewhere: subprocess.Popen[str], book: Path
) -> None:
    tasks, cancelled = runtime.inside.tasking.tasks, 0
    for number in range(TRIES):
        before = len(book.read_text().split())
        name = (await tasks.accept(Command("agent", "head", message="go"))).task.name
        await paid_times(book, before + 1 + number % 7)
        (head,) = [
            each for each in await runtime.inside.runs.journal.list() if each.labels.get("foliot.dev/task") == name
        ]
        family = Family(runtime, head.id)
        await tasks.cancel("default", name, by="ann", in_transaction=family.look)
        cancelled += await family.check(book)
        assert (await tasks.get("default", name)).phase == "cancelled"
    assert cancelled > TRIES
