"""Passwords: which are good enough, and their hashes (Argon2id).

A hash takes long and much memory on purpose. It is made in a thread, so that other requests go on, and only a few at a
time, so that a crowd that logs in cannot eat the machine's memory.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import unicodedata
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from foliot.common.threads import on_thread
from foliot.errors import InvalidInput, Unavailable
from foliot.server.errors import TooMany
from foliot.version import install_command

if TYPE_CHECKING:
    from argon2 import PasswordHasher

SHORTEST: Final = 12
LONGEST: Final = 1024
AT_ONCE: Final = 2
WAITING: Final = 32


class Passwords:
    """Hashes and compares. The costs are Argon2's: rounds, KiB of memory, lanes."""

    def __init__(self, *, rounds: int = 3, memory: int = 64 * 1024, lanes: int = 2) -> None:
        self._costs = rounds, memory, lanes
        self._hasher: PasswordHasher | None = None
        self._places = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0
        # Whoever is not known is compared with this, which takes as long and is never right.
        self._decoy = (
            f"$argon2id$v=19$m={memory},t={rounds},p={lanes}${_base64(os.urandom(16))}${_base64(os.urandom(32))}"
        )

    async def hash(self, password: str) -> str:
        """Hashes a password for storage. Raises `TooMany` when too many wait for theirs."""
        async with self._place():
            return await on_thread(self._engine().hash, _normal(password))

    async def matches(self, kept: str | None, password: str) -> bool:
        """Whether this is the password of the hash. Without one it takes as long, and is not. Raises `TooMany`."""
        self._engine()
        from argon2.exceptions import InvalidHashError, VerificationError

        if len(password) > LONGEST:  # which nobody has; to look at all of it would take its time
            kept, password = None, ""
        async with self._place():
            try:
                await on_thread(self._engine().verify, kept or self._decoy, _normal(password))
            except (VerificationError, InvalidHashError):
                return False
        return kept is not None

    def outdated(self, kept: str) -> bool:
        """Whether the hash was made at other costs than are asked now."""
        return self._engine().check_needs_rehash(kept)

    def _engine(self) -> PasswordHasher:
        if self._hasher is None:
            try:
                from argon2 import PasswordHasher
            except ImportError:
                raise Unavailable(
                    "passwords need a package that is not installed", hint=install_command("server")
                ) from None
            rounds, memory, lanes = self._costs
            self._hasher = PasswordHasher(time_cost=rounds, memory_cost=memory, parallelism=lanes)
        return self._hasher

    @asynccontextmanager
    async def _place(self) -> AsyncGenerator[None]:
        if self._waiting >= WAITING:
            raise TooMany("too many people log in at this moment", retry_after=2)
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._places.release()


def check_password(password: str, name: str) -> None:
    """Raises `InvalidInput` for a password that is too easy to guess, or too long to be meant."""
    text = _normal(password)
    if len(text) < SHORTEST:
        raise InvalidInput(f"a password has at least {SHORTEST} characters", hint="a few words in a row do well")
    if len(password) > LONGEST:
        raise InvalidInput(f"a password has at most {LONGEST} characters")
    if len(set(text)) < 5 or _names(text.lower(), name.lower()):
        raise InvalidInput(
            "this password is easy to guess", hint="a few words in a row do well, but not one's own name"
        )


def _names(text: str, name: str) -> bool:
    """Whether somebody's own name is in it. One of fewer than four letters counts where it is a word by itself."""
    return name in (text if len(name) >= 4 else re.split(r"[\W\d_]+", text))


def _normal(password: str) -> str:
    """The same characters, however a keyboard made them."""
    return unicodedata.normalize("NFKC", password)


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode().rstrip("=")
