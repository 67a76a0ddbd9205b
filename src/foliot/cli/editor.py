"""The user's own editor, on a file that only the user can read."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from foliot.errors import FoliotError, UsageError


def editor_command(environ: Mapping[str, str]) -> list[str]:
    """$VISUAL, else $EDITOR, else vi. Raises `UsageError` when the variable cannot be split into words."""
    for variable in ("VISUAL", "EDITOR"):
        if environ.get(variable, "").strip():
            try:
                return shlex.split(environ[variable])
            except ValueError as error:
                raise UsageError(f"${variable} cannot be used as a command: {error}.") from None
    return ["vi"]


def new_draft(name: str) -> Path:
    """An empty file for a draft, readable by its owner alone; it stays until somebody removes it."""
    descriptor, path = tempfile.mkstemp(prefix=f"foliot-{name}-", suffix=".yaml")
    os.close(descriptor)
    return Path(path)


def edit_file(path: Path, environ: Mapping[str, str]) -> None:
    """Open the file and return when the editor was closed. Raises `FoliotError` when there was none to open."""
    command = editor_command(environ)
    try:
        done = subprocess.run([*command, str(path)], check=False)
    except FileNotFoundError:
        raise UsageError(
            f"The editor {command[0]!r} was not found.", hint="Set EDITOR to one that is installed, e.g. `EDITOR=nano`."
        ) from None
    except OSError as error:
        raise UsageError(f"The editor {command[0]!r} could not be started: {error.strerror}.") from None
    if done.returncode != 0:
        raise FoliotError(f"The editor ended with code {done.returncode}; nothing was changed.")
