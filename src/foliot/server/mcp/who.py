"""On whose behalf a message of an MCP client is handled, and in which namespace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from foliot.server.access.identity import Caller

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

Context: TypeAlias = "ServerRequestContext[Any, Any]"


@dataclass(frozen=True, slots=True)
class Who:
    """A caller in a namespace: that of the address they connected to."""

    caller: Caller
    namespace: str


Knows: TypeAlias = Callable[[Context], Who]
