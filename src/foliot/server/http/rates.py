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
from ipaddress import IPv6Address
from typing import Any, TypeAlias

from foliot.common.buckets import MOST_REMEMBERED, NamedBuckets, Rate
from foliot.server.auth.identity import Caller
from foliot.server.errors import TooMany
from foliot.server.http.heads import HEALTH

_Scope: TypeAlias = MutableMapping[str, Any]


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
        self._requests = NamedBuckets(Rate.per_second(rate, burst))
        self._failures = NamedBuckets(Rate.per_second(failures / 60.0, int(failures)))
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
