"""Files of a session by their paths inside, without starting a program there.

The kernel itself keeps to the folder (`openat2` with RESOLVE_BENEATH): a link that leads out of it, a `..`, a folder
that is exchanged for a link in that very moment, all end in a refusal. A write replaces the file, so that a hard link
to another is not written through.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from posixpath import normpath
from typing import Final

from foliot.sandbox.base import WORKSPACE, SandboxPathRefused, SandboxPolicy

_OPENAT2: Final = 437
_NO_MAGIC_LINKS: Final = 0x02
_BENEATH: Final = 0x08
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Opening a pipe would wait for its other end.
_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc: Final = ctypes.CDLL(None, use_errno=True)


def read(policy: SandboxPolicy, path: str, limit: int) -> bytes:
    """Raises `SandboxPathRefused`."""
    root, rest, _ = _place(policy, path)
    with _explained(path), _opened(root) as folder:
        descriptor = open_beneath(folder, rest, _FILE)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                what = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
                raise SandboxPathRefused(f"{path} is {what}")
            data = file.read(limit + 1)
            if len(data) > limit:
                raise SandboxPathRefused(f"{path} has more than the {limit} bytes that may be read")
            return data


def write(policy: SandboxPolicy, path: str, data: bytes, owner: int | None = None) -> None:
    """Write a file, with the folders on the way; as the property of `owner` when one is given, who is not this user.

    Raises `SandboxPathRefused`.
    """
    root, rest, writable = _place(policy, path)
    if not writable:
        raise SandboxPathRefused(f"{path} is read-only", hint="only a workspace with read_write access can be written")
    *folders, name = rest.split("/")
    if name in ("", "."):
        raise SandboxPathRefused(f"{path} is a folder")
    with _explained(path), _opened(root) as folder:
        parent = _made(folder, folders, owner)
        try:
            with suppress(FileNotFoundError):
                if not stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                    raise SandboxPathRefused(f"{path} exists and is not a regular file")
            _replace(parent, name, data, owner)
        finally:
            os.close(parent)


def _place(policy: SandboxPolicy, path: str) -> tuple[str, str, bool]:
    """The folder of the host that a path inside lies in, the path below it, and whether it may be written."""
    if "\0" in path or len(path) > 4096:
        raise SandboxPathRefused("the path holds a NUL or is too long")
    inside = normpath(path if path.startswith("/") else f"{policy.cwd or WORKSPACE}/{path}")
    places = [(mount.target.rstrip("/"), mount.source, mount.writable) for mount in policy.mounts]
    if policy.shows_workspace and policy.workspace is not None:
        places.append((WORKSPACE, policy.workspace, policy.workspace_access == "read_write"))
    for target, source, writable in sorted(places, key=lambda each: -len(each[0])):
        if inside == target or inside.startswith(f"{target}/"):
            return source, inside[len(target) :].lstrip("/") or ".", writable
    raise SandboxPathRefused(
        f"{path} is outside the workspace and the mounts", hint=f"paths in {WORKSPACE} can be read and written"
    )


@contextmanager
def _opened(root: str) -> Generator[int]:
    descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_beneath(folder: int, path: str, flags: int) -> int:
    """Open what a path below an open folder leads to, and nothing outside of it. Raises `OSError`."""
    how = _How(flags, 0, _BENEATH | _NO_MAGIC_LINKS)
    made = _libc.syscall(_OPENAT2, folder, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
    if made < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return made


def _made(folder: int, names: list[str], owner: int | None) -> int:
    """An open folder below another, with the folders on the way made."""
    for count in range(1, len(names) + 1):
        path = "/".join(names[:count])
        try:
            os.close(open_beneath(folder, path, _FOLDER))
        except FileNotFoundError:
            parent = open_beneath(folder, "/".join(names[: count - 1]) or ".", _FOLDER)
            try:
                with suppress(FileExistsError):
                    os.mkdir(names[count - 1], 0o755, dir_fd=parent)
                    if owner is not None:
                        os.chown(names[count - 1], owner, owner, dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(parent)
    return open_beneath(folder, "/".join(names) or ".", _FOLDER)


def _replace(parent: int, name: str, data: bytes, owner: int | None) -> None:
    temporary = f".foliot-{secrets.token_hex(8)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if owner is not None:
                os.fchown(descriptor, owner, owner)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise


@contextmanager
def _explained(path: str) -> Generator[None]:
    """Translates errors of the file system, without the paths of the host."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise SandboxPathRefused(f"{path} leads out of the sandbox") from None
        if error.errno == errno.ENOENT:
            raise SandboxPathRefused(f"{path} does not exist") from None
        if error.errno == errno.ENOSYS:
            raise SandboxPathRefused(f"{path} cannot be opened safely: this needs Linux 5.6 or newer") from None
        raise SandboxPathRefused(f"{path} cannot be used: {error.strerror}") from None
