"""The pieces of an answer on their way to whoever shows them, across retries and fallbacks."""

from __future__ import annotations

from foliot.kernel.messages import Delta, RestartDelta
from foliot.models.base import OnDelta


class Pieces:
    """Passes pieces on, and remembers whether any were shown, so that a new start can be announced."""

    __slots__ = ("_on_delta", "_shown")

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._shown = False

    def __call__(self, delta: Delta) -> None:
        self._shown = type(delta) is not RestartDelta
        self._on_delta(delta)

    def restart(self, reason: str) -> None:
        """Say that the answer begins anew, if any of it was shown."""
        if self._shown:
            self._shown = False
            self._on_delta(RestartDelta(reason))
