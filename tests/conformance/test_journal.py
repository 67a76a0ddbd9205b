"""Every journal under the same suite."""

from __future__ import annotations

import pytest

from foliot.store.memory import MemoryJournal
from tests.conformance.journal import JournalConformance


class TestMemory(JournalConformance):
    @pytest.fixture
    def journal(self) -> MemoryJournal:
        return MemoryJournal()
