"""Every sandbox under the same suite."""

from __future__ import annotations

import pytest

from foliot.sandbox.process import ProcessSandbox
from tests.conformance.sandbox import SandboxConformance


@pytest.mark.fence
class TestProcessSandbox(SandboxConformance):
    @pytest.fixture
    async def sandbox(self):
        sandbox = ProcessSandbox()
        yield sandbox
        await sandbox.close()
