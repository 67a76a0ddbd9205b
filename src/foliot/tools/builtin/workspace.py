"""One folder that file tools may touch, and nothing outside of it.

Paths come from models. Each is walked one component at a time from an open descriptor of the folder: `..` goes back
along the descriptors that were opened on the way, never to wherever the file system says a parent is, and a symbolic
link is read and walked like a path, so it leads nowhere that its own text could not. What is opened is what was
checked: nobody can exchange a folder for a link in between. `/workspace` is this folder, as commands in a fence see it;
any other absolute path, and a link to one, is refused.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from foliot.common.threads import on_thread
from foliot.errors import InvalidInput
from foliot.sandbox.base import WORKSPACE, SandboxPolicy, WorkspaceAccess
from foliot.tools.base import (
    Invocation,
    ToolArgumentsInvalid,
    ToolDenied,
    ToolError,
    ToolPolicyInvalid,
    ToolPrecondition,
)
from foliot.tools.builtin.results import ToolNothingThere
from foliot.tools.fences import FenceRequest, Fences, fence_of

MOST_LINKS: Final = 16
LONGEST_PATH: Final = 4096
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a pipe would wait for its other end; with this it does not, and is refused a moment later.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class OutsideWorkspace(ToolDenied):
    """A path that leads out of the workspace."""


class UnfitFile(ToolPrecondition):
    """The file is not as the call supposes: a folder, no text, another content."""


class FileSource(Protocol):
    """The files that file tools work on, found anew for each call."""

    async def reading(self, call: Invocation) -> Workspace:
        """The workspace of a call that only reads. Raises `ToolDenied`, `ToolPolicyInvalid`, what making it raises."""
        ...

    def writing(self, call: Invocation) -> AbstractAsyncContextManager[Workspace]:
        """The workspace of a call that writes; what it wrote is kept when it is over. Raises as `reading`."""
        ...


class RunFiles:
    """The folder of the run that calls: the one that its commands see, under the rules that hold for them."""

    def __init__(self, fences: Fences) -> None:
        self._fences = fences

    async def reading(self, call: Invocation) -> Workspace:
        return await self._opened(call, "read_only")

    @asynccontextmanager
    async def writing(self, call: Invocation) -> AsyncGenerator[Workspace]:
        workspace = await self._opened(call, "read_write")
        async with self._fences.working(SandboxPolicy(workspace=str(workspace.root)), fence_of(call)):
            yield workspace

    async def _opened(self, call: Invocation, access: WorkspaceAccess) -> Workspace:
        found = await self._fences.narrowed(FenceRequest(workspace=access), call.caller)
        folder, left = await self._fences.workspace(found.request.workspace, fence_of(call))
        if left != access and (folder is not None or found.request.workspace == "none"):
            what = "read the files of the workspace" if access == "read_only" else "change files of the workspace"
            why = f": {'; '.join(found.taken)}" if found.taken else ""
            raise ToolDenied(f"{call.tool}: this agent may not {what}{why}", layer="sandbox")
        if folder is None:
            raise ToolPolicyInvalid(
                f"{call.tool} works on the workspace, and there is none here", hint="set FOLIOT_WORKSPACE to a folder"
            )
        return await on_thread(Workspace, folder)


class Workspace:
    """`root` must exist. It may itself be reached through links: whoever chose it is trusted, what is in it is not."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Raises `InvalidInput` when there is no such folder."""
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise InvalidInput(f"the workspace {os.fspath(root)!r} is not a folder", hint="create it first")

    # A folder that is the same for every call, as `FileSource`.

    async def reading(self, call: Invocation) -> Workspace:
        return self

    @asynccontextmanager
    async def writing(self, call: Invocation) -> AsyncGenerator[Workspace]:
        yield self

    @contextmanager
    def open_file(self, path: str) -> Generator[int]:
        """A descriptor to read a regular file from. Raises `ToolNothingThere`, `OutsideWorkspace`, `UnfitFile`."""
        with self._parent(path) as (folder, name), _explained(path):
            if not name:
                raise UnfitFile(f"{path} is a folder")
            descriptor = os.open(name, _FILE, dir_fd=folder)
            try:
                mode = os.fstat(descriptor).st_mode
                if not stat.S_ISREG(mode):
                    what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
                    raise UnfitFile(f"{path} is {what}")
                yield descriptor
            finally:
                os.close(descriptor)

    @contextmanager
    def open_folder(self, path: str) -> Generator[int]:
        """A descriptor of a folder; `""` and `.` are the workspace itself. Raises like `open_file`."""
        with self._parent(path) as (folder, name), _explained(path):
            descriptor = os.open(name or ".", _FOLDER, dir_fd=folder)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def replace_file(self, path: str, data: bytes) -> None:
        """Put `data` there, with the folders on the way: all of it or nothing, whatever stops the process.

        Raises `OutsideWorkspace`; `UnfitFile` when something that is no regular file is there.
        """
        with self._parent(path, create=True) as (folder, name), _explained(path):
            if not name:
                raise UnfitFile(f"{path} is a folder")
            mode = _mode_of(folder, name, path)
            temporary = f".foliot-{secrets.token_hex(8)}"
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fchmod(file.fileno(), mode)
                    os.fsync(file.fileno())
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    @contextmanager
    def _parent(self, path: str, *, create: bool = False) -> Generator[tuple[int, str]]:
        """The open folder that a path ends in, and the last name; empty for the folder itself. Never a link."""
        with _explained(path):
            trail = [os.open(self.root, _FOLDER)]
        try:
            with _explained(path):
                name = _walk(trail, path, create=create)
            yield trail[-1], name
        finally:
            for descriptor in trail:
                os.close(descriptor)


