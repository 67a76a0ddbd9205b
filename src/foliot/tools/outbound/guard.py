"""The outbound guard: the addresses that tools may connect to.

A tool's address may come from a manifest, an argument that a model wrote, a redirect or a server's answer: none of them
may lead into the network that Foliot itself runs in. The guard takes a host apart as the client that connects will,
resolves it once, checks every address, and gives back the addresses that were checked; the client connects to those and
to nothing else, so an answer of the resolver that changes a moment later has no effect.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from foliot.errors import InvalidInput
from foliot.tools.base import ToolPolicyInvalid, ToolUnreachable

if TYPE_CHECKING:
    from yarl import URL


# --- addresses -------------------------------------------------------------------------------------------------------

# What kind of place an address is. Pure; the tables are those of the IANA special-purpose registries.
#
# An IPv6 address that stands for an IPv4 address is what that one is, however it is wrapped.

Address: TypeAlias = IPv4Address | IPv6Address
AddressClass: TypeAlias = Literal[
    "public", "loopback", "private", "shared", "link_local", "metadata", "multicast", "unspecified", "reserved"
]


def _networks(*texts: str) -> tuple[ipaddress.IPv4Network | IPv6Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


# Services of clouds that hand out credentials to whoever asks from inside. Some have addresses that look public.
METADATA: Final = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
    )
)
_TABLE: Final[tuple[tuple[AddressClass, tuple[ipaddress.IPv4Network | IPv6Network, ...]], ...]] = (
    ("unspecified", _networks("0.0.0.0/8", "::/128")),
    ("loopback", _networks("127.0.0.0/8", "::1/128")),
    ("link_local", _networks("169.254.0.0/16", "fe80::/10")),
    ("private", _networks("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")),
    ("shared", _networks("100.64.0.0/10")),
    ("multicast", _networks("224.0.0.0/4", "ff00::/8")),
    (
        "reserved",
        _networks(
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "240.0.0.0/4",
            "64:ff9b:1::/48",
            "100::/64",
            "2001::/23",
            "2001:db8::/32",
            "3fff::/20",
            "5f00::/16",
        ),
    ),
)
_NAT64: Final = IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = IPv6Network("::/96")
_UNICAST: Final = IPv6Network("2000::/3")
_ISATAP: Final = (0x00005EFE, 0x02005EFE)


def address_class(address: Address) -> AddressClass:
    """The class of an address; of one that wraps others, the first of theirs that is not public."""
    own = _own_class(address)
    if own != "public" or isinstance(address, IPv4Address):
        return own
    inner: list[AddressClass] = [_own_class(wrapped) for wrapped in embedded(address)]
    for found in inner:
        if found != "public":
            return found
    # Of IPv6 only this part is handed out; the rest is unknown country, except for wrappings of public addresses.
    return "public" if inner or address in _UNICAST else "reserved"


def embedded(address: IPv6Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses that packets to this address may end at."""
    value = int(address)
    last = IPv4Address(value & 0xFFFFFFFF)
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    elif address in _NAT64 or address in _COMPATIBLE:
        yield last
    elif address.sixtofour is not None:
        yield address.sixtofour
    if (value >> 32) & 0xFFFFFFFF in _ISATAP:
        yield last


def plain(address: Address) -> Address:
    """An IPv4 address in the IPv6 notation for it, as IPv4; any other as it is."""
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _own_class(address: Address) -> AddressClass:
    if address in METADATA:
        return "metadata"
    for name, networks in _TABLE:
        if any(address.version == network.version and address in network for network in networks):
            return name
    return "public"


# --- guard -----------------------------------------------------------------------------------------------------------

Lookup: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

WEB: Final = ("http", "https")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
# Systems read `2130706433`, `0x7f.1` and `0177.1` as addresses: whatever ends like a number must be a plain one.
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_FRESH_FOR: Final = 5.0
_KEPT: Final = 1024
# What an entry by name, or by a network, can lift. What is left can be reached by nobody.
_BY_NAME: Final = frozenset({"private", "shared", "loopback"})
_BY_NETWORK: Final = frozenset({"private", "shared", "loopback", "link_local", "reserved"})


