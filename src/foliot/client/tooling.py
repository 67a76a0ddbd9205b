"""The verbs on tools outside any run: `LocalTooling` on a runtime in this process, `RemoteTooling` on a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from foliot.kernel.messages import ToolResult
from foliot.store.base import Document
from foliot.tools.judge import Judgement

if TYPE_CHECKING:
    from foliot.offering import Asker


class Toolset(Struct, frozen=True):
    """The facts of each tool as `tool_facts` tells them, and what the deployment has and lacks."""

    tools: list[Document]
    capabilities: dict[str, Any]


class Called(Struct, frozen=True):
    """What became of a call. `printed` is what came before its result."""

    result: ToolResult
    printed: str = ""


class Tooling(Protocol):
    async def toolset(self, namespace: str) -> Toolset:
        """All tools by name, whether or not they can be called there."""
        ...

    async def tool(self, name: str, namespace: str) -> Document:
        """One with its limits, its schema, and the rules that speak of it. Raises `NotFound`."""
        ...

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        asker: Asker,
        *,
        key: str = "",
        on_output: Callable[[str], None] | None = None,
    ) -> Called:
        """One governed and recorded call. Raises `NotFound`, `FoliotError` for a tool that cannot be called there,
        and `Denied` when a rule asks for an approval that nobody gave in advance: it is not made.

        `on_output` hears pieces as they come where the tool runs in this process; from a server they are `printed`.
        """
        ...

    async def test_tool(self, name: str, arguments: dict[str, Any], asker: Asker) -> Judgement:
        """What would become of that call. Nothing is run."""
        ...
