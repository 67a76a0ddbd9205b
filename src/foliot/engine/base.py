"""The protocols through which the engine reaches other rooms, small enough to be replaced in a simulator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Protocol, TypeAlias, runtime_checkable

from foliot.kernel.messages import Delta, ModelRequest, ModelResponse, Usage
from foliot.kernel.run.events import ApprovalRequested, Event, RunRetried, Terminal
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import State
from foliot.models.base import OnDelta
from foliot.store.journal.base import Signal, TransactionBody

Clock: TypeAlias = Callable[[], float]


class Models(Protocol):
    """Asks the model that a run is pinned to, with retries and fallbacks; see models/routing/router.py."""

    async def ask(self, spec: RunSpec, request: ModelRequest, *, on_delta: OnDelta | None = None) -> ModelResponse:
        """Raises a `ModelError`."""
        ...


@runtime_checkable
class KeepsPlaces(Protocol):
    """Models that a run may stand in line for."""

    async def leave(self, run_id: str) -> None:
        """Give up the place of a run that asks no more. Never raises."""
        ...


@runtime_checkable
class EstimatesQuestions(Protocol):
    """Models that know about what a question takes, before there is an answer."""

    async def question(self, spec: RunSpec, request: ModelRequest) -> Usage:
        """The tokens of a request, and their price if it is known. Never raises a `FoliotError`."""
        ...


class AskingRun(Protocol):
    """The run whose model is asked. What a gateway keeps for it beyond an answer is given up with the lease."""

    @property
    def state(self) -> State: ...

    def on_release(self, release: Callable[[], Awaitable[None]]) -> None:
        """Have this called, in any order, when whoever drives the run lets it go, for whatever reason."""
        ...


ASKING: ContextVar[AskingRun | None] = ContextVar("foliot_asking", default=None)
"""For gateways of Foliot's own, which answer differently for each run; None outside of any."""


class Watcher(Protocol):
    """Hears of a run as it goes on. Must return at once and must not raise."""

    def attends(self, run_id: str) -> bool:
        """Whether anybody would hear now what becomes durable of this run. If not, nobody is told."""
        ...

    def recorded(self, run_id: str, seq: int, at: float, event: Event) -> None:
        """The event is durable."""
        ...

    def streamed(self, run_id: str, step: int, delta: Delta) -> None:
        """A piece of an answer, while the model writes it. Never stored."""
        ...

    def output(self, run_id: str, call_id: str, text: str) -> None:
        """A piece of what a tool prints. Never stored."""
        ...

    def wanted(self, run_id: str) -> bool:
        """Whether somebody in another process reads along, so that pieces should come although nobody here asked."""
        ...


class RunProcesses(Protocol):
    """The processes that live between the calls of runs; implemented by tools/builtin/run_processes.py."""

    def taken(self, run_id: str, epoch: int) -> None:
        """A run is driven here under a new claim, of this epoch."""
        ...

    async def left(self, run_id: str, epoch: int | None, *, claim: int | None = None, worker: str = "") -> None:
        """A run is no longer driven here. It waits, and its row has this epoch; None: it has ended, or is lost to us.

        `claim` is the epoch under which `worker`, the name of this process, drove it.
        Returns when all that has to end has ended. Never raises.
        """
        ...


class Approvals(Protocol):
    """The stored approvals as the engine uses them; implemented by approval/service.py."""

    async def ask(self, state: State, asked: ApprovalRequested, classes: Iterable[str] = ()) -> None:
        """The question is durable in the journal: let people see it. Asking again changes nothing."""
        ...

    async def withdraw(self, namespace: str, name: str, why: str) -> None:
        """The call waits no longer."""
        ...

    async def answers(self, state: State, classes: Mapping[str, Iterable[str]] | None = None) -> list[Signal]:
        """Returns the decisions made meanwhile about the calls that the run has parked."""
        ...


class Settlement(Protocol):
    """The work that a run belongs to: consulted when the run is about to end, and told when it is let go."""

    def instead(self, state: State, terminal: Terminal) -> RunRetried | None:
        """Returns the retry in place of this end; None lets the run end."""
        ...

    def settle(self, state: State) -> TransactionBody | None:
        """Returns the statements about the task to run in the transaction that ends the run or lets it wait."""
        ...

    async def settled(self) -> None:
        """Notifies the next workers after the commit."""
        ...


class Silence:
    """Hears nothing."""

    def attends(self, run_id: str) -> bool:
        return False

    def recorded(self, run_id: str, seq: int, at: float, event: Event) -> None:
        pass

    def streamed(self, run_id: str, step: int, delta: Delta) -> None:
        pass

    def output(self, run_id: str, call_id: str, text: str) -> None:
        pass

    def wanted(self, run_id: str) -> bool:
        return False
