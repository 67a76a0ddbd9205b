"""Cursors as they leave a server: sealed, so that no client can read a place in a list, or make one up.

A place is mostly the key of a row, and keys count over all namespaces of the store: two cursors of a tenant would say
how much all the others did in between, and so would a place that the tenant chose. So what a server gives out is the
cursor of the list (`common/cursors.py`) encrypted with a key of the store, and padded, so that not even its length
tells how large a key is. One that was changed, or that another store gave out, is refused.

The key is made by the first server that needs it, and stays: servers of one store read each other's cursors, before
and after they start anew. It is stored as it is, because whoever reads the store sees the rows themselves. For the same
reason lists of a process that has the store open itself, and pass through no server, are not sealed.

Used by:  every route that answers with `continue`.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from foliot.common.cursors import foreign_cursor
from foliot.server.errors import BadParameter
from foliot.store.base import Database
from foliot.store.transaction import run

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

KEY: Final = "cursors.key"
# No name of a resource or namespace begins so: where a list takes a name too, this tells the two apart.
_MARK: Final = "_"
_SEALED: Final = re.compile(f"{_MARK}[A-Za-z0-9_-]{{64,}}")
_CONTEXT: Final = [b"foliot cursor"]
_BLOCK: Final = 32


def is_sealed(text: str) -> bool:
    """Whether a text looks like a cursor of a server, and not like a name."""
    return _SEALED.fullmatch(text) is not None


class SealedCursors:
    """Seals and opens the cursors of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cipher: AESSIV | None = None

    async def seal(self, cursor: str | None) -> str | None:
        """Return the cursor as it is given out; None stays None. The same place is the same text each time."""
        if cursor is None:
            return None
        place = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        # A place is JSON, which has no zero bytes.
        sealed = (await self._opened()).encrypt(place + b"\0" * (-len(place) % _BLOCK), _CONTEXT)
        return _MARK + base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    async def page(self, items: Sequence[Any], cursor: str | None) -> dict[str, Any]:
        """Return a page of a list as it is answered, with the cursor of the next one where there is one."""
        return {"items": items} if cursor is None else {"items": items, "continue": await self.seal(cursor)}

    async def open(self, text: str | None) -> str | None:
        """Return the cursor that was sealed; None for none. Raises `BadParameter` for any other text."""
        if not text:
            return None
        if not is_sealed(text) or (place := await self._place(text.removeprefix(_MARK))) is None:
            refused = foreign_cursor()
            raise BadParameter(refused.message, hint=refused.hint)
        return base64.urlsafe_b64encode(place).decode().rstrip("=")

    async def _place(self, sealed: str) -> bytes | None:
        from cryptography.exceptions import InvalidTag

        cipher = await self._opened()
        try:
            data = base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
            return cipher.decrypt(data, _CONTEXT).rstrip(b"\0")
        except (binascii.Error, InvalidTag):
            return None

    async def _opened(self) -> AESSIV:
        if self._cipher is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESSIV  # only lists of several pages need it

            rows = await self._database.read("setting_get", name=KEY)
            if not rows:
                # The first one stands: of several servers that need it at once, all go on with the same.
                await self._database.write(run, "setting_new", name=KEY, value=secrets.token_hex(32))
                rows = await self._database.read("setting_get", name=KEY)
            self._cipher = AESSIV(bytes.fromhex(rows[0]["value"]))
        return self._cipher
