"""The local key: how the command line is known to a server of the same home without a token.

A server makes the file `local.key` in its home when it first starts. Whoever can read it may do everything, so it is
readable by its owner only, and it never leaves the machine: neither side sends it. The two prove to each other that
they know it.

    client                                   server
    nonce                               ->
                                        <-   boot, expires_at, mac("server", place, nonce, boot, expires_at)
    checks that mac; then every request
    carries mac("caller", the same)     ->   checks it

`place` is the address and port of the connection as each side sees it, so nobody who listens elsewhere can pass the
messages on; `boot` is drawn by each server process, so nothing that was overheard outlives the process. A program that
listens where a server was expected learns one nonce.

Made by:   cli/commands/server.py. Proved by: client/local_access.py. Checked by: server/auth/authentication.py.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from foliot.errors import SecretError, UsageError
from foliot.store.secrets.keyfile import create_key_file, read_key_file

FILE: Final = "local.key"
PREFIX: Final = "fok_"
NONCE: Final = re.compile(r"[0-9a-f]{32}")
LIFE: Final = 3600
_BEARER: Final = re.compile(r"fok_([0-9a-f]{32})_([0-9a-f]{32})_([0-9]{1,12})_([0-9a-f]{64})")


class Introduction(NamedTuple):
    """One exchange of nonces: what both macs are about."""

    place: str
    nonce: str
    boot: str
    expires_at: int


class LocalKey:
    """The key of one home. `owner` is the name of whom the file belongs to."""

    def __init__(self, key: bytes, owner: str) -> None:
        self._key = key
        self.owner = owner

    def __repr__(self) -> str:
        return f"LocalKey({self.owner!r})"

    @staticmethod
    def made(home: Path) -> LocalKey:
        """The key of this home, made if there is none. Raises `UsageError` for a file that others have a hand in."""
        path = home / FILE
        try:
            create_key_file(path)
        except SecretError as error:
            raise UsageError(error.message, hint="check that the folder of FOLIOT_HOME is yours to write") from None
        found = LocalKey.of(home)
        if found is None:
            raise UsageError(f"{path} was removed while it was being made", hint="start again")
        return found

    @staticmethod
    def of(home: Path) -> LocalKey | None:
        """The key of this home, None without one. Raises `UsageError` for a file that others have a hand in."""
        path = home / FILE
        try:
            owner = path.stat().st_uid
            keys, _ = read_key_file(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}", hint=_ANOTHERS) from None
        except SecretError as error:
            raise UsageError(error.message, hint=error.hint) from None
        if owner != os.geteuid():
            raise UsageError(f"{path} belongs to another user, so it is not used", hint=_ANOTHERS)
        return LocalKey(next(iter(keys.values())), _name_of(owner))

    def vouch(self, about: Introduction) -> str:
        """Returns the proof by which the server shows that it knows the key."""
        return self._mac("server", about)

    def vouches(self, about: Introduction, proof: str) -> bool:
        """Whether the other end, at this place, knows the key."""
        return hmac.compare_digest(self.vouch(about).encode(), proof.encode("utf-8", "surrogatepass"))

    def bearer(self, about: Introduction) -> str:
        """Returns the token of a client for a server that has shown that it knows the key."""
        return f"{PREFIX}{about.nonce}_{about.boot}_{about.expires_at}_{self._mac('caller', about)}"

    def accepts(self, bearer: str, *, place: str, boot: str, now: float) -> bool:
        """Whether whoever sent this to the server at `place` knows the key."""
        form = _BEARER.fullmatch(bearer)
        if form is None:
            return False
        about = Introduction(place, form[1], boot, int(form[3]))
        same = hmac.compare_digest(self._mac("caller", about), form[4])
        return same and form[2] == boot and now < about.expires_at

    def _mac(self, side: str, about: Introduction) -> str:
        text = "\n".join(("foliot local 1", side, about.place, about.nonce, about.boot, str(about.expires_at)))
        return hmac.digest(self._key, text.encode(), hashlib.sha256).hex()


def place_of(address: Any) -> str:
    """A socket's address as both sides write it; blank for one that is not on this machine."""
    try:
        host = ipaddress.ip_address(str(address[0]).partition("%")[0])
        port = int(address[1])
    except (ValueError, TypeError, IndexError):
        return ""
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    host = mapped or host
    return f"{host} {port}" if host.is_loopback else ""


_ANOTHERS: Final = "use a token (`foliot tokens create`), or a FOLIOT_HOME of your own"


def _name_of(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
