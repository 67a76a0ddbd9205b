"""The key file: the keys that secrets are sealed with, one a line, the active one first.

    # comments and empty lines are kept
    3f9a01c2 MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=

The id in front of a key is derived from the key, so it doubles as a check that the line was copied whole; a line with
only a key is read too, which is what `openssl rand -hex 32 > secret.key` makes.

Written by:  store/secrets/keyring.py, under a lock that other processes respect.
Invariant:   the file is always whole (replaced by rename, never edited in place), and readable only by its owner.
             No error of this module shows a key.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from foliot.errors import SecretError

KEY_BYTES = 32
MAX_FILE_BYTES = 64 * 1024
LOCK_SECONDS = 10.0
EXPECTED = "64 hex digits, or the base64 of 32 bytes"

Keys: TypeAlias = dict[str, bytes]
"""Keys by id; the first one is active."""

Stamp: TypeAlias = tuple[int, int, int, int]
"""What changes whenever the file is replaced or rewritten."""


def key_id(key: bytes) -> str:
    """A short public name of a key, from which the key cannot be found."""
    return hashlib.sha256(b"foliot secret key id\x00" + key).hexdigest()[:8]


def decode_key(text: str, *, where: str) -> bytes:
    """The 32 bytes that `text` spells. Raises `SecretError` that names `where`, never the text."""
    key = _from_hex(text) if len(text) == 2 * KEY_BYTES else _from_base64(text)
    if key is None or len(key) != KEY_BYTES:
        raise SecretError(
            f"{where} is not a key: expected {EXPECTED}, found {len(text)} characters that are neither",
            hint="make one with: openssl rand -hex 32",
        )
    return key


def parse_keys(text: str, *, where: str) -> Keys:
    """The keys of a key file's text, active first. Raises `SecretError` with the line that cannot be used."""
    keys: Keys = {}
    for number, line in enumerate(text.splitlines(), start=1):
        entry = _parse_line(line, where=f"{where}, line {number}")
        if entry is None:
            continue
        kid, key = entry
        if kid in keys:
            raise SecretError(f"{where}, line {number}: key {kid} is listed twice", hint="delete one of the two lines")
        keys[kid] = key
    if not keys:
        raise SecretError(
            f"{where} holds no key",
            hint="restore it from a backup; delete it only if nothing was sealed yet, and a new one is made",
        )
    return keys


def read_key_file(path: Path) -> tuple[Keys, Stamp]:
    """The keys in the file, and a stamp to notice later changes by.

    Raises `FileNotFoundError` when there is none, `SecretError` when others may read it or it is malformed.
    """
    text, stamp = _read_text(path)
    return parse_keys(text, where=f"key file {path}"), stamp


def stamp_of(path: Path) -> Stamp:
    """The stamp of the file as it is now. Raises `OSError` when it cannot be looked at."""
    return _stamp(path.stat())


