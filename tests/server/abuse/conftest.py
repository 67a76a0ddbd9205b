"""A server on a real socket, in a thread of its own, and callers that write bytes."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, Final

import pytest

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.context import Services
from foliot.server.http.connections import Bounds
from foliot.server.http.envelope import RequestLimits
from foliot.server.http.serve import HttpServer, Listen
from foliot.settings.settings import load_settings
from foliot.store.access.tokens import SqlTokens

PATIENCE: Final = 60.0
# Guesses of one test are not counted against the next one.
ROOMY: Final = RequestLimits(auth_failures=0)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The code of the problem."""
        assert self.headers["content-type"] == "application/problem+json", (self.status, self.body)
        problem = json.loads(self.body)
        assert problem["status"] == self.status
        assert problem["type"].endswith("/" + problem["code"])
        assert self.headers["x-request-id"]
        return str(problem["code"])


class _StaysOpen:
    def __init__(self, file: Any) -> None:
        self._file = file

    def close(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Caller:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._incoming = self.socket.makefile("rb")

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self._incoming.close()
        self.socket.close()

    def makefile(self, _: str) -> Any:
        """For `HTTPResponse`, which closes its file: one file for all answers of the connection."""
        return _StaysOpen(self._incoming)

    def send(self, data: bytes) -> None:
        """All of it, or as much as the server takes before it hangs up."""
        try:
            self.socket.sendall(data)
        except OSError:
            return

    def reply(self, method: str = "GET") -> Reply:
        """The next answer. Raises `ConnectionError` when there is none."""
        response = HTTPResponse(self, method=method)  # type: ignore[arg-type]  # of a socket it uses makefile() alone
        response.begin()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())

    def ended(self) -> bool:
        """Whether the server hangs up without another word."""
        try:
            return self._incoming.read(1) == b""
        except ConnectionError:
            return True


@dataclass
class Wire:
    """A server. `token` is that of an admin, `reader` that of somebody who may read in namespace `team`."""

    port: int
    services: Services
    loop: asyncio.AbstractEventLoop
    tokens: dict[str, str]
    server: HttpServer
    stop: asyncio.Event
    errors: list[str] = field(default_factory=list[str])

    @property
    def connections(self) -> int:
        return len(self.server._server.server_state.connections)

    def call(self) -> Caller:
        return Caller(self.port)

    def say(self, data: bytes, method: str = "GET") -> Reply:
        """The answer to these bytes."""
        with self.call() as caller:
            caller.send(data)
            return caller.reply(method)

    def ask(self, method: str, path: str, *headers: str, body: bytes = b"", token: str | None = "admin") -> Reply:
        """The answer to a request that is put together without being looked at."""
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
        if token is not None:
            lines.append(f"Authorization: Bearer {self.tokens[token]}")
        if body:
            lines.append(f"Content-Length: {len(body)}")
        return self.say("\r\n".join([*lines, "", ""]).encode("latin-1") + body, method)

    def run(self, work: Any) -> Any:
        """What a coroutine gives, on the loop of the server."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def until(self, holds: Callable[[], bool]) -> None:
        """Return when it holds."""
        end = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < end
            time.sleep(0.01)

    def serves(self) -> bool:
        """Whether a good request is answered with what it asks for."""
        try:
            return self.ask("GET", "/v1/agents").status == 200
        except ConnectionError:
            return False

    def still_serves(self) -> None:
        """Live, ready, letting in whom it should and nobody else, and without a mistake in its log."""
        assert self.ask("GET", "/readyz", token=None).status == 200
        assert self.ask("GET", "/v1/agents").status == 200
        assert self.ask("GET", "/v1/agents", token=None).status == 401
        assert self.errors == []


Standing = Callable[..., AbstractContextManager[Wire]]


@contextmanager
def _standing(home: Path, *, limits: RequestLimits = ROOMY, bounds: Bounds | None = None) -> Iterator[Wire]:
    ready: list[Wire] = []
    up = threading.Event()
    failures: list[BaseException] = []

    async def serve() -> None:
        settings = load_settings({"home": str(home)}, {})
        async with Runtime(settings=settings) as runtime:
            tokens = await _tokens(runtime)
            auth = TokenAuth(runtime.inside.tasking.database, local=True)
            app = create_app(runtime, settings=settings, auth=auth, limits=limits)
            async with HttpServer(app, Listen("127.0.0.1", 0), bounds=bounds) as server:
                stop = asyncio.Event()
                port = int(server.url.rpartition(":")[2])
                ready.append(Wire(port, app.state.services, asyncio.get_running_loop(), tokens, server, stop))
                up.set()
                await stop.wait()
            await auth.close()

    def work() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failures.append(error)
        finally:
            up.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert up.wait(PATIENCE)
        assert ready, failures
        with _listening_for_mistakes(ready[0].errors):
            yield ready[0]
    finally:
        if ready:
            ready[0].loop.call_soon_threadsafe(ready[0].stop.set)
        thread.join(PATIENCE)
    assert not failures, failures
    assert not thread.is_alive()


async def _tokens(runtime: Runtime) -> dict[str, str]:
    tokens = SqlTokens(runtime.inside.tasking.database)
    now = time.time()
    made: dict[str, str] = {}
    for name, roles, spaces, expires in (
        ("admin", ["admin"], ["*"], None),
        ("reader", ["reader"], ["team"], None),
        ("expired", ["admin"], ["*"], now - 1),
    ):
        _, made[name] = await tokens.create(name, namespaces=spaces, roles=roles, now=now, expires_at=expires)
    return made


@contextmanager
def _listening_for_mistakes(found: list[str]) -> Iterator[None]:
    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(self.format(record))

    handler = Keeper(logging.ERROR)
    logging.getLogger("foliot").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("foliot").removeHandler(handler)


@pytest.fixture
def standing(tmp_path: Path) -> Standing:
    """`with standing(limits=…, bounds=…) as wire` is a server of one's own."""

    def standing(**given: Any) -> AbstractContextManager[Wire]:
        return _standing(tmp_path, **given)

    return standing


@pytest.fixture(scope="module")
def open_server() -> Standing:
    """`with open_server(home, limits=…, bounds=…) as wire`, for fixtures of a module."""
    return _standing


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    with _standing(tmp_path_factory.mktemp("server"), bounds=Bounds(linger=0.2)) as wire:
        yield wire


@pytest.fixture
def wire(shared: Wire) -> Iterator[Wire]:
    """A server that others have used before. It must serve as well after the test as before."""
    yield shared
    shared.still_serves()
