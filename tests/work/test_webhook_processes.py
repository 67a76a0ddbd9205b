"""Receivers that are killed while senders send and try again: one task for each event."""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from foliot.resources.validate import validate_document
from foliot.runtime.runtime import Runtime
from foliot.settings.settings import load_settings
from foliot.store.base import Document, Put
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import load_keyring
from foliot.work.triggers.endpoints import WebhookEndpoints
from foliot.work.triggers.signatures import sign
from foliot.work.triggers.webhook import read_webhook
from tests.work.test_schedule_processes import DECLARED

EVENTS = 30
KILLS = 3
SECRET = "correct-horse-battery"


class Receiver:
    """`foliot webhook listen` in a process of its own."""

    def __init__(self, url: str, home: Path) -> None:
        command = [sys.executable, "-m", "foliot.cli", "--store", url, "webhook", "listen", "--port", "0"]
        environ = {**os.environ, "FOLIOT_HOME": str(home)}
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, env=environ, text=True)
        self.address = ""

    def wait(self) -> None:
        assert self.child.stderr is not None
        line = self.child.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, line + self.child.stderr.read()
        self.address = found[0]

    def kill(self) -> None:
        self.child.kill()
        self.child.communicate()


async def send(session: aiohttp.ClientSession, crew: list[Receiver], document: Document, number: int) -> str:
    """Send one event until somebody takes it, as senders do; the task that was named."""
    scheme = read_webhook(document).scheme
    body = b'{"n": %d}' % number
    for _ in range(400):
        receiver = random.choice(crew)
        headers = sign(scheme, SECRET.encode(), body, now=asyncio.get_running_loop().time(), event_id=f"e{number}")
        try:
            url = receiver.address + document["status"]["endpointPath"]
            async with session.post(url, data=body, headers=headers) as response:
                if response.status == 202:
                    return (await response.json())["task"]
        except (aiohttp.ClientError, TimeoutError, ValueError):
            pass
        await asyncio.sleep(0.05)
    raise AssertionError(f"nobody took event {number}")


@pytest.mark.slow
async def test_each_event_makes_one_task_over_receivers_that_are_killed(store_url: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    settings = load_settings({"store": store_url, "home": str(home)})
    database = await open_database(store_url)
    store = SqlResourceStore(database, lambda: load_keyring(settings))
    given = [
        *DECLARED[:3],
        {"kind": "Secret", "metadata": {"name": "hook"}, "spec": {"stringData": {"value": SECRET}}},
        {
            "kind": "TaskWebhook",
            "metadata": {"name": "push"},
            "spec": {"task_ref": "brief", "auth": {"profile": "github", "secret_ref": "hook"}},
        },
    ]
    for each in given:
        document, problems = validate_document({"apiVersion": "foliot.dev/v1", **each})
        assert document is not None, problems
        (written,) = await store.write([Put(document)])
    webhook = await WebhookEndpoints(database, store).ensure(written.document)
    crew = [Receiver(store_url, home) for _ in range(2)]
    try:
        for receiver in crew:
            await asyncio.to_thread(receiver.wait)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
            sending = [asyncio.create_task(send(session, crew, webhook, number)) for number in range(EVENTS)]
            for _ in range(KILLS):
                await asyncio.sleep(random.random() * 0.2)  # anywhere in the middle of something
                fresh = Receiver(store_url, home)
                crew[random.randrange(2)].kill()
                await asyncio.to_thread(fresh.wait)
                crew[next(i for i, each in enumerate(crew) if each.child.poll() is not None)] = fresh
            named = await asyncio.gather(*sending)
    finally:
        for receiver in crew:
            receiver.kill()
    async with Runtime(settings=settings) as runtime:
        made, cursor = await runtime.inside.tasking.tasks.list(
            spawned_by=f"webhook:{webhook['metadata']['uid']}", limit=200
        )
    await database.close()
    assert cursor is None
    assert sorted(task.id for task in made) == sorted(named)
    assert len(set(named)) == EVENTS
