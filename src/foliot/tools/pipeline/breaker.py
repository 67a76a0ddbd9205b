"""Leaves a tool alone for a while after it failed many times in a row."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, Protocol

import msgspec

from foliot.tools.base import Invocation, ToolCircuitOpen, ToolDefinition, ToolError
from foliot.tools.pipeline.running import CallProgress, Handler

# Failures that say something about the tool's health. A refusal or wrong arguments are answers like any other.
UNHEALTHY: Final = frozenset({"network", "timeout", "external"})
FAILURES: Final = 5
SECONDS: Final = 30.0


class ToolCircuit(Protocol):
    """The health of one tool. A healthy one costs a call nothing but a look at `calm`."""

    @property
    def calm(self) -> bool:
        """Returns whether nothing is known against the tool, by recent knowledge."""
        ...

    async def enter(self) -> bool:
        """Whether this call is the one that tries a tool that was left alone. Raises `ToolCircuitOpen`."""
        ...

    async def failed(self) -> None:
        """Records a failure that speaks of the tool's health."""
        ...

    async def well(self) -> None:
        """Records that the tool answered."""
        ...

    def broken_off(self) -> None:
        """The call that tried it was stopped, and says nothing."""
        ...


def circuit_key(definition: ToolDefinition) -> str:
    """Returns the key of a circuit: the tool, and where its calls go. One that was repaired begins without failures."""
    name = f"{definition.namespace}/{definition.name}"
    if not definition.endpoint and not definition.options:
        return name
    where = (definition.type, definition.endpoint, definition.isolation, definition.options)
    text = msgspec.json.encode(where, enc_hook=lambda value: type(value).__name__, order="sorted")
    return f"{name}#{blake2b(text, digest_size=6).hexdigest()}"


class CircuitSource(Protocol):
    def of(self, definition: ToolDefinition, clock: Callable[[], float]) -> ToolCircuit:
        """The circuit of a tool; one and the same for all pipelines that share the source."""
        ...


class LocalCircuit:
    """`probing`: one call is under way to see whether the tool is well again."""

    __slots__ = ("_clock", "_most", "_name", "_seconds", "failures", "opened_at", "probing")

    def __init__(self, name: str, most: int, seconds: float, clock: Callable[[], float]) -> None:
        self._name = name
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self.failures = 0
        self.opened_at: float | None = None
        self.probing = False

    @property
    def calm(self) -> bool:
        return not self.failures

    async def enter(self) -> bool:
        if self.opened_at is None:
            return False
        left = self.opened_at + self._seconds - self._clock()
        if left > 0 or self.probing:
            raise circuit_open(self._name, self.failures, max(left, 1.0))
        self.probing = True
        return True

    async def failed(self) -> None:
        self.probing = False
        self.failures += 1
        if self.failures >= self._most:
            self.opened_at = self._clock()

    async def well(self) -> None:
        self.failures = 0
        self.opened_at = None
        self.probing = False

    def broken_off(self) -> None:
        self.probing = False


class Circuits:
    """The circuits of a process, by tool. `failures` in a row open one; `seconds` later a single call may try."""

    def __init__(self, *, failures: int = FAILURES, seconds: float = SECONDS) -> None:
        self.failures = failures
        self.seconds = seconds
        self._circuits: dict[str, LocalCircuit] = {}

    def of(self, definition: ToolDefinition, clock: Callable[[], float]) -> LocalCircuit:
        return self.named(circuit_key(definition), definition.name, clock)

    def named(self, key: str, name: str, clock: Callable[[], float]) -> LocalCircuit:
        """The circuit of whatever the key stands for."""
        circuit = self._circuits.get(key)
        if circuit is None:
            circuit = self._circuits[key] = LocalCircuit(name, self.failures, self.seconds, clock)
        return circuit


class Breaker:
    """Stands outside the attempt's time limit, so that a tool that hangs counts as one that fails."""

    def __init__(self, definition: ToolDefinition, circuits: CircuitSource, clock: Callable[[], float]) -> None:
        self._circuit = circuits.of(definition, clock)

    async def __call__(self, call: Invocation, running: CallProgress, next: Handler) -> Any:
        circuit = self._circuit
        probe = False if circuit.calm else await circuit.enter()
        try:
            value = await next(call, running)
        except ToolError as error:
            if error.kind in UNHEALTHY:
                await circuit.failed()
            elif probe or not circuit.calm:
                await circuit.well()
            raise
        except BaseException:
            if probe:
                circuit.broken_off()
            raise
        if probe or not circuit.calm:
            await circuit.well()
        return value


def circuit_open(name: str, failures: int, wait: float) -> ToolCircuitOpen:
    error = ToolCircuitOpen(
        f"the tool {name!r} failed {failures} times in a row and is left alone for {wait:.0f} s",
        retry_after_ms=round(wait * 1000),
    )
    error.retry_after = wait
    return error
