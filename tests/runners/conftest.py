"""Runners need a machine that can fence programs in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot import Runtime
from foliot.sandbox.process import ProcessSandbox


@pytest.fixture(autouse=True)
async def _fenced() -> None:
    sandbox = ProcessSandbox()
    if not (await sandbox.enforces()).available:
        pytest.skip("nothing can be fenced on this machine")
    await sandbox.close()


@pytest.fixture(params=["memory", "sqlite"])
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime("memory:" if request.param == "memory" else tmp_path / "foliot.db") as runtime:
        yield runtime
