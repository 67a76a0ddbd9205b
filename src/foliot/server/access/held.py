"""The session that a request came with."""

from __future__ import annotations

from typing import Final, NamedTuple

from foliot.server.access.identity import Caller
from foliot.store.access.login_sessions import LoginSession

# Where a scope has it.
HELD: Final = "foliot.session"


class Held(NamedTuple):
    """A good session, and the token that its writes must carry. That they do is checked apart."""

    caller: Caller
    session: LoginSession
    csrf: str
