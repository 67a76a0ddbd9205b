"""Bounds of every wait on a part that may never answer: a database, NATS, a provider, a shutdown.

A network can go silent without a word. A process that waits for such an answer holds its leases, its places in a pool
and its callers for as long as it waits. So every wait ends, and all bounds are parts of one number, the lease: whoever
holds a run must hear that the store is away, and try once more, before others may take the run over.

    answer    what a caller waits for: a read, a transaction with its tries     a quarter of the lease
    attempt   one try of it on one connection, and the making of a connection   four fifths of that
    place     a long read waits for others of its kind to end, before its try   the rest of the answer
    lock      the server waits for the lock of another transaction              half a try
    ping      a quiet connection is asked whether its other end lives           a ninth of the lease
    goodbye   what a part may still say while a process ends                    a sixth of the lease
    leave     the same of one that has nothing more to lose, before the others  half of that
    stop      what was told to stop comes to its end, before others go on       a sixth, and no more than 5 s
    child     a run that ends with its parent does so, inside that              four fifths of that
    inquiry   whoever slept past its lease asks whether it is still its own     a fifteenth, and no more than 2 s

A connection whose answer did not come in time is ended, never used again: the answer may still be on its way.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

LEASE_SECONDS: Final = 30.0
# Below this a busy machine would be taken for a silent one. Leases of less than six seconds are for tests.
SHORTEST: Final = 1.5


@dataclass(frozen=True, slots=True)
class Waits:
    """The bounds that belong to leases of this length, in seconds."""

    lease: float = LEASE_SECONDS

    @property
    def answer(self) -> float:
        return max(self.lease / 4, SHORTEST)

    @property
    def attempt(self) -> float:
        return self.answer * 0.8

    @property
    def place(self) -> float:
        return self.answer - self.attempt

    @property
    def lock(self) -> float:
        return self.attempt / 2

    @property
    def ping(self) -> float:
        return max(self.lease / 9, SHORTEST / 3)

    @property
    def goodbye(self) -> float:
        return max(self.lease / 6, SHORTEST * 2 / 3)

    @property
    def leave(self) -> float:
        return self.goodbye / 2

    @property
    def stop(self) -> float:
        return max(min(self.lease / 6, 5.0), SHORTEST)

    @property
    def child(self) -> float:
        return self.stop * 0.8

    @property
    def inquiry(self) -> float:
        return max(min(self.lease / 15, 2.0), SHORTEST / 3)


def keep_alive(connected: socket.socket, waits: Waits) -> None:
    """Let the system find out that the other end of a TCP connection is gone, also while nothing is asked."""
    if connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    seconds = max(1, int(waits.ping))
    options: dict[str, Any] = {
        "TCP_KEEPIDLE": seconds,
        "TCP_KEEPINTVL": seconds,
        "TCP_KEEPCNT": 2,
        "TCP_USER_TIMEOUT": int(waits.answer * 1000),
    }
    with suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):  # not on every system
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
