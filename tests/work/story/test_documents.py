"""Documents of tasks, runs and workers: what a client reads out of one is what the store has."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from foliot.models.base import ModelRequestError
from foliot.store.base import Database, Document
from foliot.store.journal.base import RunInfo
from foliot.store.queue.workers import WorkerInfo
from foliot.work.tasks.base import Command, TaskInfo
from foliot.work.tasks.commands import asks_the_same, command_of
from foliot.work.views.document import info_of, outline
from foliot.work.views.run_document import run_document, run_of
from foliot.work.views.worker_document import worker_document, worker_of
from tests.work.task_kit import Kit

COMMAND = Command(
    "system", "line", name="job", message="go", input={"topic": "x"}, lane="slow", labels={"team": "docs"}
)


@pytest.fixture
def kit(opened_store: Database) -> Kit:
    return Kit(opened_store, {"line": {"agents": ["a", "b"]}})


def read_back(info: TaskInfo) -> TaskInfo:
    return replace(info_of(outline(info)), key=info.key)


async def test_the_info_of_a_task_is_read_out_of_its_document(kit: Kit) -> None:
    accepted = (await kit.tasks.accept(COMMAND)).task
    assert accepted.spec["input"] == {"topic": "x"}
    assert read_back(accepted) == accepted == await kit.tasks.get("default", "job")

    await kit.claim(1)
    running = await kit.tasks.get("default", "job")
    assert (read_back(running), running.phase) == (running, "running")


@pytest.mark.parametrize("ends", ["succeeded", "dead_lettered"])
async def test_the_info_of_an_ended_task_is_read_out_of_its_document(kit: Kit, ends: str) -> None:
    if ends != "succeeded":
        kit.answer = lambda agent, told: ModelRequestError("no such thing")
    await kit.tasks.accept(COMMAND)
    await kit.work()

    ((info,), _) = await kit.tasks.list()
    assert (read_back(info), info.phase) == (info, ends)


@pytest.mark.parametrize("reason", ["approval", "input", "budget", "unknown_effect"])
@pytest.mark.parametrize(
    "written", [{}, {"apiVersion": "orloj.dev/v1", "spec": {"system": "line"}}], ids=["now", "older"]
)
async def test_only_a_task_that_waits_for_consent_waits_for_an_approval(
    kit: Kit, reason: str, written: Document
) -> None:
    accepted = (await kit.tasks.accept(COMMAND)).task
    info = replace(accepted, phase="waiting", summary={"waiting": {"reason": reason}}, written=written)

    status = outline(info)["status"]

    assert status["phase"] == ("WaitingApproval" if written or reason == "approval" else "Waiting")
    assert status["waiting"]["reason"] == reason
    assert read_back(info).phase == "waiting"


async def test_the_spec_of_a_task_asks_for_the_same_again(kit: Kit) -> None:
    asked = replace(COMMAND, message="", timeout=90.5, priority="high", max_turns=3)
    document = outline((await kit.tasks.accept(asked)).task)
    assert asks_the_same(command_of(document), asked)


def test_the_info_of_a_run_is_read_out_of_its_document() -> None:
    summary = {"steps": 2, "tokens": 15, "waiting": {"reason": "approval"}}
    info = RunInfo(
        "r1", 0, "default", "desk", "waiting", "d1", 0, "h:1", 20.5, 1.0, 2.25, "r0", 7, {"team": "docs"}, summary
    )
    assert run_of(run_document(info, 30.0)) == info
    idle = replace(info, worker=None, lease_until=None, parent=None, parent_seq=None, summary={})
    assert run_of(run_document(idle, 30.0)) == idle


def test_the_info_of_a_worker_is_read_out_of_its_document() -> None:
    info = WorkerInfo("w", "h:1", "default", True, ("m",), {"rack": "1"}, 4, 1, "draining", 1.0, 2.5, 0.25)
    assert worker_of(worker_document(info, 3.0)) == info
    assert worker_of(worker_document(info, 3.0, shows_process=False)) == replace(info, identity="")
