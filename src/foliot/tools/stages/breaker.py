"""Leaves a tool alone for a while after it failed many times in a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from foliot.tools.base import Invocation, ToolCircuitOpen, ToolDefinition, ToolError
from foliot.tools.running import Handler, Running

# Failures that say something about the tool's health. A refusal or wrong arguments are answers like any other.
UNHEALTHY: Final = frozenset({"network", "timeout", "external"})


@dataclass(slots=True)
class Circuit:
    """The health of one tool. `probing`: one call is under way to see whether it is well again."""

    failures: int = 0
    opened_at: float | None = None
    probing: bool = False


class Circuits:
    """The circuits of a process, by tool. `failures` in a row open one; `seconds` later a single call may try."""

    def __init__(self, *, failures: int = 5, seconds: float = 30.0) -> None:
        self.failures = failures
        self.seconds = seconds
        self._circuits: dict[tuple[str, str], Circuit] = {}

    def of(self, definition: ToolDefinition) -> Circuit:
        return self._circuits.setdefault((definition.namespace, definition.name), Circuit())


class Breaker:
    """Stands outside the attempt's time limit, so that a tool that hangs counts as one that fails."""

    def __init__(self, definition: ToolDefinition, circuits: Circuits, clock: Callable[[], float]) -> None:
        self._name = definition.name
        self._circuit = circuits.of(definition)
        self._circuits = circuits
        self._clock = clock

    async def __call__(self, call: Invocation, running: Running, next: Handler) -> Any:
        circuit = self._circuit
        probe = circuit.opened_at is not None
        if probe:
            self._enter_open(circuit)
        try:
            value = await next(call, running)
        except ToolError as error:
            if error.kind in UNHEALTHY:
                self._failed(circuit)
            else:
                self._well(circuit)
            raise
        finally:
            if probe:
                circuit.probing = False
        if circuit.failures:
            self._well(circuit)
        return value

    def _enter_open(self, circuit: Circuit) -> None:
        """Half-open: the first call after the wait may try. Raises `ToolCircuitOpen` for all others."""
        assert circuit.opened_at is not None
        left = circuit.opened_at + self._circuits.seconds - self._clock()
        if left > 0 or circuit.probing:
            wait = max(left, 1.0)
            error = ToolCircuitOpen(
                f"the tool {self._name!r} failed {circuit.failures} times in a row and is left alone for {wait:.0f} s",
                retry_after_ms=round(wait * 1000),
            )
            error.retry_after = wait
            raise error
        circuit.probing = True

    def _failed(self, circuit: Circuit) -> None:
        circuit.failures += 1
        if circuit.failures >= self._circuits.failures:
            circuit.opened_at = self._clock()

    def _well(self, circuit: Circuit) -> None:
        circuit.failures = 0
        circuit.opened_at = None
