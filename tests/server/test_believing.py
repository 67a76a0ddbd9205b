"""What is believed of a credential, where the store does not tell of changes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from foliot.server.auth.authentication import CredentialCache, Holder


class Silent:
    """A database that cannot tell for nothing whether anything changed, as PostgreSQL."""

    def version(self) -> object | None:
        return None


class Good:
    def good(self, now: float) -> bool:
        return True


async def test_what_was_found_out_before_a_revocation_is_not_believed_after_it() -> None:
    looked, answered = asyncio.Event(), asyncio.Event()
    revoked = False

    async def ask(text: str, now: float) -> Holder[Good] | None:
        if revoked:
            return None
        looked.set()
        await answered.wait()
        return Holder(cast("Any", "ann"), Good())

    believed = CredentialCache(cast("Any", Silent()), ask)
    asked = asyncio.create_task(believed.of("token", 0.0))
    await looked.wait()
    revoked = True
    believed.forget()
    answered.set()
    await asked

    assert await believed.of("token", 0.1) is None