def _walk(trail: list[int], path: str, *, create: bool) -> str:
    """Go along `path`; `trail` are the open folders from the root to where we are. The last name is not opened."""
    left = _parts(path, path)
    links = 0
    while left:
        part = left.pop(0)
        if part == "/":
            while len(trail) > 1:
                os.close(trail.pop())
            continue
        if part == "..":
            if len(trail) == 1:
                raise OutsideWorkspace(f"{path} leads out of the workspace", layer="workspace")
            os.close(trail.pop())
            continue
        target = _link_target(trail[-1], part)
        if target is not None:
            links += 1
            if links > MOST_LINKS:
                raise UnfitFile(f"{path} goes through too many symbolic links")
            left = [*_parts(target, path), *left]
        elif not left:
            return part
        else:
            trail.append(_enter(trail[-1], part, create=create))
    return ""


def below(path: str) -> str:
    """A path from the workspace, however it was written: commands in a fence name files by `/workspace`."""
    return path.removeprefix(WORKSPACE) if f"{path}/".startswith(f"{WORKSPACE}/") else path


def _parts(text: str, path: str) -> list[str]:
    """The components of a path or of a link's target; `/` first when it begins at the workspace.

    `path` is what errors name.
    """
    if "\0" in text or len(text) > LONGEST_PATH:
        raise ToolArgumentsInvalid("path holds a NUL or is too long", field="path")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if not text.startswith("/"):
        return parts
    if parts[:1] != [WORKSPACE.strip("/")]:
        raise OutsideWorkspace(
            f"{path} is or leads to an absolute path; paths are relative to the workspace", layer="workspace"
        )
    return ["/", *parts[1:]]


def _link_target(folder: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None  # no link, or nothing there
        raise


def _enter(folder: int, name: str, *, create: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=folder)
        return os.open(name, _FOLDER, dir_fd=folder)


def _mode_of(folder: int, name: str, path: str) -> int:
    """Returns the permissions of the existing file, to be kept; 0644 when there is none."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return 0o644
    if not stat.S_ISREG(found.st_mode):
        raise UnfitFile(f"{path} is there and is not a regular file")
    return stat.S_IMODE(found.st_mode) & 0o777


@contextmanager
def _explained(path: str) -> Generator[None]:
    """Translates errors of the file system into tool errors, without the machine's own paths."""
    try:
        yield
    except FileNotFoundError:
        raise ToolNothingThere(f"{path} does not exist", path=path) from None
    except (NotADirectoryError, IsADirectoryError):
        raise UnfitFile(f"{path} is or goes through a file where a folder should be, or the other way round") from None
    except UnicodeError:
        raise ToolArgumentsInvalid("path cannot be written in the encoding of this file system", field="path") from None
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link appeared after it was looked for
            raise OutsideWorkspace(f"{path} became a symbolic link meanwhile", layer="workspace") from None
        kind = UnfitFile if error.errno in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG) else ToolError
        raise kind(f"{path} cannot be used: {error.strerror or error}", retryable=False) from None