class OutboundRefused(ToolPolicyInvalid):
    """A place that tools may not connect to. `details` name the host and the class of its address."""


class Hosts:
    """Names (`api.example`), names below one (`*.example`), addresses and networks."""

    def __init__(self, entries: Iterable[str]) -> None:
        """Raises `InvalidInput` for an entry that is none of these."""
        self._names: set[str] = set()
        self._suffixes: list[str] = []
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for entry in entries:
            self._add(entry.strip().lower().rstrip("."))

    def _add(self, entry: str) -> None:
        bare = entry.removeprefix("*.")
        try:
            self._networks.append(ipaddress.ip_network(entry.strip("[]")))
        except ValueError:
            if not _is_name(bare):
                hint = "expected a host such as api.example, *.example, 10.0.0.1 or 10.0.0.0/8"
                raise InvalidInput(f"{entry[:80]!r} is neither a host nor a network", hint=hint) from None
            if bare == entry:
                self._names.add(entry)
            else:
                self._suffixes.append("." + bare)

    def named(self, host: str) -> bool:
        return host in self._names or any(host.endswith(suffix) for suffix in self._suffixes)

    def hold(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self._networks)

    def hold_host(self, host: str) -> bool:
        """Whether a host is listed, by the name or the address that it is written as."""
        try:
            return self.hold(plain(ipaddress.ip_address(host.strip("[]"))))
        except ValueError:
            return self.named(host.lower().rstrip("."))

    def single_out(self, address: Address) -> bool:
        """Whether this very address was listed, and not just a network around it."""
        return any(network.num_addresses == 1 and address == network[0] for network in self._networks)


@dataclass(frozen=True, slots=True)
class Outbound:
    """The rules for outbound connections: the public internet always, more only where it is allowed.

    `allow_hosts` may be reached although they are inside: a name lifts the bar for private, shared and loopback
    addresses behind it, a network for all in it. Metadata services have to be listed by their very address. Nothing
    allows multicast or unspecified addresses. `deny_hosts` wins over everything.
    """

    allow_private: bool = False
    allow_loopback: bool = False
    allow_hosts: Collection[str] = ()
    deny_hosts: Collection[str] = ()
    _allowed: Hosts = field(init=False, repr=False, compare=False)
    _denied: Hosts = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_allowed", Hosts(self.allow_hosts))
        object.__setattr__(self, "_denied", Hosts(self.deny_hosts))

    def refusal(self, host: str, address: Address) -> str | None:
        """Why `address` of `host` may not be reached; None when it may."""
        address = plain(address)
        host = host.rstrip(".")
        if self._denied.named(host) or self._denied.hold(address):
            return "denied"
        found = address_class(address)
        if found == "public":
            return None
        if (found in ("private", "shared") and self.allow_private) or (found == "loopback" and self.allow_loopback):
            return None
        if found in _BY_NAME and self._allowed.named(host):
            return None
        if found in _BY_NETWORK and self._allowed.hold(address):
            return None
        if found == "metadata" and self._allowed.single_out(address):
            return None
        return found


@dataclass(frozen=True, slots=True)
class OutboundTarget:
    """One place that was checked. `addresses` are the only ones to connect to."""

    scheme: str
    host: str
    port: int
    addresses: tuple[Address, ...]

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host.rstrip("."), self.port


