"""Signed messages: who sent a call or a result over a message bus, and that nobody has changed it.

A signature travels in headers and covers the very bytes of the message, its subject and its kind; nothing has to be
brought into a canonical form, so any language can make one with a hash function:

    Foliot-Caller      the name under which the key is known
    Foliot-Time        when it was signed, ms since 1970
    Foliot-Expires     until when it counts, ms since 1970
    Foliot-Signature   v1=HEX: HMAC-SHA256 under the key, of these seven lines, without a newline at the end:
                       foliot-nats-v1, kind (call, result or output), subject, caller, time, expires,
                       SHA-256 of the message in hex

One key is shared by one caller and those who serve it, for both directions. Whoever has another key can forge neither.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Final, Literal, TypeAlias

from foliot.errors import InvalidInput

SCHEME: Final = "foliot-nats-v1"
CALLER: Final = "Foliot-Caller"
TIME: Final = "Foliot-Time"
EXPIRES: Final = "Foliot-Expires"
SIGNATURE: Final = "Foliot-Signature"
SHORTEST_KEY: Final = 32
# How far clocks may differ, and how long a call may wait for somebody to take it. Outcomes are kept for longer than
# that, so a message that is sent again is answered from what was kept.
SKEW_SECONDS: Final = 300.0
LONGEST_SECONDS: Final = 24 * 3600.0

Kind: TypeAlias = Literal["call", "result", "output"]
Headers: TypeAlias = Mapping[str, str]


class BadSignature(Exception):
    """A signature that is missing, wrong or no longer counts. The text says which, and holds nothing of the key."""


class Signer:
    """Signs and checks the messages of one caller."""

    __slots__ = ("_clock", "_key", "name")

    def __init__(self, name: str, key: bytes, *, clock: Callable[[], float] = time.time) -> None:
        self.name = name
        self._key = key
        self._clock = clock

    def sign(self, kind: Kind, subject: str, data: bytes, *, expires: float | None = None) -> dict[str, str]:
        """Returns the headers for a message. `expires` is in seconds since 1970, a day from now when not given."""
        now = self._clock()
        latest = now + LONGEST_SECONDS
        until = latest if expires is None else min(expires, latest)
        said = self.name, str(round(now * 1000)), str(round(until * 1000))
        signature = self._signature(kind, subject, data, said)
        return dict(zip((CALLER, TIME, EXPIRES), said, strict=True)) | {SIGNATURE: f"v1={signature}"}

    def check(self, kind: Kind, subject: str, data: bytes, headers: Headers | None, *, aged: bool = False) -> None:
        """Raises `BadSignature`. With `aged` the time does not matter: what was signed is bound to something else."""
        given = headers or {}
        said = given.get(CALLER, ""), given.get(TIME, ""), given.get(EXPIRES, "")
        signature = self._signature(kind, subject, data, said)
        if not hmac.compare_digest(given.get(SIGNATURE, "").encode(), f"v1={signature}".encode()):
            raise BadSignature("the signature is not that of this message")
        if said[0] != self.name:
            raise BadSignature("the message is signed for another caller")
        if aged:
            return
        try:
            signed_at, until, now = int(said[1]) / 1000, int(said[2]) / 1000, self._clock()
        except ValueError:
            raise BadSignature("the times of the signature are no numbers") from None
        if signed_at > now + SKEW_SECONDS:
            raise BadSignature("the message was signed in the future: the clocks differ")
        if until <= now or until > signed_at + LONGEST_SECONDS:
            raise BadSignature("the signature has expired, or would count for more than a day")

    def dedupe(self, id: str) -> str:
        """Returns an id for JetStream that nobody else can use up before: what comes second under an id is dropped."""
        return hmac.new(self._key, f"{SCHEME}\ndedupe\n{id}".encode(), sha256).hexdigest()

    def _signature(self, kind: Kind, subject: str, data: bytes, said: tuple[str, str, str]) -> str:
        lines = (SCHEME, kind, subject, *said, sha256(data).hexdigest())
        return hmac.new(self._key, "\n".join(lines).encode(), sha256).hexdigest()


def read_key(text: str, where: str) -> bytes:
    """Returns a key from base64. Raises `InvalidInput`, without the text."""
    try:
        key = base64.b64decode("".join(text.split()), altchars=b"-_" if set(text) & set("-_") else None, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < SHORTEST_KEY:
        raise InvalidInput(f"{where} is no key of {SHORTEST_KEY} bytes in base64", hint="`openssl rand -base64 32`")
    return key
