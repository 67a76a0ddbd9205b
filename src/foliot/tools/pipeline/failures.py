"""Says of whatever a backend raised what kind of failure it is, after each attempt."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any, Final

from foliot.tools.base import Invocation, ToolError, ToolUnreachable
from foliot.tools.pipeline.running import Handler, Running

log = logging.getLogger(__name__)


# What HTTP libraries raise that functions use, by name, so that none of them has to be installed: the connection or the
# answer was lost, and among them what is raised before anything was sent.
LOST: Final = frozenset(
    {
        *("httpx.TransportError", "requests.ConnectionError", "requests.Timeout", "requests.ChunkedEncodingError"),
        *("aiohttp.ClientConnectionError", "aiohttp.ClientPayloadError", "urllib3.HTTPError"),
    }
)
UNSENT: Final = frozenset(
    {
        *("httpx.ConnectError", "httpx.ConnectTimeout", "httpx.PoolTimeout", "httpx.UnsupportedProtocol"),
        *("requests.ConnectTimeout", "aiohttp.ClientConnectorError", "aiohttp.ConnectionTimeoutError"),
        *("urllib3.NewConnectionError", "urllib3.ConnectTimeoutError"),
    }
)


class Classify:
    """A `ToolError` is precise already; the rest goes by its type, never by its text, which the tool can choose."""

    async def __call__(self, call: Invocation, running: Running, next: Handler) -> Any:
        try:
            value = await next(call, running)
            running.returned = True
            return value
        except ToolError:
            raise
        except Exception as error:
            raise classified(error, call.tool) from error
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit):
            raise  # told from outside, perhaps: whoever drives it can tell
        except BaseException as error:
            raise broke_off(error) from error


def classified(error: Exception, tool: str) -> ToolError:
    """The failure that an exception means. The stack goes to the log, not to the model."""
    if isinstance(error, ToolError):
        return error
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    lost = isinstance(error, ConnectionError | TimeoutError | socket.gaierror)
    unsent = isinstance(error, ConnectionRefusedError | socket.gaierror)
    if not lost:
        names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
        lost, unsent = not names.isdisjoint(LOST), not names.isdisjoint(UNSENT)
    if lost:
        unreachable = ToolUnreachable(said)
        unreachable.before_effect = unsent
        return unreachable
    if isinstance(error, RecursionError | MemoryError):
        return ToolInternal(said, retryable=False)
    log.info("the tool %s raised", tool, exc_info=error)
    return ToolInternal(said)


class ToolInternal(ToolError):
    """The tool itself is at fault."""

    kind = "internal"


def broke_off(error: BaseException) -> ToolInternal:
    """The failure that an exception means which is none of `Exception`: nothing in the tool was ready for it.

    So it has not said how the call ended: it may have acted.
    """
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:  # its text is made by the tool
        said = type(error).__name__
    broken = ToolInternal(f"the tool broke off: {said}", retryable=False)
    broken.lost = True
    return broken
