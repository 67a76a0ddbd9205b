"""The official SDK, loaded when a server is first talked to: it is an extra, and slow to import."""

from __future__ import annotations

from foliot.errors import Unavailable
from foliot.version import install_command

HINT = install_command("mcp")


def require_sdk() -> None:
    """Raises `Unavailable`, saying what to install, when the MCP SDK is missing or older than its second version."""
    try:
        import mcp
        import mcp_types as _types
    except ImportError as error:
        raise Unavailable(
            f"tools on MCP servers need the MCP SDK, which cannot be imported: {error}", hint=HINT, retryable=False
        ) from error
    if not hasattr(mcp, "Client") or not hasattr(_types, "Tool"):
        raise Unavailable("the MCP SDK that is installed is older than 2.0", hint=HINT, retryable=False)
