"""Credentials by placeholder: code in a fence holds a word of no value, the broker puts the real one into its headers.

The word is made anew for each session. It is swapped in the values of headers, also inside `Authorization: Basic`, and
only on the way to the hosts that the secret is meant for; a request that carries it anywhere else does not leave.
"""

from __future__ import annotations

import base64
import re
import secrets as chance
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from foliot.common.variables import reserved_variable
from foliot.sandbox.base import SandboxPolicyRefused
from foliot.sandbox.egress.rules import HostSet, check_ports

Reveal: TypeAlias = Callable[[str], Awaitable[str]]

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_BASIC: Final = re.compile(rb"basic[ \t]+([A-Za-z0-9+/_-]+=*)", re.IGNORECASE)
# A value with these would end the header, or be cut off by whoever reads it.
_UNUSABLE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class EgressSecret(Struct, frozen=True):
    """A secret that code in a fence may use and never sees.

    `hosts` and `ports` are where it may be sent, written as in `EgressRule`, which must allow them as well. `variable`
    is the variable that holds the placeholder inside, `FOLIOT_SECRET_<NAME>` by default. Without TLS it is sent only
    with `cleartext`: others on the way could read it.
    """

    name: str
    hosts: tuple[str, ...]
    ports: tuple[int, ...] = (443,)
    variable: str = ""
    cleartext: bool = False


class Leak(Exception):
    """A placeholder where it must not be: `reason` is a code, the text says where, without the placeholder."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _Bound(Struct, frozen=True):
    secret: EgressSecret
    hosts: HostSet
    placeholder: bytes
    variable: str

    def meant_for(self, host: str, port: int) -> bool:
        return port in self.secret.ports and host in self.hosts


class Placeholders:
    """The placeholders of one session."""

    def __init__(self, secrets: Sequence[EgressSecret], reveal: Reveal | None) -> None:
        """`reveal` gives the value of a secret by its name, each time it is needed. Raises `SandboxPolicyRefused`."""
        if secrets and reveal is None:
            raise SandboxPolicyRefused("secrets", "there are secrets, and nothing that reveals them")
        self._reveal = reveal
        self._bound: list[_Bound] = []
        for number, secret in enumerate(secrets):
            field = f"secrets[{number}]"
            if not _NAME.fullmatch(secret.name):
                raise SandboxPolicyRefused(f"{field}.name", f"{secret.name[:80]!r} is not the name of a secret")
            word = re.sub(r"[^A-Za-z0-9]", "_", secret.name)
            variable = secret.variable or f"FOLIOT_SECRET_{word.upper()}"
            if not _VARIABLE.fullmatch(variable):
                raise SandboxPolicyRefused(f"{field}.variable", f"{variable[:80]!r} is not the name of a variable")
            if secret.variable and (wrong := reserved_variable(variable)):
                raise SandboxPolicyRefused(f"{field}.variable", wrong, hint="such as SERVICE_TOKEN")
            if variable in self.environment:
                raise SandboxPolicyRefused(f"{field}.variable", f"{variable} is used by another secret")
            if not secret.hosts or "*" in secret.hosts:
                raise SandboxPolicyRefused(f"{field}.hosts", "a secret is meant for hosts that are named")
            check_ports(secret.ports, f"{field}.ports")
            placeholder = f"FOLIOT_SECRET_{word}_{chance.token_hex(16)}".encode()
            self._bound.append(_Bound(secret, HostSet(secret.hosts, f"{field}.hosts"), placeholder, variable))

    @property
    def environment(self) -> dict[str, str]:
        """The placeholders by the variables that hold them inside."""
        return {bound.variable: bound.placeholder.decode() for bound in self._bound}

    def meant_for(self, host: str, port: int) -> bool:
        """Whether any secret may be sent there."""
        return any(bound.meant_for(host, port) for bound in self._bound)

    def __bool__(self) -> bool:
        return bool(self._bound)

    def check_target(self, target: str) -> None:
        """Raises `Leak`: addresses are kept in logs on the way, so no secret is put into one."""
        for bound in self._bound:
            if bound.placeholder in target.encode():
                raise Leak("placeholder_in_url", f"the placeholder of the secret {bound.secret.name!r} is in the URL")

    def check(self, headers: Iterable[tuple[bytes, bytes]], host: str, port: int, *, tls: bool) -> None:
        """Raises `Leak` when headers carry a secret that is not meant for a host, or that would go in clear."""
        for key, value in headers:
            for bound in self._bound:
                name = bound.secret.name
                if bound.placeholder in key:
                    raise Leak("placeholder_in_name", f"the placeholder of {name!r} is in the name of a header")
                if bound.placeholder not in value and bound.placeholder not in (_decoded(value) or b""):
                    continue
                if not bound.meant_for(host, port):
                    raise Leak("placeholder_elsewhere", f"the secret {name!r} is not meant for this host")
                if not tls and not bound.secret.cleartext:
                    raise Leak("placeholder_in_clear", f"the secret {name!r} is not sent without TLS; use https")

    async def swap(
        self, headers: Sequence[tuple[bytes, bytes]], host: str, port: int, *, tls: bool
    ) -> list[tuple[bytes, bytes]]:
        """Put the real values into headers for a host. Raises as `check`, before any value is asked for."""
        self.check(headers, host, port, tls=tls)
        swapped: list[tuple[bytes, bytes]] = []
        for key, value in headers:
            inner = _decoded(value)
            if inner is not None and (found := await self._swapped(inner)) != inner:
                swapped.append((key, b"Basic " + base64.b64encode(found)))
            else:
                swapped.append((key, await self._swapped(value)))
        return swapped

    async def _swapped(self, text: bytes) -> bytes:
        values: dict[bytes, bytes] = {}
        for bound in self._bound:
            if bound.placeholder in text:
                assert self._reveal is not None
                value = await self._reveal(bound.secret.name)
                if not value or _UNUSABLE.search(value):
                    name = bound.secret.name
                    raise Leak("secret_unusable", f"the value of the secret {name!r} cannot stand in a header")
                values[bound.placeholder] = value.encode()
        if not values:
            return text
        # In one pass: a value that looks like another placeholder stays what it is.
        return re.sub(b"|".join(re.escape(each) for each in values), lambda match: values[match[0]], text)


def _decoded(value: bytes) -> bytes | None:
    """The user and password of `Basic`, as git and pip send them; None for another value."""
    match = _BASIC.fullmatch(value)
    if match is None:
        return None
    text = match[1].rstrip(b"=")
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_" if set(text) & set(b"-_") else None)
    except ValueError:
        return None
