"""The services of one test session, shared by all its processes, and gone when the session is gone.

The first process (`ServiceSession.begin`) makes a folder and holds its `owner.lock` until it ends, however it ends; its
helpers (`ServiceSession.join`) find the same folder. Whoever needs a service first starts it; nobody has to stop it.

`FOLIOT_TEST_POSTGRES_URL` and `FOLIOT_TEST_NATS_URL` name servers to use instead; then nothing is started.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from foliot.dev.nats import Nats
from foliot.dev.postgres import Postgres
from foliot.dev.service import POLL_SECONDS, ServiceError, is_held

T = TypeVar("T")

POSTGRES_VARIABLE = "FOLIOT_TEST_POSTGRES_URL"
NATS_VARIABLE = "FOLIOT_TEST_NATS_URL"
END_SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class Model:
    """A database that others are copies of. `make` fills it, by its URL; `renew` tells each copy from the others."""

    name: str
    make: Callable[[str], Coroutine[Any, Any, None]]
    renew: str


class ServiceSession:
    def __init__(self, folder: Path, *, owner: int | None, environ: Mapping[str, str]) -> None:
        """Use `begin` or `join`. `owner` is the descriptor that holds the lock, in the first process only."""
        self.folder = folder
        self._owner = owner
        self._postgres_url = environ.get(POSTGRES_VARIABLE)
        self._is_named = self._postgres_url is not None
        self._nats_url = environ.get(NATS_VARIABLE)

    @classmethod
    def begin(cls, environ: Mapping[str, str] = os.environ, *, within: Path | None = None) -> Self:
        """Start a session, with its folder `within` another one, that lasts until `end`, or as long as this process."""
        folder = Path(tempfile.mkdtemp(prefix="foliot-", dir=within))
        folder.chmod(0o711)  # the user whom PostgreSQL runs as must get through, and needs no more
        owner = os.open(folder / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(owner, fcntl.LOCK_EX)
        return cls(folder, owner=owner, environ=environ)

    @classmethod
    def join(cls, folder: Path, environ: Mapping[str, str] = os.environ) -> Self:
        """Use the services of a session that another process began."""
        return cls(folder, owner=None, environ=environ)

    def end(self) -> None:
        """Let go; in the first process also wait until every server is gone. Raises `ServiceError` if one stays."""
        if self._owner is None:
            return
        os.close(self._owner)
        self._owner = None
        deadline = time.monotonic() + END_SECONDS
        while left := [str(lock.parent) for lock in self.folder.glob("*/alive.lock") if is_held(lock)]:
            if time.monotonic() > deadline:
                raise ServiceError(f"still running after the tests: {', '.join(left)}")
            time.sleep(POLL_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def owner(self) -> Path:
        return self.folder / "owner.lock"

    def postgres_url(self) -> str:
        """A superuser's way into the shared server, which is started unless it runs. No fsync: it dies with us."""
        if self._postgres_url is None:
            self._postgres_url = Postgres(self.folder / "postgres", owner=self.owner, durable=False).start().url
        return self._postgres_url

    @contextmanager
    def database(self, *, model: Model | None = None) -> Generator[str]:
        """The URL of a fresh database on the shared server, dropped afterwards: an empty one, or a copy of the model.

        A server named by the environment keeps no models: what the model would have in it is left to the caller.
        """
        admin = self.postgres_url()
        if self._is_named:
            model = None
        template = "template0" if model is None else self._made(model)
        name = f"test_{secrets.token_hex(8)}"
        url = urlunsplit(urlsplit(admin)._replace(path=f"/{name}"))
        _finish(_execute(admin, f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy'))
        try:
            if model is not None:
                _finish(_execute(url, model.renew))
            yield url
        finally:
            _finish(_execute(admin, f'DROP DATABASE "{name}" WITH (FORCE)'))

    def _made(self, model: Model) -> str:
        """The database that copies are made of; whichever process needs it first makes it, and others wait."""
        admin, name = self.postgres_url(), f"model_{model.name}"
        with open(self.folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = self.folder / f"{name}.done"
            if not done.exists():
                _finish(_execute(admin, f'DROP DATABASE IF EXISTS "{name}"'))
                _finish(_execute(admin, f'CREATE DATABASE "{name}" TEMPLATE template0 STRATEGY file_copy'))
                _finish(model.make(urlunsplit(urlsplit(admin)._replace(path=f"/{name}"))))
                done.touch()
        return name

    @contextmanager
    def nats(self, *, account: int, accounts: int) -> Generator[str]:
        """The URL of account number `account` (of so many) on the shared server; its streams are deleted afterwards.

        A server named by the environment has no such accounts: it is used, and left, as it is.
        """
        if self._nats_url is not None:
            yield self._nats_url
            return
        names = [f"account{number}" for number in range(accounts)]
        url = Nats(self.folder / "nats", owner=self.owner, accounts=names).start().account_url(names[account])
        yield url
        _finish(_delete_streams(url))

    @contextmanager
    def private_postgres(self, *, fsync: bool = True) -> Generator[Postgres]:
        """A durable server of its own, running, for whoever must stop, kill or restart it."""
        service = Postgres(self.folder / f"postgres-{secrets.token_hex(4)}", owner=self.owner, fsync=fsync).start()
        try:
            yield service
        finally:
            service.purge()

    @contextmanager
    def private_nats(self) -> Generator[Nats]:
        """A server of its own, running, for whoever must stop, kill or restart it."""
        service = Nats(self.folder / f"nats-{secrets.token_hex(4)}", owner=self.owner).start()
        try:
            yield service
        finally:
            service.purge()


def _finish(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in a thread: the caller's thread may have an event loop, and must keep it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def _execute(url: str, statement: str) -> None:
    asyncpg: Any = importlib.import_module("asyncpg")  # untyped
    try:
        connection = await asyncpg.connect(url, timeout=30)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        place = urlsplit(url)
        raise ServiceError(
            f"PostgreSQL at {place.hostname}:{place.port or 5432} does not let the tests in: {error}",
            hint=f"check {POSTGRES_VARIABLE}, or unset it to have a private server started",
        ) from error
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _delete_streams(url: str) -> None:
    nats: Any = importlib.import_module("nats")  # its calls are only partly typed
    client = await nats.connect(url, allow_reconnect=False)
    try:
        stream = client.jetstream()
        for info in await stream.streams_info():
            if info.config.name is not None:
                await stream.delete_stream(info.config.name)
    finally:
        await client.close()
