"""What one request to a server met on its way: shared by the call that waits and the transport that works for it.

The SDK reports an HTTP failure as a protocol error without its status, so the transport notes here what it saw. The
context variable reaches it because the SDK carries the context of the caller with each message.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from foliot.errors import FoliotError
from foliot.tools.base import OnOutput


@dataclass(slots=True, eq=False)
class Exchange:
    """`status` is the HTTP status that refused the request; `failure` an error that kept it from being answered.

    `sent` is False as long as the server cannot have begun to act. `session_gone`: the server does not know our session
    any more, so it did nothing.
    """

    on_output: OnOutput | None = None
    status: int | None = None
    retry_after: float | None = None
    failure: FoliotError | None = None
    sent: bool = False
    session_gone: bool = False


EXCHANGE: ContextVar[Exchange | None] = ContextVar("foliot_mcp_exchange", default=None)
