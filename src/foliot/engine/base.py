"""What the engine needs from around it, small enough to be replaced in a simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from foliot.kernel.events import Event
from foliot.kernel.messages import Delta, ModelRequest, ModelResponse
from foliot.kernel.spec import RunSpec
from foliot.models.base import OnDelta

Clock: TypeAlias = Callable[[], float]


class Models(Protocol):
    """Asks the model that a run is pinned to, with retries and fallbacks; see models/router.py."""

    async def ask(self, spec: RunSpec, request: ModelRequest, *, on_delta: OnDelta | None = None) -> ModelResponse:
        """Raises a `ModelError`."""
        ...


class Watcher(Protocol):
    """Hears of a run as it goes on. Must return at once and must not raise."""

    def recorded(self, run_id: str, seq: int, at: float, event: Event) -> None:
        """The event is durable."""
        ...

    def streamed(self, run_id: str, step: int, delta: Delta) -> None:
        """A piece of an answer, while the model writes it. Never stored."""
        ...

    def output(self, run_id: str, call_id: str, text: str) -> None:
        """A piece of what a tool prints. Never stored."""
        ...


class Silence:
    """Hears nothing."""

    def recorded(self, run_id: str, seq: int, at: float, event: Event) -> None:
        pass

    def streamed(self, run_id: str, step: int, delta: Delta) -> None:
        pass

    def output(self, run_id: str, call_id: str, text: str) -> None:
        pass
