"""How many requests one caller may make, and how often somebody may be wrong about who they are.

A caller is known by the name that the guard found out, or else by the address of the other end of the connection:
never by a header, since those say what their sender likes. An address of IPv6 counts as its /64, which is what one
household or machine is given. Everything is in the memory of one process and bounded; several servers count apart.

Whoever knows the local key is not counted: they could stop the server as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping
from functools import lru_cache
from heapq import nsmallest
from ipaddress import IPv6Address
from typing import Any, Final, TypeAlias

from foliot.server.auth.identity import Caller
from foliot.server.errors import TooMany
from foliot.server.http.heads import HEALTH

MOST_REMEMBERED: Final = 16_384
_Scope: TypeAlias = MutableMapping[str, Any]


class Buckets:
    """One bucket of `burst` tokens per name, filled again with `rate` tokens a second. A rate of 0 has no limit.

    A bucket is one number: the time at which it will be full again. So a full one need not be remembered.
    """

    def __init__(self, rate: float, burst: int, *, most: int = MOST_REMEMBERED) -> None:
        self._each = 1.0 / rate if rate > 0 else 0.0
        self._room = self._each * max(1, burst)
        self._most = most
        self._full_at: dict[str, float] = {}

    def take(self, name: str, now: float) -> float:
        """Take one token: 0.0, or the seconds to wait until there is one, and then nothing was taken."""
        if wait := self.wait(name, now):
            return wait
        full_at = max(self._full_at.get(name, now), now)
        if len(self._full_at) >= self._most and name not in self._full_at:
            self._forget(now)
        self._full_at[name] = full_at + self._each
        return 0.0

    def wait(self, name: str, now: float) -> float:
        """Returns the wait that `take` would demand, taking nothing."""
        wait = self._full_at.get(name, now) + self._each - self._room - now
        return wait if wait > 1e-9 else 0.0  # what is left over by rounding is no debt

    def __len__(self) -> int:
        return len(self._full_at)

    def _forget(self, now: float) -> None:
        """Make room: full buckets tell nothing; when all are in use, those go that have the least to say."""
        self._full_at = {name: full_at for name, full_at in self._full_at.items() if full_at > now}
        if len(self._full_at) >= self._most:
            for name in nsmallest(self._most // 4 or 1, self._full_at, key=self._full_at.__getitem__):
                del self._full_at[name]


class Rates:
    """The limits of one server: `rate` requests a second per caller, `failures` wrong credentials a minute per peer."""

    def __init__(
        self,
        rate: float = 0,
        burst: int = 0,
        failures: float = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """0 is no limit."""
        self._requests = Buckets(rate, burst)
        self._failures = Buckets(failures / 60.0, int(failures))
        self._limited = rate > 0
        self._careful = failures > 0
        self._clock = clock
        # Keyed hashes of credentials that were good: who is known already does not suffer from what neighbours do.
        self._good: dict[int, None] = {}

    def count_caller(self, caller: Caller) -> None:
        """Counts a request of a known caller. Raises `TooMany`, which says when to come back."""
        if caller.known_by not in ("local", "anonymous"):
            self.count(caller.principal)

    def count(self, name: str) -> None:
        """One request under a name. Raises `TooMany`."""
        if self._limited and (wait := self._requests.take(name, self._clock())):
            raise _too_many("too many requests", wait)

    def count_peer(self, scope: _Scope) -> None:
        """One request of somebody who has no name here. Raises `TooMany`."""
        if self._limited and scope["path"] not in HEALTH:
            self.count(peer_of(scope))

    def check_peer(self, scope: _Scope) -> None:
        """Checks the sender before its credential.

        Raises `TooMany` when too many from there were wrong, and this one is new.

        Otherwise whoever guesses would see from the answer when they are right.
        """
        if not self._careful or not len(self._failures):
            return
        if wait := self._failures.wait(peer_of(scope), self._clock()):
            given = _credential(scope)
            if given and given not in self._good:
                raise _too_many("too many wrong credentials came from your address", wait)

    def failed(self, scope: _Scope) -> None:
        """A credential was wrong. To have sent none is no guess."""
        if self._careful and _credential(scope):
            self._failures.take(peer_of(scope), self._clock())

    def succeeded(self, scope: _Scope) -> None:
        """The credential of this request is good."""
        if self._careful and (given := _credential(scope)) not in self._good:
            if len(self._good) >= MOST_REMEMBERED:
                self._good.pop(next(iter(self._good)))
            self._good[given] = None


def peer_of(scope: _Scope) -> str:
    """The other end of the connection."""
    client = scope.get("client")
    host = str(client[0]) if client else ""
    return _household(host) if ":" in host else host


@lru_cache(MOST_REMEMBERED)
def _household(host: str) -> str:
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))


def _credential(scope: _Scope) -> int:
    """A keyed hash of the tokens and sessions that a request carries, 0 for none.

    All of them together, so that nobody hides a guess behind a good one. Cookies of others on the host are none.
    """
    found = 0
    for name, value in scope["headers"]:
        if name == b"authorization" or (name == b"cookie" and b"foliot" in value):
            found = hash((found, value))
    return found


def _too_many(what: str, wait: float) -> TooMany:
    seconds = max(1, int(wait) + 1)
    return TooMany(what, hint=f"come back in {seconds} seconds", retry_after=seconds)
