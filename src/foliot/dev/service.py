"""One server in one folder: start, stop, restart, and find it again from another process.

A folder holds everything that lasts: `state.json` (port and password, the same after a restart), `data/`, `server.log`,
and `alive.lock`, which the server holds for as long as it lives (see keeper.py). So any process can tell whether the
server runs, whoever started it, and no process id is believed that the lock does not vouch for.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Self

from foliot.dev import keeper
from foliot.errors import Unavailable

HOST = "127.0.0.1"
# Below the ports that systems hand out for outgoing connections, so a stopped server finds its port free again.
PORTS = range(20_000, 32_000)
START_SECONDS = 60.0
POLL_SECONDS = 0.02
LOG_LINES = 15


class ServiceError(Unavailable):
    """A server cannot be started, reached or stopped. The message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The facts that a restart must not change."""

    port: int
    password: str


@dataclass(frozen=True, slots=True)
class User:
    """The unprivileged system user that a server runs as."""

    name: str
    uid: int
    gid: int


class Service(ABC):
    """One private server. `owner` is a lock file (see `hold`): when its holder is gone, so are server and folder."""

    name: ClassVar[str]
    stop_signals: ClassVar[tuple[signal.Signals, ...]]
    """Tried in this order, from polite to certain; SIGKILL is always the last."""

    def __init__(self, folder: Path, *, owner: Path | None = None) -> None:
        self.folder = folder
        self.owner = owner
        self._state: ServiceState | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for clients, with user and password."""

    @property
    @abstractmethod
    def version(self) -> str:
        """The version of the server's program. Raises `ServiceError` when there is none."""

    @property
    def user(self) -> User | None:
        """Whom the server runs as; None for the present user."""
        return None

    @abstractmethod
    def _prepare(self) -> None:
        """Make data and configuration where they are missing."""

    @abstractmethod
    def _command(self) -> list[str]:
        """The program and its arguments; it stays in the foreground."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether clients are served now."""

    @property
    def log_file(self) -> Path:
        return self.folder / "server.log"

    @property
    def port(self) -> int:
        return self.state.port

    @property
    def state(self) -> ServiceState:
        """Port and password. Raises `ServiceError` when the service was never started."""
        if self._state is None:
            try:
                self._state = ServiceState(**json.loads(self._state_file.read_text()))
            except FileNotFoundError:
                raise ServiceError(f"{self.name} was never started in {self.folder}") from None
            except (ValueError, TypeError):
                raise ServiceError(
                    f"{self._state_file} is damaged", hint=f"delete {self.folder} to start afresh, without its data"
                ) from None
        return self._state

    @property
    def running(self) -> bool:
        """Whether the server, or anything that it started, is alive."""
        return is_held(self._alive_file)

    @property
    def pid(self) -> int | None:
        """The process id of the running server; None when it does not run."""
        if not self.running:
            return None
        try:
            return int(self._pid_file.read_text())
        except (OSError, ValueError):
            return None

    def start(self, *, timeout: float = START_SECONDS) -> Self:
        """Return when clients are served; at once when they already are. Safe to call from several processes.

        Raises `ServiceError` with the end of the log.
        """
        self.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        with locked(self.folder / "start.lock"):
            if not self.running:
                self._ensure_state()
                self._prepare()
                self._launch()
            self._wait_until_ready(timeout)
        return self

    def stop(self) -> None:
        """Return when nothing of the server is left. Its data stays. Raises `ServiceError` if it will not end."""
        for number in (*self.stop_signals, signal.SIGKILL):
            self._signal(number)
            if self._wait_until_stopped(keeper.PATIENCE_SECONDS):
                return
        raise ServiceError(f"{self.name} (process {self.pid}) does not end", hint=f"look at {self.log_file}")

    def kill(self) -> None:
        """End the server at once, as a crash would, and return when nothing of it is left."""
        self._signal(signal.SIGKILL)
        if not self._wait_until_stopped(keeper.PATIENCE_SECONDS):
            raise ServiceError(f"{self.name} survived SIGKILL", hint=f"look at {self.log_file}")

    def restart(self) -> Self:
        """Stop and start on the same port, with the same data and password."""
        self.stop()
        return self.start()

    def purge(self) -> None:
        """Stop, and delete everything the service has stored."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._state = None

    def log_tail(self) -> str:
        """The last lines of the log, for people."""
        try:
            lines = self.log_file.read_text(errors="replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(f"  | {line}" for line in lines[-LOG_LINES:]) or "(the log is empty)"

    @property
    def _alive_file(self) -> Path:
        return self.folder / "alive.lock"

    @property
    def _pid_file(self) -> Path:
        return self.folder / "server.pid"

    @property
    def _state_file(self) -> Path:
        return self.folder / "state.json"

    def _ensure_state(self) -> None:
        if not self._state_file.exists():
            state = ServiceState(port=free_port(), password=secrets.token_urlsafe(18))
        elif is_free(self.state.port):
            return
        else:  # another program took the port while we were down
            state = ServiceState(port=free_port(), password=self.state.password)
        write_private(self._state_file, json.dumps(asdict(state)))
        self._state = state

    def _launch(self) -> None:
        user = self.user
        order: keeper.KeeperOrder = {
            "command": self._command(),
            "environment": {"PATH": os.defpath, "LC_ALL": "C"},
            "alive": str(self._alive_file),
            "pid_file": str(self._pid_file),
            "log": str(self.log_file),
            "owner": None if self.owner is None else str(self.owner),
            "folder": str(self.folder),
            "user": None if user is None else (user.uid, user.gid),
            "stop_signals": [int(number) for number in self.stop_signals],
        }
        done = subprocess.run(
            [sys.executable, "-I", "-S", keeper.__file__, json.dumps(order)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode not in (0, keeper.ALREADY_RUNNING):
            raise ServiceError(f"{self.name} cannot be started: {done.stderr.strip()}")

    def _wait_until_ready(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self._is_ready():
            if not self.running:
                raise ServiceError(
                    f"{self.name} ended while starting. The end of its log, {self.log_file}:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"{self.name} did not become ready in {timeout:.0f} s. "
                    f"The end of its log, {self.log_file}:\n{self.log_tail()}"
                )
            time.sleep(POLL_SECONDS)

    def _wait_until_stopped(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self.running:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _signal(self, number: signal.Signals) -> None:
        if (pid := self.pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold a lock file; waits for whoever has it, whose death frees it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def is_held(lock: Path) -> bool:
    """Whether a living process holds the lock file."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A loopback port that nothing listens on, and that no other caller of this function gets while this process lives.

    A port that is free now may be taken before its server binds it, or while a server that restarts is down. So each
    port has a lock file, and this process holds the one of its port until it ends, however it ends.
    """
    chance = random.SystemRandom()
    locks = Path(tempfile.gettempdir()) / f"foliot-ports-{os.getuid()}"
    locks.mkdir(mode=0o700, exist_ok=True)
    for _ in range(200):
        port = chance.choice(PORTS)
        lock = os.open(locks / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        if is_free(port):
            return port
        os.close(lock)
    raise ServiceError(f"no free port between {PORTS.start} and {PORTS.stop} on {HOST}")


def write_private(path: Path, text: str) -> None:
    """Replace the file in one step, readable by its owner only."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


def program_version(program: Path, *, user: User | None = None) -> str:
    """Returns the output of `program --version`, run as `user`. Raises `ServiceError` when it does not run."""
    try:
        done = subprocess.run(
            [str(program), "--version"],
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=[] if user else None,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ServiceError(f"{program} does not run: {error}") from error
    return done.stdout.strip()
