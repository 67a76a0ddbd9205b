"""Migrations of versions that will never be: they follow ours, in a folder of the test."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest

from foliot.store import schema

OURS = schema.FOLDER
NEWEST = len(schema.migrations("sqlite"))
"""The schema that this Foliot knows."""


def write_migrations(folder: Path, *scripts: str) -> Path:
    """Returns a folder with our migrations, and these behind them."""
    shutil.copytree(OURS, folder)
    for number, script in enumerate(scripts, NEWEST + 1):
        (folder / f"{number:04}_made_up_{number}.sql").write_text(script)
    return folder


def go_by(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """From here on the Foliot of this process has these migrations."""
    monkeypatch.setattr(schema, "FOLDER", folder)
    monkeypatch.setattr(schema, "migrations", cache(schema.migrations.__wrapped__))
