"""A private PostgreSQL with pgvector, never run as root.

Clients come in on loopback with a password. Data pages carry checksums; without fsync it is for tests, which would only
wait for the disk.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from foliot.common.postgres_programs import SYSTEM, WHEEL, program_folders
from foliot.dev.service import HOST, Service, ServiceError, User, program_version, write_private
from foliot.version import install_command

# --- programs --------------------------------------------------------------------------------------------------------

# Which PostgreSQL to run, and as whom.
#
# The wheel's programs come first, because they are known to have pgvector; then whatever the system has, if it is new
# enough. PostgreSQL refuses to run as root, so root runs it as another user, and that user must be able to reach the
# programs: those inside a private folder such as /root are copied to a place it can reach, and nobody's folders are
# opened up for it.

OLDEST = 16
MISSING = f"{install_command('services')} (or install PostgreSQL 16 or newer with pgvector)"
USERS = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class PostgresPrograms:
    """A folder with postgres and initdb that the server's user can run."""

    bin: Path
    version: str


def unprivileged_user() -> User | None:
    """Whom to run PostgreSQL as: None is the present user, unless that is root."""
    if os.geteuid() != 0:
        return None
    for name in USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return User(name, entry.pw_uid, entry.pw_gid)
    raise ServiceError(
        f"PostgreSQL does not run as root, and this system has none of the users {', '.join(USERS)}",
        hint="make one (useradd --system postgres), or run this as an ordinary user",
        retryable=False,
    )


def can_enter(user: User, folder: Path) -> bool:
    """Whether `user` can get into the folder, through all those above it. Some of them may not exist yet."""
    for each in (folder, *folder.parents):
        try:
            status = each.stat()
        except FileNotFoundError:
            continue
        shift = 6 if status.st_uid == user.uid else 3 if status.st_gid == user.gid else 0
        if not status.st_mode >> shift & stat.S_IXOTH:
            return False
    return True


def find_postgres(user: User | None, *, copy_to: Path, made_by: str | None = None) -> PostgresPrograms:
    """The first usable installation; `made_by` is the major version that existing data asks for.

    Raises `ServiceError` with every one that was tried, and why it was not used.
    """
    refused: list[str] = []
    for folder in _candidates():
        try:
            return _usable(folder, user, copy_to, made_by)
        except ServiceError as error:
            refused.append(f"  - {error.message}")
    tried = "\n".join(refused) or f"  - no wheel, nothing on PATH, nothing in {SYSTEM}"
    raise ServiceError(
        f"no PostgreSQL {OLDEST} or newer with pgvector can be run here:\n{tried}", hint=MISSING, retryable=False
    )


def _candidates() -> Iterator[Path]:
    """Folders with a `postgres` program, best first, each once."""
    seen: set[Path] = set()
    for folder in program_folders("postgres", wheel=WHEEL, system=SYSTEM):
        real = (folder / "postgres").resolve().parent
        if (real / "postgres").is_file() and real not in seen:
            seen.add(real)
            yield real


def _usable(folder: Path, user: User | None, copy_to: Path, made_by: str | None) -> PostgresPrograms:
    said = program_version(folder / "postgres")
    match = re.search(r"(\d+)(\.\d+)*", said)
    if match is None:
        raise ServiceError(f"{folder / 'postgres'} does not say its version")
    if int(match[1]) < OLDEST:
        raise ServiceError(f"{folder / 'postgres'} is PostgreSQL {match[0]}, older than {OLDEST}")
    if made_by is not None and match[1] != made_by:
        raise ServiceError(f"{folder / 'postgres'} is PostgreSQL {match[0]}, but the data was made by {made_by}")
    if not (folder / "initdb").is_file():
        raise ServiceError(f"{folder} has no initdb beside postgres")
    if not _has_vector(folder):
        raise ServiceError(f"{folder / 'postgres'} (PostgreSQL {match[0]}) has no pgvector extension")
    return PostgresPrograms(_reachable(folder, user, copy_to / match[0]), match[0])


def _has_vector(folder: Path) -> bool:
    shares = [folder.parent / "share" / "postgresql", folder.parent / "share"]
    try:
        told = subprocess.run(
            [str(folder / "pg_config"), "--sharedir"], capture_output=True, text=True, check=True, timeout=30
        )
        shares.insert(0, Path(told.stdout.strip()))
    except (OSError, subprocess.SubprocessError):
        shares.append(Path("/usr/share/postgresql") / folder.parent.name)  # Debian's place, without its -dev package
    return any((share / "extension" / "vector.control").is_file() for share in shares)


def _reachable(folder: Path, user: User | None, copy_to: Path) -> Path:
    """`folder`, or a copy of its installation that `user` can run. Raises `ServiceError` when neither will do."""
    if user is None or _runs_as(folder, user):
        return folder
    copied = _copy_installation(folder.parent, copy_to)
    if not _runs_as(copied / "bin", user):
        raise ServiceError(
            f"user {user.name}, as whom PostgreSQL would run, can reach neither {folder} nor {copied}",
            hint="use a folder below one that every user may enter (for tests: set TMPDIR)",
            retryable=False,
        )
    return copied / "bin"


def _copy_installation(home: Path, copy_to: Path) -> Path:
    """Copy `home`, and the folder of libraries that a wheel keeps beside its package, in the same relative places."""
    package = home.parent
    copied = copy_to / package.name / home.name
    libraries = package.with_name(f"{package.name}.libs")
    if not copied.is_dir():
        copy_to.mkdir(mode=0o755, parents=True, exist_ok=True)
        if libraries.is_dir():
            shutil.copytree(libraries, copy_to / libraries.name, dirs_exist_ok=True)
        partial = copied.with_name(f".{home.name}")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(home, partial, symlinks=True, ignore=shutil.ignore_patterns("include"))
        partial.rename(copied)
    return copied


def _runs_as(folder: Path, user: User) -> bool:
    try:
        program_version(folder / "postgres", user=user)
        program_version(folder / "initdb", user=user)
    except ServiceError:
        return False
    return True


# --- postgres --------------------------------------------------------------------------------------------------------

SUPERUSER = "foliot"
DATABASE = "postgres"
SOCKET_PATH_LIMIT = 100
"""Systems cut the path of a Unix socket at 104 to 108 bytes."""


class Postgres(Service):
    """`durable` keeps what is committed when the server is killed; `fsync` also when the machine loses its power."""

    name: ClassVar[str] = "PostgreSQL"
    # fast (cut connections, checkpoint), then immediate (as after a crash, which recovery is made for)
    stop_signals: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGINT, signal.SIGQUIT)

    def __init__(
        self, folder: Path, *, owner: Path | None = None, durable: bool = True, fsync: bool | None = None
    ) -> None:
        super().__init__(folder, owner=owner)
        self.durable = durable
        self.fsync = durable if fsync is None else fsync
        self._programs: PostgresPrograms | None = None

    @property
    def url(self) -> str:
        return self.database_url(DATABASE)

    def database_url(self, database: str) -> str:
        """Returns the URL for clients of one database."""
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
            # Without fsync it is for tests, which connect thousands of times. The password is long and random.
            *([] if self.fsync else ["--no-sync", "--set", "scram_iterations=1"]),
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
            "fsync": "on" if self.fsync else "off",
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
