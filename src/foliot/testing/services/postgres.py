"""A private PostgreSQL with pgvector, never run as root.

Clients come in on loopback with a password. Data pages carry checksums; `durable=False` leaves out fsync, which is for
tests that would only wait for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import ClassVar

from foliot.testing.services.base import HOST, Service, ServiceError, User, write_private
from foliot.testing.services.programs import PostgresPrograms, find_postgres, unprivileged_user

SUPERUSER = "foliot"
DATABASE = "postgres"
SOCKET_PATH_LIMIT = 100
"""Systems cut the path of a Unix socket at 104 to 108 bytes."""


class Postgres(Service):
    name: ClassVar[str] = "PostgreSQL"
    # fast (cut connections, checkpoint), then immediate (as after a crash, which recovery is made for)
    stop_signals: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGINT, signal.SIGQUIT)

    def __init__(self, folder: Path, *, owner: Path | None = None, durable: bool = True) -> None:
        super().__init__(folder, owner=owner)
        self.durable = durable
        self._programs: PostgresPrograms | None = None

    @property
    def url(self) -> str:
        return self.database_url(DATABASE)

    def database_url(self, database: str) -> str:
        """Where clients of one database connect."""
        return f"postgresql://{SUPERUSER}:{self.state.password}@{HOST}:{self.port}/{database}"

    @property
    def version(self) -> str:
        return self.programs.version

    @property
    def user(self) -> User | None:
        return unprivileged_user()

    @property
    def programs(self) -> PostgresPrograms:
        if self._programs is None:
            version_file = self._data / "PG_VERSION"
            made_by = version_file.read_text().strip() if version_file.exists() else None
            self._programs = find_postgres(self.user, copy_to=self.folder / "programs", made_by=made_by)
        return self._programs

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _prepare(self) -> None:
        _ = self.programs  # when none will do, nothing has been touched yet
        if not (self._data / "PG_VERSION").exists():
            self._initialise()
        self._configure()

    def _initialise(self) -> None:
        """Make the data folder; a half-made one of an earlier try is thrown away."""
        shutil.rmtree(self._data, ignore_errors=True)
        self._data.mkdir(mode=0o700)
        password_file = self.folder / "initial-password"
        write_private(password_file, self.state.password)
        self._hand_over(self._data)
        self._hand_over(password_file)
        command = [
            str(self.programs.bin / "initdb"),
            f"--pgdata={self._data}",
            f"--username={SUPERUSER}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--data-checksums",
            *([] if self.durable else ["--no-sync"]),
        ]
        try:
            done = self._run(command)
        finally:
            password_file.unlink(missing_ok=True)
        if done.returncode:
            shutil.rmtree(self._data, ignore_errors=True)
            raise ServiceError(f"PostgreSQL cannot make its data folder {self._data}:\n{done.stdout.strip()}")

    def _configure(self) -> None:
        sockets = str(self._data) if len(str(self._data)) < SOCKET_PATH_LIMIT - len("/.s.PGSQL.00000") else ""
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": sockets,
            "unix_socket_permissions": "0700",
            "max_connections": "200",
            "log_min_messages": "warning",
            "fsync": "on" if self.durable else "off",
            "full_page_writes": "on" if self.durable else "off",
            "synchronous_commit": "on" if self.durable else "off",
        }
        path = self._data / "postgresql.auto.conf"
        write_private(path, "".join(f"{name} = '{value}'\n" for name, value in settings.items()))
        self._hand_over(path)

    def _command(self) -> list[str]:
        return [str(self.programs.bin / "postgres"), "-D", str(self._data)]

    def _is_ready(self) -> bool:
        try:
            note = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        # The server's own note: its process id, which tells it from the note of a killed one, and last its status.
        return len(note) >= 8 and note[0] == str(self.pid) and note[7].strip() == "ready"

    def _launch(self) -> None:
        # Notes of a killed server keep a new one from starting for as long as its process id exists, be it a zombie's
        # or somebody else's. Nothing of it is left: its lock was free.
        for note in (self._data / "postmaster.pid", *self._data.glob(".s.PGSQL.*")):
            note.unlink(missing_ok=True)
        super()._launch()

    def _hand_over(self, path: Path) -> None:
        if (user := self.user) is not None:
            os.chown(path, user.uid, user.gid, follow_symlinks=False)

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        user = self.user
        return subprocess.run(
            command,
            cwd="/",
            env={"PATH": os.defpath, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=[] if user else None,
        )