class Guard:
    """Checks hosts against a policy. What was just resolved and found good is not resolved again for a few seconds."""

    def __init__(
        self,
        policy: Outbound,
        *,
        lookup: Lookup | None = None,
        timeout: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy
        self._lookup = lookup or system_lookup
        self._timeout = timeout
        self._clock = clock
        self._known: dict[tuple[str, int], tuple[float, tuple[Address, ...]]] = {}

    async def check_url(self, url: URL | str, *, schemes: Sequence[str] = WEB) -> OutboundTarget:
        """Resolves and checks a URL.

        Raises `OutboundRefused`, `ToolUnreachable`; never repeats more of it than the host.
        """
        scheme, host, port = _take_apart(url, schemes)
        return OutboundTarget(scheme, host, port, await self.check_host(host, port))

    async def check_host(self, host: str, port: int) -> tuple[Address, ...]:
        """The addresses of a host that may be reached. Raises `OutboundRefused`, also when only one of them may not."""
        host = host.strip().lower()
        literal = _literal(host)
        if literal is not None:
            self._judge(host, [literal])
            return (literal,)
        now = self._clock()
        kept = self._known.get((host, port))
        if kept is not None and now < kept[0]:
            return kept[1]
        addresses = tuple(_parsed(host, text) for text in await self._resolve(host, port))
        self._judge(host, addresses)
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[host, port] = (now + _FRESH_FOR, addresses)
        return addresses

    async def addresses(self, host: str, port: int) -> list[str]:
        """Like `check_host`, as texts: for clients that are given an address to connect to."""
        return [str(address) for address in await self.check_host(host, port)]

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        try:
            async with asyncio.timeout(self._timeout):
                found = await self._lookup(host, port)
        except TimeoutError:
            raise _unresolved(host, f"was not resolved within {self._timeout:g} s") from None
        except OSError as error:
            raise _unresolved(host, f"cannot be resolved: {error.strerror or error}") from None
        if not found:
            raise _unresolved(host, "has no address")
        return list(dict.fromkeys(found))

    def _judge(self, host: str, addresses: Sequence[Address]) -> None:
        for address in addresses:
            why = self.policy.refusal(host, address)
            if why == "denied":
                raise OutboundRefused(f"tools may not connect to {host!r}: it is on the deny list", host=host, why=why)
            if why is not None:
                raise OutboundRefused(
                    f"tools may not connect to {host!r}: its address is {why.replace('_', '-')} (the operator can "
                    "allow it with the setting outbound_allow, FOLIOT_OUTBOUND_ALLOW)",
                    host=host,
                    why=why,
                )


def _unresolved(host: str, why: str) -> ToolUnreachable:
    """Builds the error for a name without an address: nothing was sent, so nothing can have acted."""
    error = ToolUnreachable(f"the name {host!r} {why}", host=host, sent="no")
    error.before_effect = True
    return error


async def system_lookup(host: str, port: int) -> Sequence[str]:
    """The addresses that the system's resolver knows."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def _take_apart(url: URL | str, schemes: Sequence[str]) -> tuple[str, str, int]:
    from yarl import URL  # the same reader that the client connects by: two readers could see two hosts

    if isinstance(url, str):
        text = url.strip()
        if not text:
            raise OutboundRefused("there is no address to connect to")
        if not text.isprintable() or any(character in text for character in " \\"):
            raise OutboundRefused("an address with blanks, backslashes or control characters is not used")
        try:
            url = URL(text)
        except ValueError:
            raise OutboundRefused("an address that cannot be read is not used") from None
    if url.scheme not in schemes:
        raise OutboundRefused(f"tools may not use {url.scheme or 'no scheme'!r} addresses", allowed=", ".join(schemes))
    if url.raw_user is not None or url.raw_password is not None or "@" in url.raw_authority:
        raise OutboundRefused("an address with a user or password in it is not used", hint="name a Secret in auth")
    try:
        host, port = url.raw_host, url.port or (None if url.explicit_port == 0 else _DEFAULT_PORTS.get(url.scheme))
    except ValueError:
        host = port = None
    if not host or not port:
        raise OutboundRefused("an address without host and port is not used")
    return url.scheme, host.lower(), port


def _literal(host: str) -> Address | None:
    """The address that a host is written as, None for a name. Raises `OutboundRefused` for what only looks like one."""
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if "%" in bare:
        raise OutboundRefused("an address with a zone is not used", host=host)
    try:
        return ipaddress.ip_address(bare)
    except ValueError:
        pass
    name = host.removesuffix(".")
    if not _is_name(name):
        raise OutboundRefused(f"{host[:80]!r} is not a host that can be connected to", host=host[:80])
    return None


def _is_name(name: str) -> bool:
    labels = name.split(".")
    return len(name) <= 253 and all(_LABEL.fullmatch(label) for label in labels) and not _NUMBER.fullmatch(labels[-1])


def _parsed(host: str, text: str) -> Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise OutboundRefused(f"the name {host!r} leads to something that is no address", host=host) from None
