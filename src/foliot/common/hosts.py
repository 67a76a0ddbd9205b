"""Hosts in one form: whatever way a host was written in, it is compared as lower-case ASCII or as a standard address.

What could be read in two ways is no host. Rules for the network, in manifests and at the egress broker, go by this.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
# Systems read `2130706433`, `0x7f.1` and `0177.1` as addresses: a name does not end in a number.
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
EVERY_NAME: Final = "*"
BELOW: Final = "*."


def normal_host(text: str) -> str | None:
    """The one form of a host: lower case, without the dot at its end, addresses as the standard writes them.

    None for what is no host, or could be read as another: numbers that some systems take for addresses, zones,
    percent signs, anything that is not ASCII. Applied to its own answer it gives the same.
    """
    host = text.lower()
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    if ":" in bare or bracketed:
        if "%" in bare:
            return None
        try:
            address = ipaddress.IPv6Address(bare)
        except ValueError:
            return None
        return str(address.ipv4_mapped or address)
    try:
        return str(ipaddress.IPv4Address(bare))
    except ValueError:
        pass
    name = bare.removesuffix(".")
    labels = name.split(".")
    if len(name) > 253 or _NUMBER.fullmatch(labels[-1]) or not all(_LABEL.fullmatch(label) for label in labels):
        return None
    return name


def is_address(host: str) -> bool:
    """Whether a host in its normal form is an address."""
    return ":" in host or host.rpartition(".")[2].isdigit()


def shown_host(host: str) -> str:
    """A host as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def normal_pattern(text: str) -> str | None:
    """The one form of an entry of a rule: a host, `*.example` for names below one, `*` for every name.

    A name may be written in any script: `bücher.example` is `xn--bcher-kva.example`. None for what is none of these.
    """
    text = text.strip()
    if text == EVERY_NAME:
        return text
    below = text.startswith(BELOW)
    host = normal_host(_in_ascii(text.removeprefix(BELOW)))
    if host is None or (below and is_address(host)):
        return None
    return f"{BELOW}{host}" if below else host


def _in_ascii(host: str) -> str:
    """A name as the wire has it. What cannot be so, as it is."""
    if host.isascii():
        return host
    from yarl import URL  # it knows IDNA 2008; loaded only for names that need it

    try:
        return URL.build(scheme="http", host=host).raw_host or host
    except ValueError:
        return host
