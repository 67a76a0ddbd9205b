"""How a tool server is: its state with reasons, and how much it does, measured over the last minute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

State: TypeAlias = Literal["starting", "ready", "degraded", "draining", "stopped", "failed"]
WINDOW: Final = 60.0
_MOST_KEPT: Final = 10_000


class Health:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._state: State = "stopped"
        self._reasons: dict[str, str] = {}
        self._started_at: float | None = None
        self._last_activity: float | None = None
        self._recent: deque[tuple[float, int]] = deque(maxlen=_MOST_KEPT)
        self.processed = 0
        self.errors = 0

    @property
    def state(self) -> State:
        return "degraded" if self._state == "ready" and self._reasons else self._state

    def become(self, state: State) -> None:
        if state == "ready":
            self._started_at = self._clock()
        self._state = state

    def trouble(self, what: str, reason: str) -> None:
        """Something does not work as it should, until `well` is said of it."""
        self._reasons[what] = reason

    def well(self, what: str) -> None:
        self._reasons.pop(what, None)

    def took(self, size: int) -> None:
        """A message came in."""
        self._last_activity = self._clock()
        self._recent.append((self._last_activity, size))

    def as_dict(self) -> dict[str, Any]:
        now = self._clock()
        recent = [size for at, size in self._recent if now - at <= WINDOW]
        handled = self.processed + self.errors
        return {
            "component": "foliot-tools",
            "state": self.state,
            "healthy": self.state == "ready",
            "reasons": sorted(self._reasons.values()),
            "last_check": now,
            "uptime": 0.0 if self._started_at is None else now - self._started_at,
            "error_count": self.errors,
            "error_rate": self.errors / handled if handled else 0.0,
            "messages_per_second": len(recent) / WINDOW,
            "bytes_per_second": sum(recent) / WINDOW,
            "last_activity": self._last_activity,
        }