def create_key_file(path: Path) -> None:
    """Make the file with one new key, unless another process was faster. Durable on return."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    with key_file_lock(path):
        if not path.exists():
            _replace(path, _line(*_new_key(())) + "\n")


def add_active_key(path: Path) -> str:
    """Put a new key in front of those in the file; its id. Durable on return; the other lines stay as they are."""
    with key_file_lock(path):
        text, _ = _read_text(path)
        kid, key = _new_key(parse_keys(text, where=f"key file {path}"))
        lines = text.splitlines()
        first = next(i for i, line in enumerate(lines) if _is_entry(line))
        _replace(path, "\n".join([*lines[:first], _line(kid, key), *lines[first:]]) + "\n")
    return kid


def remove_keys(path: Path, key_ids: frozenset[str]) -> None:
    """Take keys out of the file for good; ids that are not in it are ignored.

    Raises `SecretError`, and changes nothing, when one of them is the active key.
    """
    with key_file_lock(path):
        text, _ = _read_text(path)
        where = f"key file {path}"
        active = next(iter(parse_keys(text, where=where)))
        if active in key_ids:
            raise SecretError(f"key {active} is the active one and cannot be retired", hint="rotate the key first")
        kept = [
            line for line in text.splitlines() if (e := _parse_line(line, where=where)) is None or e[0] not in key_ids
        ]
        if len(kept) < len(text.splitlines()):
            _replace(path, "\n".join(kept) + "\n")


@contextmanager
def key_file_lock(path: Path) -> Generator[None]:
    """Hold the file for this process. The lock is a file of its own, because the key file is replaced by rename."""
    target = _resolved(path)
    lock = target.with_name(target.name + ".lock")
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        _acquire(fd, path)
        yield
    finally:
        os.close(fd)


def _acquire(fd: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        with suppress(BlockingIOError):
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.monotonic() > deadline:
            raise SecretError(f"key file {path} is being changed by another process", hint="try again", retryable=True)
        time.sleep(0.01)


def _read_text(path: Path) -> tuple[str, Stamp]:
    try:
        # O_NONBLOCK: a pipe put in the file's place must not make us wait for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SecretError(
            f"key file {path} cannot be read: {error.strerror}", hint="run as the user who owns the key file"
        ) from error
    try:
        status = os.fstat(fd)
        _check_private(path, status)
        data = os.read(fd, MAX_FILE_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_FILE_BYTES:
        raise SecretError(f"key file {path} is larger than {MAX_FILE_BYTES} bytes: it is not a key file")
    try:
        return data.decode("utf-8"), _stamp(status)
    except UnicodeDecodeError:
        # The original error carries the file's bytes: it must not travel along.
        raise SecretError(f"key file {path} is not text", hint=f"each line holds {EXPECTED}") from None


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SecretError(f"key file {path} is not a regular file")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise SecretError(
            f"key file {path} is open to other users (mode {mode:04o}), so it is not used", hint=f"chmod 600 {path}"
        )


def _replace(path: Path, text: str) -> None:
    """Write beside, then rename: a crash leaves either the old file or the new one."""
    target = _resolved(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(fd)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)
    except OSError as error:
        raise _unwritable(path, error) from error


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _unwritable(path: Path, error: OSError) -> SecretError:
    return SecretError(
        f"key file {path} cannot be written: {error.strerror}",
        hint="check that the folder exists and is yours, or name another place with FOLIOT_SECRET_KEY_FILE",
    )


def _resolved(path: Path) -> Path:
    # A link (as mounted secrets are) keeps pointing at the same file: the target is what gets replaced.
    return path.resolve()


def _new_key(taken: Keys | tuple[()]) -> tuple[str, bytes]:
    while True:
        key = secrets.token_bytes(KEY_BYTES)
        if (kid := key_id(key)) not in taken:
            return kid, key


def _line(kid: str, key: bytes) -> str:
    return f"{kid} {base64.b64encode(key).decode()}"


def _is_entry(line: str) -> bool:
    stripped = line.strip()
    return bool(stripped) and not stripped.startswith("#")


def _parse_line(line: str, *, where: str) -> tuple[str, bytes] | None:
    if not _is_entry(line):
        return None
    words = line.split()
    if len(words) > 2:
        raise SecretError(f"{where}: expected a key id and a key, found {len(words)} words")
    key = decode_key(words[-1], where=where)
    kid = key_id(key)
    if len(words) == 2 and words[0].lower() != kid:
        raise SecretError(
            f"{where}: the key does not belong to the id in front of it, so one of them was changed",
            hint="restore the line from a backup; a key without an id is read as well",
        )
    return kid, key


def _from_hex(text: str) -> bytes | None:
    try:
        return binascii.unhexlify(text)
    except ValueError:
        return None


def _from_base64(text: str) -> bytes | None:
    body = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
    except ValueError:
        return None


def _stamp(status: os.stat_result) -> Stamp:
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
