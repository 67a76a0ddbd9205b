"""The context of a route: the parts of this server, and the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from weakref import WeakValueDictionary

from starlette.requests import Request

from foliot.common.waits import Waits
from foliot.engine.definition.missing import Brings
from foliot.engine.telemetry.metrics import Metrics
from foliot.runtime.background import BackgroundRuns
from foliot.runtime.local.resources import LocalResources
from foliot.runtime.runtime import Runtime
from foliot.server.auth.identity import Caller
from foliot.server.cursors import SealedCursors
from foliot.server.http.rates import Rates
from foliot.server.list_reads import ListReads
from foliot.server.streams.streams import Streams
from foliot.server.tasks.forms import TaskForms
from foliot.settings.settings import Settings
from foliot.store.base import Database, Key, ResourceStore

if TYPE_CHECKING:
    from foliot.channels.keeper import ChannelKeeper
    from foliot.work.triggers.deliveries import Webhooks

# Where the guard leaves in the scope whom it let in, and the role that a route must ask for which knows the namespace
# only later.
CALLER: Final = "foliot.caller"
ROLE: Final = "foliot.role"


class ServedResources(LocalResources):
    """The verbs on resources as routes need them: on the store that a caller sees, with what is stored beside."""

    @classmethod
    def of(cls, local: LocalResources, store: ResourceStore | None = None) -> ServedResources:
        """The verbs of a runtime, on another view of its store."""
        return cls(
            store or local._store,
            budgets_changed=local._budgets_changed,
            models_changed=local._models_changed,
            work=local._work,
            brings=local._brings,
        )

    def on(self, store: ResourceStore) -> ServedResources:
        """The same verbs, on another view of the store."""
        return self.of(self, store)

    @property
    def brings(self) -> Brings | None:
        return self._brings

    accept_for = LocalResources._accept_for
    apply_for = LocalResources._apply_for
    check_unopposed = LocalResources._check_unopposed
    delete_with = LocalResources._delete_with
    written = LocalResources._written


class Authenticator(Protocol):
    async def identify(self, scope: MutableMapping[str, Any]) -> Caller:
        """Identifies the sender of the request of this ASGI scope. Raises `Unauthenticated`."""
        ...

    async def describe(self) -> str:
        """How callers are known here, in one line for people."""
        ...


@dataclass(slots=True)
class Services:
    """The parts of one server. `closing` is set when it stops: streams then come to their end."""

    runtime: Runtime
    settings: Settings
    auth: Authenticator
    client: ServedResources
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    webhooks: Webhooks | None = None
    _channels: ChannelKeeper | None = None
    metrics: Metrics | None = None
    rates: Rates = field(default_factory=Rates)
    forms: TaskForms = field(default_factory=TaskForms)
    streams: Streams = field(init=False)
    list_reads: ListReads = field(init=False)
    cursors: SealedCursors = field(init=False)
    _turns: WeakValueDictionary[Key, asyncio.Lock] = field(default_factory=WeakValueDictionary[Key, asyncio.Lock])

    @property
    def channels(self) -> ChannelKeeper:
        """The channels as this server keeps them."""
        if self._channels is None:
            from foliot.channels.keeper import ChannelKeeper

            self._channels = ChannelKeeper(self.runtime.inside)
        return self._channels

    def __post_init__(self) -> None:
        self.list_reads = ListReads(Waits(self.settings.lease).answer)
        self.cursors = SealedCursors(self.database)
        self.streams = Streams(self.database, self.closing, self.auth, most=self.settings.max_streams)

    def turns(self, key: Key) -> asyncio.Lock:
        """The lock under which those of this process take turns who write the same resource at once."""
        return self._turns.setdefault(key, asyncio.Lock())

    @property
    def drives(self) -> BackgroundRuns:
        return self.runtime.inside.background

    @property
    def resources(self) -> ResourceStore:
        return self.runtime.inside.resources

    @property
    def database(self) -> Database:
        return self.runtime.inside.tasking.database


def services_of(request: Request) -> Services:
    return cast("Services", request.app.state.services)


def caller_of(request: Request) -> Caller:
    """Whom the guard let in. Routes that are public have none."""
    return request.scope[CALLER]


# Arguments of handlers that are known by their type.
PARTS: Final[Mapping[type, Callable[[Request], Any]]] = {
    Request: lambda request: request,
    Services: services_of,
    Caller: caller_of,
}
