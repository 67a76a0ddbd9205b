"""A seat is the store of one of two players: the real `PostgresDatabase`, whose every statement waits for its turn.

Batching, retries after a deadlock and the telling of errors are the product's own. Only the pool is another one: it
has one connection, and each statement on it stops at a gate until the play lets it through.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any, Final, ParamSpec, TypeVar, cast

from foliot.common.waits import Waits
from foliot.errors import Unavailable
from foliot.store.postgres.connections import SEND, Connections
from foliot.store.postgres.database import PostgresDatabase
from foliot.store.postgres.driver import PostgresConnection, Retryable
from foliot.store.postgres.sets import UNIQUE, queries_in
from foliot.store.queries import load, load_for_postgres
from foliot.store.transaction import Guarded, Tx
from simulators.pairs.tables import EVERYTHING, Footprint, footprint, together

P = ParamSpec("P")
T = TypeVar("T")
COMMIT = "COMMIT"
# A lease so long that no bound of a wait is met: who waits for its turn is not late.
UNHURRIED: Final = 3600.0
# Bodies that are one statement, named by their first argument.
_SINGLE = frozenset({"run", "many", "rows", "one", "value"})


@cache
def _names() -> dict[str, str]:
    return {load_for_postgres(name)[0]: name for name in load()}


class Gate:
    """The position of one player: at the gate before `step`, executing it, or in code of its own."""

    def __init__(self, label: str, connection: PostgresConnection, pid: int, bell: asyncio.Event) -> None:
        self.label = label
        self.connection = connection
        self.pid = pid
        self._bell = bell
        self._turn: asyncio.Future[None] | None = None
        self.step = ""
        self.executing = False
        self.blocked = False
        self.begun = False
        self.in_transaction = False
        self.deadlocks = 0
        self._began = 0
        self.queries: list[str] = []

    @property
    def waits(self) -> bool:
        """Whether it stands at the gate."""
        return self._turn is not None

    @property
    def between(self) -> bool:
        """Whether none of its transactions is under way."""
        return not (self.in_transaction and self.begun)

    def touches(self, *, whole: bool) -> Footprint:
        """Returns the tables that the next step may share with others.

        The end of a transaction shows all of it; and who is not interrupted within one begins all of it.
        """
        if whole:
            return EVERYTHING
        if self.step == COMMIT:
            return together(self.queries[self._began :])
        return footprint(self.step)

    def let_through(self) -> None:
        assert self._turn is not None, "only who waits can be let through"
        turn, self._turn = self._turn, None
        self.executing = True
        turn.set_result(None)

    async def perform(self, text: str, act: Callable[[], Any]) -> Any:
        """One statement, when its turn has come. A look at how tables are made is nobody's turn."""
        if text == UNIQUE:
            return await act()
        self.step = COMMIT if text == COMMIT else _names().get(text) or " ".join(queries_in(text)) or text
        self._turn = asyncio.get_running_loop().create_future()
        self._bell.set()
        await self._turn
        if not self.begun:
            self._began = len(self.queries)
        self.queries.append(self.step)
        self.begun = True
        try:
            return await act()
        except Retryable:
            self.deadlocks += 1
            raise
        finally:
            self.executing = self.blocked = False
            self._bell.set()


class GatedConnection:
    """One connection of the driver behind a gate. A BEGIN looks at nothing, so it waits for no turn."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._real = gate.connection

    async def fetch(self, query: str, /, *arguments: Any) -> Sequence[Mapping[str, Any]]:
        return await self._gate.perform(query, partial(self._real.fetch, query, *arguments))

    async def fetchval(self, query: str, /, *arguments: Any) -> Any:
        return await self._gate.perform(query, partial(self._real.fetchval, query, *arguments))

    async def execute(self, query: str, /, *arguments: Any) -> str:
        gate = self._gate
        if query == SEND:
            return ""  # notices are not stored, and come whenever they come
        if query.startswith("BEGIN"):
            gate.in_transaction, gate.begun = True, False
            return await self._real.execute(query)
        if query == "ROLLBACK":
            gate.in_transaction = False
            return await self._real.execute(query)
        if query.startswith("SET "):
            return await self._real.execute(query, *arguments)
        result = await gate.perform(query, partial(self._real.execute, query, *arguments))
        if query == COMMIT:
            gate.in_transaction = False
        return result

    async def executemany(self, query: str, arguments: Iterable[Sequence[Any]], /) -> None:
        await self._gate.perform(query, partial(self._real.executemany, query, arguments))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _OneConnection:
    """`Connections` of which there is one."""

    def __init__(self, gate: Gate) -> None:
        self._connection = GatedConnection(gate)
        self._free = asyncio.Lock()

    @asynccontextmanager
    async def hold(self, *, within: float | None = None) -> AsyncGenerator[PostgresConnection]:
        async with self._free:
            yield cast("PostgresConnection", self._connection)

    async def listener(self) -> PostgresConnection:
        raise Unavailable("nobody listens while pairs are played")

    async def close(self) -> None:
        """The connection is kept for the next play."""


class _Nobody:
    """Instead of the signal that something was committed: nobody waits for one."""

    def committed(self) -> None:
        """Told to nobody."""

    def wake(self) -> None:
        """Does nothing: nobody sleeps."""


class Seat(PostgresDatabase):
    """The `Database` of one player. `bodies` are the names of the transactions that it was given."""

    def __init__(self, url: str, gate: Gate) -> None:
        super().__init__(url, cast("Connections", _OneConnection(gate)), Waits(UNHURRIED))
        self._signal = cast("Any", _Nobody())
        self.gate = gate
        self.bodies: set[str] = set()

    def write(self, body: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        self.bodies.add(name_of(body, args))
        return super().write(body, *args, **kwargs)


def name_of(body: Callable[..., Any], args: Sequence[Any] = ()) -> str:
    """How a body is called in the catalogue: by its module and name; one that is one statement by that statement."""
    if isinstance(body, Guarded):
        body = body.body
    if isinstance(body, partial):
        return name_of(body.func, args)
    name: str = body.__qualname__
    if body.__module__ == "foliot.store.transaction" and name in _SINGLE and args:
        return f"{name}({args[0]})"
    return f"{body.__module__.removeprefix('foliot.')}.{name.replace('.<locals>', '')}"
