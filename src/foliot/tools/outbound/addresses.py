"""What kind of place an address is. Pure; the tables are those of the IANA special-purpose registries.

An IPv6 address that stands for an IPv4 address is what that one is, however it is wrapped.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Final, Literal, TypeAlias

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
