"""The connection to NATS that transport, live pieces and tools share: made in the background, kept up for ever.

A server that is away is no error of the link. The transport keeps its tickets for a while (`connected` answers None);
a tool call cannot wait for ever and asks with `reached`, which raises.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foliot.common.cancellation import stop_tasks
from foliot.common.waits import Waits
from foliot.errors import Unavailable, UsageError
from foliot.version import install_command

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

log = logging.getLogger(__name__)

_RECONNECT_AFTER: Final = 0.2
_RETRY_AFTER: Final = 1.0
# By a word in the kind of an error, most telling first: a refused handshake also gives broken pipes and resets.
_HINTS: Final = {
    "SSL": "see FOLIOT_NATS_CA, the certificates to trust, and FOLIOT_NATS_CERT, if the server wants one",
    "Authorization": "see FOLIOT_NATS_CREDENTIALS, or user and password in FOLIOT_NATS",
    "": "is the address in FOLIOT_NATS right, and is the server running?",
}


@dataclass(frozen=True, slots=True, repr=False)
class NatsOptions:
    """The address of NATS and the credentials.

    `url` may name several servers, with commas, and a user and password or a token.

    `credentials` is a file with a JWT and its seed, or with an nkey seed alone; `ca`, `cert` and `key` are for TLS.
    `waits` are the bounds of what is waited for, by the lease that this process works with.
    """

    url: str
    name: str = "foliot"
    credentials: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    waits: Waits = field(default_factory=Waits)

    def __repr__(self) -> str:
        return f"NatsOptions({self.place!r})"

    @property
    def servers(self) -> list[str]:
        # A comma in a password does not begin another address.
        return re.split(r"\s*,\s*(?=[a-z]+://)", self.url.strip())

    @property
    def place(self) -> str:
        """The addresses, without user, password and token."""
        return ", ".join(each.partition("://")[2].rpartition("@")[2] for each in self.servers)

    def check(self) -> None:
        """Raises `UsageError` when a file or a package that these options need is not there."""
        if find_spec("nats") is None:
            raise UsageError("NATS needs the package nats-py, which is not installed", hint=install_command("nats"))
        if self.credentials is not None and find_spec("nkeys") is None:
            raise UsageError("a NATS key needs the package nkeys, which is not installed", hint="pip install nkeys")
        for file in (self.credentials, self.ca, self.cert, self.key):
            if file is not None and not file.is_file():
                raise UsageError(f"the file {file}, which NATS needs, does not exist")
        if self.key is not None and self.cert is None:
            raise UsageError("a TLS key for NATS needs its certificate too", hint="set both")

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments for the client's `connect`. Raises `UsageError` when a TLS file cannot be used."""
        given: dict[str, Any] = {"servers": self.servers, "name": self.name}
        if self.credentials is not None:
            kind = "user_credentials" if "USER JWT" in _text(self.credentials) else "nkeys_seed"
            given[kind] = str(self.credentials)
        if self.ca is not None or self.cert is not None:
            try:
                context = ssl.create_default_context(cafile=self.ca)
                if self.cert is not None:
                    context.load_cert_chain(self.cert, self.key)
            except (OSError, ssl.SSLError) as error:
                raise UsageError(f"the TLS files for NATS cannot be used: {type(error).__name__}") from None
            given["tls"] = context
        return given


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the NATS credentials {file} cannot be read: {type(error).__name__}") from None


# A connection that was lost may not have been noticed everywhere: it is looked at again after so many seconds.
LOOK_AGAIN: Final = 0.02


