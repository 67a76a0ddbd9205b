"""Folders whose modules may be function tools, and nothing else.

A tool may be a module that lies where one works. On `sys.path` such a folder would also serve everybody who tries to
import what is not installed: an `aiodns.py` there would run inside an HTTP client. So it is asked last of all, and only
for Foliot's own loaders and for modules that lie in it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Final

# Modules that import what a resource or a setting names.
_LOADERS: Final = frozenset({"foliot.engine.functions", "foliot.engine.records.sinks.open", "foliot.models.registry"})


class _Folders(MetaPathFinder):
    def __init__(self) -> None:
        self.paths: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or not self.paths or not self._serves(_importer()):
            return None  # parts of a package are found by the package
        return PathFinder.find_spec(fullname, self.paths, target)

    def _serves(self, frame: FrameType | None) -> bool:
        if frame is None:
            return False
        name = str(frame.f_globals.get("__name__", ""))
        if name in _LOADERS:
            return True
        file = os.path.abspath(frame.f_code.co_filename)
        if name.partition(".")[0] == "foliot" or "site-packages" in file.split(os.sep):
            return False  # a folder may hold an environment, or the source of Foliot itself
        holding = max((each for each in (*sys.path, *self.paths) if _is_in(file, each)), key=len, default="")
        return holding in self.paths


def _is_in(file: str, folder: str) -> bool:
    return bool(folder) and file.startswith(folder.rstrip(os.sep) + os.sep)


def _importer() -> FrameType | None:
    """The frame of whoever imports, past this module and the machinery."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and _is_machinery(str(frame.f_globals.get("__name__", ""))):
        frame = frame.f_back
    return frame


def _is_machinery(name: str) -> bool:
    return name == __name__ or name.partition(".")[0] in (
        "importlib",
        "_frozen_importlib",
        "_frozen_importlib_external",
    )


_folders: Final = _Folders()


def tools_from(folders: Sequence[str]) -> None:
    """Let function tools be modules of these folders, behind all that is installed."""
    if _folders not in sys.meta_path:
        sys.meta_path.append(_folders)
    _folders.paths += [path for each in folders if (path := os.path.abspath(each)) not in _folders.paths]
