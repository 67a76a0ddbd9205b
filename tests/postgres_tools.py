"""PostgreSQL's own tools, of the version that the tests' server has."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from foliot.dev.postgres import find_postgres


@cache
def _folder() -> Path:
    # For this user: clients of a server may run as anybody. Nothing is copied then.
    return find_postgres(None, copy_to=Path("/nonexistent")).bin


def run_tool(name: str, *words: str) -> str:
    """One command, such as `pg_dump`; what it printed."""
    done = subprocess.run([str(_folder() / name), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{name}: {done.stderr}"
    return done.stdout
