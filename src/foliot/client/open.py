"""The client that settings ask for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from foliot.client.base import Client
from foliot.errors import UsageError

if TYPE_CHECKING:
    from foliot.client.http import Server
    from foliot.client.remote import RemoteClient
    from foliot.client.task_resources import DeclaredWork
    from foliot.settings.settings import Settings
    from foliot.store.secrets.sealing import Sealer
    from foliot.work.tasks.service import TaskService


async def open_client(settings: Settings) -> Client:
    """A client on the server that the settings name, else on the store. Close it when done.

    Raises `UsageError` for a store that cannot be named so, `Unavailable` when it does not answer.
    """
    return await _local(settings) if settings.server is None else open_remote(settings)


def open_remote(settings: Settings) -> RemoteClient:
    """A client on the server of the settings; nothing is asked of it yet. Raises `UsageError`."""
    from foliot.client.http import Http
    from foliot.client.remote import RemoteClient

    return RemoteClient(Http(server_of(settings)))


def server_of(settings: Settings) -> Server:
    """Reads the address of the server and the token. Raises `UsageError` without one, or for a token that is none."""
    from foliot.client.http import Server

    if settings.server is None:
        raise UsageError("no server is named", hint="set FOLIOT_SERVER, or give --server")
    typed = settings.origin("token_file").startswith("flag")
    token = None if typed else settings.token
    if token is None and settings.token_file is not None:
        token = _token_in(settings)
    return Server(
        settings.server,
        token,
        home=settings.home,
        ca=settings.server_ca,
        cert=settings.server_cert,
        cert_key=settings.server_cert_key,
    )


def _token_in(settings: Settings) -> str:
    from foliot.settings.settings import Given, as_token

    path = settings.token_file
    assert path is not None, "asked only when there is one"
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise UsageError(f"the file {path} with the token cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    return as_token(Given(text, f"file {path}", path.parent))


def whoami() -> str:
    """The name of the person at the keyboard, as the operating system has it; blank when it has none."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


async def _local(settings: Settings) -> Client:
    from foliot.client.local import LocalClient
    from foliot.store.base import DeclaredBy
    from foliot.store.open import open_database
    from foliot.store.resources.database import SqlResourceStore

    def keyring(*, create: bool = True) -> Sealer:
        # Most commands never touch a secret value, and loading this takes a sixth of the time that they may take.
        from foliot.store.secrets.keyring import load_keyring

        return load_keyring(settings, create=create)

    database = await open_database(settings.store)

    async def budgets_changed(namespace: str) -> None:
        from time import time

        from foliot.engine.budgets.wakeups import wake_paused
        from foliot.store.journal.database import SqlJournal

        await wake_paused(SqlJournal(database), namespace, clock=time)

    async def models_changed(namespace: str) -> None:
        from time import time

        from foliot.engine.budgets import wakeups as waking

        await waking.models_changed(database, namespace, clock=time)

    @asynccontextmanager
    async def tasks() -> AsyncGenerator[TaskService]:
        from foliot.runtime.runtime import Runtime

        async with Runtime(settings=settings) as runtime:
            yield runtime.tasking.tasks

    def work() -> DeclaredWork:
        from foliot.client.task_resources import DeclaredWork

        return DeclaredWork(database, tasks)

    store = SqlResourceStore(database, keyring, existing=partial(keyring, create=False))
    by = DeclaredBy(whoami(), operator=True)  # who can open the store can do anything to it
    return LocalClient(
        store,
        close=database.close,
        budgets_changed=budgets_changed,
        models_changed=models_changed,
        work=work,
        by=by,
    )