class NatsLink:
    """One connection. `start` it on the event loop that uses it."""

    def __init__(self, options: NatsOptions) -> None:
        self.options = options
        self._client: Client | None = None
        self._up = asyncio.Event()
        self._gone = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._heard: list[Callable[[], None]] = []
        self._complaints: dict[str, None] = {}  # kinds of errors since the last connection, in order

    def start(self) -> None:
        """Begin to connect. Raises `UsageError` for options that can never work."""
        if self._keeper is None:
            self.options.check()
            self._keeper = asyncio.create_task(self._keep(self.options.arguments()))

    def on_connect(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` whenever the connection is made, for the first time and again; returns how to stop that."""
        self._heard.append(heard)
        return lambda: self._heard.remove(heard)

    @property
    def client(self) -> Client | None:
        """The client, when it is connected now."""
        return self._client if self._client is not None and self._client.is_connected else None

    async def connected(self, *, timeout: float) -> Client | None:
        """The client as soon as it is connected; None after `timeout` seconds."""
        if (client := self.client) is None and timeout > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    while (client := self.client) is None:
                        await self._up.wait()
                        if self.client is None:  # it is lost, and that has not been said yet
                            await asyncio.sleep(LOOK_AGAIN)
        return client

    async def reached(self, *, timeout: float | None = None) -> Client:
        """Return the client as soon as it has been connected once; it may be reconnecting at this moment.

        Starts the link. Raises `Unavailable` after `timeout` seconds, by default the bound of one try.
        """
        self.start()
        if self._client is not None and not self._client.is_closed:
            return self._client
        seconds = self.options.waits.attempt if timeout is None else timeout
        if (client := await self.connected(timeout=seconds)) is not None:
            return client
        word = next(word for word in _HINTS if not word or any(word in kind for kind in self._complaints))
        why = next((kind for kind in self._complaints if word in kind), "no answer")
        raise Unavailable(
            f"NATS at {self.options.place} cannot be reached within {seconds:g} s ({why})", hint=_HINTS[word]
        )

    async def jetstream(self, *, timeout: float = 5.0) -> JetStreamContext:
        """Return JetStream of the client; each of its requests ends after `timeout` seconds. Raises as `reached`."""
        client: Any = await self.reached()  # its options are not typed
        return client.jetstream(timeout=timeout)

    async def close(self) -> None:
        """Send what waits, for a second at most, and let go."""
        if self._keeper is not None:
            await stop_tasks(self._keeper, again=0.5)
            self._keeper = None
        client, self._client = self._client, None
        self._up.clear()
        if client is not None and not client.is_closed:
            from nats.errors import Error

            with suppress(Error, TimeoutError, OSError):
                if client.is_connected:
                    await client.flush(timeout=min(1.0, self.options.waits.goodbye / 2))  # pyright: ignore[reportArgumentType] - it only waits for it
            # TypeError: what asyncio of Python 3.12 raises for a socket that has just been closed.
            with suppress(Error, TimeoutError, OSError, TypeError):
                async with asyncio.timeout(min(2.0, self.options.waits.goodbye / 2)):
                    await client.close()

    async def _keep(self, arguments: dict[str, Any]) -> None:
        """Connect; again when the client has given up, which it does when it is refused."""
        from nats.aio.client import Client
        from nats.errors import Error

        while True:
            client = Client()
            self._gone.clear()
            try:
                await client.connect(
                    **arguments,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=_RECONNECT_AFTER,  # pyright: ignore[reportArgumentType] - it only sleeps for it
                    connect_timeout=2,
                    # One without an answer until the next ends the connection: a silent one looks like a quiet one.
                    ping_interval=self.options.waits.ping,  # pyright: ignore[reportArgumentType] - it only sleeps for it
                    max_outstanding_pings=1,
                    error_cb=self._trouble,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._connected,
                    closed_cb=self._closed,
                )
                self._client = client
                await self._connected()
                await self._gone.wait()
            except asyncio.CancelledError:
                if self._client is not client:
                    await client.close()
                raise
            except (Error, OSError, TimeoutError, ValueError) as error:
                await self._trouble(error)
            await asyncio.sleep(_RETRY_AFTER)

    async def _connected(self) -> None:
        if self._complaints:
            log.warning("NATS at %s is there", self.options.place)
        self._complaints.clear()
        self._up.set()
        for heard in self._heard:
            heard()

    async def _disconnected(self) -> None:
        self._up.clear()

    async def _closed(self) -> None:
        self._up.clear()
        self._gone.set()

    async def _trouble(self, error: Exception) -> None:
        """Log each kind of error once, without the words of the client: they may hold the address with its password."""
        kind = "AuthorizationError" if "Authorization Violation" in str(error) else type(error).__name__
        if self.client is None and kind not in self._complaints:
            self._complaints[kind] = None
            log.warning("NATS at %s cannot be reached (%s); trying on", self.options.place, kind)
