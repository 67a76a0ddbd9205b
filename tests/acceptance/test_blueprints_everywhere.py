"""Every blueprint gives the same in one process on SQLite and with three processes on PostgreSQL and NATS."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from foliot import Runtime
from foliot.cli import blueprints
from foliot.kernel.task_events import MessageEnded, TaskSucceeded
from foliot.settings import load_settings
from foliot.store.placement import Offer
from foliot.store.tasks import ENDED
from foliot.work.base import Command, TaskRecord

BLUEPRINTS = sorted(
    folder.name for folder in Path(blueprints.__path__[0]).iterdir() if (folder / "agent-system.yaml").exists()
)
FOLIOT = str(Path(sys.executable).with_name("foliot"))
PATIENCE = 120.0


def apply_all(folder: Path, env: dict[str, str]) -> None:
    for name in BLUEPRINTS:
        where = folder / name
        if not where.exists():
            subprocess.run([FOLIOT, "init", str(where), "--blueprint", name], check=True, capture_output=True, env=env)
        subprocess.run([FOLIOT, "apply", "-f", str(where), "-n", name], check=True, capture_output=True, env=env)


async def outcomes(runtime: Runtime) -> dict[str, tuple[str, dict[str, str], list[tuple[str, str]]]]:
    """By blueprint: the output, the outputs by agent, and what every agent said, in an order that is none."""
    tasks = runtime.tasking.tasks
    for name in BLUEPRINTS:
        await tasks.accept(Command("system", name, namespace=name, name="same", message="old clocks"))
    async with asyncio.timeout(PATIENCE):
        while any([(await tasks.get(name, "same")).phase not in ENDED for name in BLUEPRINTS]):
            await asyncio.sleep(0.1)
    return {name: _essence(await tasks.events(name, "same")) for name in BLUEPRINTS}


def _essence(records: list[TaskRecord]) -> tuple[str, dict[str, str], list[tuple[str, str]]]:
    end = records[-1].event
    assert isinstance(end, TaskSucceeded), end
    said = [
        (record.event.message_id, record.event.output) for record in records if isinstance(record.event, MessageEnded)
    ]
    return end.output, end.outputs, sorted(said)


def test_there_is_a_blueprint_of_every_shape():
    assert {"pipeline", "hierarchical", "swarm-loop"} <= set(BLUEPRINTS)


@pytest.mark.timeout(300)
async def test_the_same_definitions_give_the_same_results_small_and_large(tmp_path, postgres_url, nats_url):
    small = {**os.environ, "FOLIOT_STORE": str(tmp_path / "small.db"), "FOLIOT_HOME": str(tmp_path / "home")}
    large = {**small, "FOLIOT_STORE": postgres_url, "FOLIOT_NATS": nats_url}
    await asyncio.to_thread(apply_all, tmp_path / "made", small)
    async with Runtime(settings=load_settings({}, small)) as runtime:
        worker = runtime.tasking.worker(Offer("only", runtime.runs.worker, capacity=4))
        working = asyncio.create_task(worker.run())
        alone = await outcomes(runtime)
        worker.drain()
        await working

    await asyncio.to_thread(apply_all, tmp_path / "made", large)
    crew = [
        await asyncio.create_subprocess_exec(
            FOLIOT, "worker", "--name", f"w{number}", env=large, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for number in range(3)
    ]
    try:
        async with Runtime(settings=load_settings({}, large)) as runtime:
            together = await outcomes(runtime)
    finally:
        for worker in crew:
            worker.terminate()
        codes = [await asyncio.wait_for(worker.wait(), 60) for worker in crew]
    assert codes == [0, 0, 0]
    assert together == alone
