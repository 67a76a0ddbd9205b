"""The services that a person runs to try the production set-up. They stay until they are stopped, and keep their data.

They live in `<home>/services`, except that root's PostgreSQL, which runs as another user, is put below /var/lib when
that user cannot enter root's home; a link in `<home>/services` then points there, so it is found again whatever
happens to the permissions.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from foliot.dev.nats import Nats
from foliot.dev.postgres import Postgres, can_enter, unprivileged_user
from foliot.dev.service import HOST, Service, ServiceError

SYSTEM_FOLDER = Path("/var/lib/foliot/services")


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The status of one service, for people and programs. No password is in it."""

    name: str
    running: bool
    address: str | None
    pid: int | None
    version: str | None
    folder: Path


class DevServices:
    def __init__(self, home: Path) -> None:
        self.folder = home / "services"

    def up(self) -> tuple[Postgres, Nats]:
        """Starts both services where they are not running. Raises `ServiceError`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._place_postgres()
        return self._postgres().start(), self._nats().start()

    def down(self, *, purge: bool = False) -> None:
        """Stops both services; with `purge` deletes their data too. Raises `ServiceError` if one will not end."""
        for service in (self._nats(), self._postgres()):
            service.stop()
        if purge:
            for service in (self._nats(), self._postgres()):
                service.purge()
            self._link.unlink(missing_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)

    def status(self) -> list[ServiceStatus]:
        return [_status_of(service) for service in (self._postgres(), self._nats())]

    @property
    def _link(self) -> Path:
        return self.folder / "postgres"

    def _postgres(self) -> Postgres:
        return Postgres(self._link.resolve())

    def _nats(self) -> Nats:
        return Nats(self.folder / "nats")

    def _place_postgres(self) -> None:
        user = unprivileged_user()
        if user is None or self._link.is_symlink() or self._link.exists() or can_enter(user, self._link.resolve()):
            return
        # Named after the home it belongs to: several homes have several servers.
        place = SYSTEM_FOLDER / hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:12]
        place.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._link.symlink_to(place)


def _status_of(service: Service) -> ServiceStatus:
    running = service.running
    try:
        version = service.version
    except ServiceError:
        version = None  # its program is gone; a server that runs goes on without it
    return ServiceStatus(
        name=service.name,
        running=running,
        address=f"{HOST}:{service.port}" if running else None,
        pid=service.pid,
        version=version,
        folder=service.folder,
    )
