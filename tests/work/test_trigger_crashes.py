"""Schedulers and receivers that die at every single operation, before or after it: still one task for each."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from foliot.resources.references import Origin
from foliot.resources.validate import validate_document
from foliot.store.base import Database, Delete, Key, Put
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import keyring_from_text
from foliot.store.triggers import slots_of
from foliot.work.triggers.deliveries import Webhooks
from foliot.work.triggers.endpoints import WebhookEndpoints
from foliot.work.triggers.scheduler import Scheduler
from foliot.work.triggers.signatures import sign
from foliot.work.triggers.webhook import read_webhook
from tests.work.task_book import TaskBook

NOW = 1_780_300_800.0
RING = keyring_from_text("00" * 32)


class Died(BaseException):
    pass


class Mortal:
    """A database whose user dies at the operation with this number; `late`: when it has been done."""

    def __init__(self, inner: Database, number: int, *, late: bool) -> None:
        self._inner = inner
        self._left = number
        self._late = late
        self.dead = False

    async def read(self, name: str, /, **params: Any) -> Any:
        return await self._do(lambda: self._inner.read(name, **params))

    async def write(self, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await self._do(lambda: self._inner.write(body, *args, **kwargs))

    async def _do(self, act: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left > 0 and not self.dead:
            return await act()
        if self._late and not self.dead:
            await act()
        self.dead = True
        raise Died

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class MortalBook(TaskBook):
    """Tasks that nobody makes who is dead."""

    def __init__(self) -> None:
        super().__init__()
        self.user: Mortal | None = None

    async def accept_template(self, ref: str, command: Any, *, origin: Origin, by_operator: bool = False) -> Any:
        if self.user is not None and self.user.dead:
            raise Died
        return await super().accept_template(ref, command, origin=origin, by_operator=by_operator)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await open_database(f"{tmp_path}/foliot.db")
    yield opened
    await opened.close()


async def declare(database: Database, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
    assert document is not None, problems
    (written,) = await SqlResourceStore(database, lambda: RING, now=lambda: NOW - 90).write([Put(document)])
    return written.document


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("policy", ["allow", "forbid", "replace"])
async def test_a_scheduler_that_dies_at_any_operation(policy: str, late: bool, database: Database) -> None:
    survived = False
    for number in itertools.count(1):
        book = MortalBook()
        name = f"s{number}"
        document = await declare(
            database,
            "TaskSchedule",
            name,
            {"task_ref": "brief", "schedule": "* * * * *", "concurrency_policy": policy, "missed": "last"},
        )
        mortal = book.user = Mortal(database, number, late=late)
        dying = Scheduler(mortal, SqlResourceStore(mortal, lambda: RING), book, takeover=0.0)  # type: ignore[arg-type]  # it is a database in all that counts
        try:
            await dying.tick(NOW)
            survived = True
        except Died:
            pass
        book.user = None
        other = Scheduler(database, SqlResourceStore(database, lambda: RING), book, takeover=0.0)
        await other.tick(NOW + 5)
        await other.tick(NOW + 10)
        mine = [task.name for task in book.tasks.values() if task.name.startswith(f"{name}-")]
        slots = await slots_of(database, document["metadata"]["uid"])
        fired = [slot.task for slot in slots if slot.state == "fired"]
        assert len(mine) == 1, (number, late, slots)
        assert fired == [f"default/{mine[0]}"], (number, late, slots)
        assert {slot.state for slot in slots} <= {"fired", "skipped"}
        await SqlResourceStore(database, lambda: RING).write([Delete(Key("TaskSchedule", "default", name))])
        if survived:
            break
        assert number < 100
    assert survived
    assert number > 8


@pytest.mark.parametrize("late", [False, True])
async def test_a_receiver_that_dies_at_any_operation(late: bool, database: Database) -> None:
    await declare(database, "Secret", "hook", {"stringData": {"value": "correct-horse"}})
    await declare(database, "TaskWebhook", "push", {"task_ref": "brief", "auth": {"secret_ref": "hook"}})
    store = SqlResourceStore(database, lambda: RING)
    document = await WebhookEndpoints(database, store).ensure(await store.get(Key("TaskWebhook", "default", "push")))
    endpoint, scheme = document["status"]["endpointID"], read_webhook(document).scheme
    book = MortalBook()
    survived = False
    for number in itertools.count(1):
        mortal = book.user = Mortal(database, number, late=late)
        dying = Webhooks(mortal, SqlResourceStore(mortal, lambda: RING), book, environ={})  # type: ignore[arg-type]  # as above
        body = b'{"number": %d}' % number  # what a sender signed counts once
        headers = sign(scheme, b"correct-horse", body, now=NOW, event_id=f"e{number}")
        try:
            answer = await dying.deliver(endpoint, headers, body, NOW)
            survived = not mortal.dead
        except Died:
            pass
        book.user = None
        answer = await Webhooks(database, store, book, environ={}).deliver(endpoint, headers, body, NOW + 1)
        assert answer.status == 202
        assert len(book.names) == number
        assert answer.document["task"] == f"default/{book.names[-1]}"
        if survived:
            break
        assert number < 50
    assert survived
    assert number > 4
