"""Fixtures for every test: real services, started when the first test needs one and shared by all workers.

A test that uses `postgres_url`, `postgres_service`, `nats_url` or `nats_service` gets the marker `services` by itself,
so `pytest -m "not services"` leaves it out. A test that asks for one by `request.getfixturevalue` must say so, e.g.
`pytest.param("postgres", marks=pytest.mark.services)`: what it will ask for cannot be seen when tests are chosen.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from foliot.dev.nats import Nats
from foliot.dev.postgres import Postgres
from foliot.dev.session import ServiceSession
from foliot.errors import FoliotError
from foliot.sandbox.process import ProcessSandbox
from foliot.store.sqlite import file as sqlite_file
from tests import new_stores
from tests.new_stores import NewFiles
from tests.time_limits import TimeLimits

# How long something takes says nothing about whether it is right: machines are busy. `make test` plays the same
# examples every time; `make chaos` looks for new ones, and what ever failed is kept in its test by `@example`.
_PROFILE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("foliot", _PROFILE, derandomize=True, database=None)
settings.register_profile("chaos", _PROFILE, print_blob=True)
settings.load_profile("chaos" if os.environ.get("FOLIOT_CHAOS") else "foliot")

SERVICE_FIXTURES = frozenset({"postgres_url", "postgres_service", "nats_url", "nats_service"})
ROOM_FOR_TESTS = 6 * 1024**3
SESSION = pytest.StashKey[ServiceSession]()


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what runs in its background with Ctrl-C ignored, and programs that tests start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(TimeLimits())
    handed_down: dict[str, Any] | None = getattr(config, "workerinput", None)
    if handed_down is None:
        config.stash[SESSION] = ServiceSession.begin(within=keep_files_in_memory())
    else:
        config.stash[SESSION] = ServiceSession.join(Path(handed_down["services_folder"]))


def keep_files_in_memory() -> Path | None:
    """Put the folders of tests into memory where there is plenty: thousands of stores would each wait for the disk.

    What `kill -9` leaves behind is the same there; only a machine that loses its power would tell the difference.
    Returns the place; None where files stay on the disk.
    """
    memory = Path("/dev/shm")
    with contextlib.suppress(OSError, ValueError):
        room = os.statvfs(memory)
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if not room.f_flag & os.ST_NOEXEC and min(room.f_bavail * room.f_frsize, free) > ROOM_FOR_TESTS:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
            return memory
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["services_folder"] = str(node.config.stash[SESSION].folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    if (session := config.stash.get(SESSION, None)) is not None:
        session.end()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not SERVICE_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.services)


@pytest.fixture(scope="module", autouse=True)
def _garbage_of_the_module() -> Iterator[None]:
    """What a module leaves open is found at its end: a test of another module is not blamed for it."""
    yield
    gc.collect()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("fence") is not None and (why := no_fence()):
        pytest.skip(why)


@cache
def no_fence() -> str:
    """Why programs cannot be fenced on this machine; empty when they can. Foliot then refuses to run them, too."""
    found = asyncio.run(ProcessSandbox().enforces())
    return "" if found.available else f"nothing can be fenced here: {found.why}"


def pytest_collection_finish() -> None:
    """Set aside what collecting left in memory: thousands of tests that the garbage collector need not look through."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def new_files() -> Iterator[NewFiles]:
    """New SQLite files are copies of one: making each by all migrations would be most of what many tests do."""
    files = NewFiles()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sqlite_file, "_migrate", files.migrate)
        yield files


@pytest.fixture
def really_migrated(new_files: NewFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that are about the migrations: they make every SQLite file, and `postgres_url` is an empty database."""
    monkeypatch.setattr(sqlite_file, "_migrate", new_files.migrate_really)


@pytest.fixture
def service_session(request: pytest.FixtureRequest) -> ServiceSession:
    if request.node.get_closest_marker("services") is None:
        pytest.fail("a test that gets a service dynamically must be marked with pytest.mark.services", pytrace=False)
    return request.config.stash[SESSION]


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, service_session: ServiceSession) -> Iterator[str]:
    """A fresh database on the shared PostgreSQL, with the schema and nothing else in it; dropped after the test."""
    model = None if "really_migrated" in request.fixturenames else new_stores.POSTGRES
    yield from explained(service_session.database(model=model))


@pytest.fixture
def postgres_service(service_session: ServiceSession) -> Iterator[Postgres]:
    """A PostgreSQL of the test's own, to stop, kill and restart: it keeps what it has committed."""
    yield from explained(service_session.private_postgres(fsync=False))


@pytest.fixture
def nats_url(service_session: ServiceSession) -> Iterator[str]:
    """An account without streams on the shared NATS server, which no other test uses at the same time."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    # A crashed worker's successor has a number of its own, beyond the count; the crashed one's account is free.
    yield from explained(service_session.nats(account=int(worker) % count, accounts=count))


@pytest.fixture
def nats_service(service_session: ServiceSession) -> Iterator[Nats]:
    """A NATS server of the test's own, to stop, kill and restart."""
    yield from explained(service_session.private_nats())


def explained(service: Any) -> Iterator[Any]:
    """What the context manager gives; when it cannot be had, a failure that says what to do instead of a traceback."""
    try:
        value = service.__enter__()
    except FoliotError as error:
        hint = f"\nWhat to do: {error.hint}" if error.hint else ""
        pytest.fail(f"{error.message}{hint}", pytrace=False)
    try:
        yield value
    finally:
        service.__exit__(None, None, None)
