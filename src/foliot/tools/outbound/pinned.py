"""An aiohttp session that connects only to addresses which the guard has just checked.

The target of the request under way is carried in a context variable. The session's resolver asks nobody: it answers
with the addresses of that target. And each socket is made only for one of them, which also covers hosts that are
written as addresses, for which aiohttp asks no resolver.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from contextvars import ContextVar
from functools import partial
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from foliot.common.waits import Waits, keep_alive
from foliot.tools.outbound.guard import OutboundTarget
from foliot.version import __version__

CHECKED: ContextVar[OutboundTarget | None] = ContextVar("checked_target", default=None)


class PinnedResolver(AbstractResolver):
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        target = CHECKED.get()
        if target is None or target.origin[1] != host.lower().rstrip("."):
            raise OSError(errno.EACCES, "a host that was not checked")
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in target.addresses
        ]

    async def close(self) -> None:
        pass


def pinned_socket(waits: Waits, info: tuple[Any, ...]) -> socket.socket:
    """A socket for one address of the checked target. Raises `OSError` for any other."""
    family, kind, protocol, _, where = info
    target = CHECKED.get()
    if target is None or ipaddress.ip_address(where[0]) not in target.addresses:
        raise OSError(errno.EACCES, "an address that was not checked")
    made = socket.socket(family=family, type=kind, proto=protocol)
    keep_alive(made, waits)
    return made


def open_session(waits: Waits) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            resolver=PinnedResolver(),
            socket_factory=partial(pinned_socket, waits),
            use_dns_cache=False,
            limit=0,  # how many calls run at once is the rate limit's decision
            keepalive_timeout=10,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),  # one caller's cookies are not another's
        # Only connecting is bounded here: how long a call may take is decided around it.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=waits.answer, ceil_threshold=60),
        headers={"User-Agent": f"foliot/{__version__}", "Accept-Encoding": "identity"},
        auto_decompress=False,  # a few bytes could become gigabytes
        trust_env=False,  # a proxy would resolve names itself, after they were checked
    )
