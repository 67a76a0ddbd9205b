"""Every sandbox under the same suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from foliot.sandbox.process import ProcessSandbox
from tests.conformance.sandbox import SandboxConformance
from tests.sandbox.containers.engines import REAL, folders_for_all, sandbox_of, usable


@pytest.mark.fence
class TestProcessSandbox(SandboxConformance):
    @pytest.fixture
    async def sandbox(self):
        sandbox = ProcessSandbox()
        yield sandbox
        await sandbox.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("engine", [pytest.param(each[:2], id=each[2]) for each in REAL])
class TestContainerSandbox(SandboxConformance):
    """Only on engines that are really here; what they answered is replayed elsewhere (tests/sandbox/containers)."""

    @pytest.fixture
    def here(self, engine: tuple[str, str]):
        runtime, why = usable(*engine)
        if runtime == "-":
            pytest.skip(f"not run on a real engine: {why}")
        with folders_for_all():
            yield

    @pytest.fixture
    async def sandbox(self, here: None, engine: tuple[str, str]):
        sandbox = sandbox_of(*engine)
        yield sandbox
        await sandbox.close()

    @pytest.fixture
    def workspace(self, here: None, tmp_path: Path) -> Path:
        folder = tmp_path / "workspace"
        folder.mkdir()
        return folder
