"""Closing of hooks: what they hold is let go of, whichever way their author wrote `close`."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from foliot import Hook, Runtime


class Plain(Hook):
    name = "plain"

    def __init__(self, closed: list[Any]) -> None:
        self.closed = closed

    def before_run(self, act: Any) -> None: ...

    def close(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.closed.append(threading.current_thread())


class Awaiting(Plain):
    name = "awaiting"

    async def close(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.closed.append(threading.current_thread())


@pytest.mark.parametrize("kind", [Plain, Awaiting])
async def test_close_is_called_once_and_nothing_is_complained_of(
    kind: type[Plain], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[Any] = []
    with caplog.at_level(logging.WARNING):
        async with Runtime(tmp_path / "foliot.db", hooks=[kind(closed)]):
            pass
    assert len(closed) == 1
    # A function that may wait does so beside the event loop.
    assert (closed[0] is threading.current_thread()) == (kind is Awaiting)
    assert "could not be closed" not in caplog.text
