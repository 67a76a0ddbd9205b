"""Who was sent to an identity provider and is expected back: once, within minutes, in the same browser.

Nothing that is kept here lets anybody in: of the state and of what the browser holds there are only digests.
"""

from __future__ import annotations

import hmac

from foliot.store.access.users import digest_of
from foliot.store.base import Database
from foliot.store.transaction import Row, Tx, rows, run


class SqlLoginFlows:
    """On either database."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def begin(self, state: str, browser: str, return_to: str, *, now: float, seconds: float) -> None:
        """Expect the browser that holds `browser` back with `state`. Forgets who did not come back in time."""

        def body() -> Tx[None]:
            yield from run("flow_prune", now=now)
            yield from run(
                "flow_add",
                state=digest_of(state),
                browser=digest_of(browser),
                return_to=return_to,
                expires_at=now + seconds,
            )

        await self._db.write(body)

    async def take(self, state: str, browser: str, *, now: float) -> str | None:
        """Where to go on, for a browser that is expected; None otherwise. A state is good for one attempt."""

        def body() -> Tx[list[Row]]:
            return (yield from rows("flow_take", state=digest_of(state)))

        found = await self._db.write(body)
        same = hmac.compare_digest(found[0]["browser"] if found else digest_of(""), digest_of(browser))
        if not found or not same or now >= found[0]["expires_at"]:
            return None
        return found[0]["return_to"]
