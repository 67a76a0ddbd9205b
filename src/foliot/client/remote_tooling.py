"""The verbs on tools outside any run, over the connection to a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from foliot.client.asking import Asking
from foliot.client.tooling import Called, Toolset
from foliot.store.base import Document
from foliot.tools.judge import Judgement

if TYPE_CHECKING:
    from foliot.offering import Asker

TOOLS: Final = "/v1/work/tools"
SERVERS: Final = "/v1/work/mcp-servers"
# A tool may take its time; the server ends a call when the tool's own limit is over.
PATIENCE: Final = 900.0


class RemoteTooling(Asking):
    """Implements `Tooling`."""

    async def toolset(self, namespace: str) -> Toolset:
        return await self._get(TOOLS, Toolset, namespace=namespace)

    async def tool(self, name: str, namespace: str) -> Document:
        return await self._get(_at(name), Document, namespace=namespace)

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        asker: Asker,
        *,
        key: str = "",
        on_output: Callable[[str], None] | None = None,
    ) -> Called:
        """See `Tooling`. A call that has a key is asked for again when the connection breaks."""
        body = {
            "arguments": arguments,
            "agent": asker.agent,
            "user": asker.identity.user if asker.identity.by else "",
            "key": key,
        }
        path = f"{_at(name)}/call"
        return await self._post(path, body, Called, namespace=asker.namespace, timeout=PATIENCE, repeatable=bool(key))

    async def test_tool(self, name: str, arguments: dict[str, Any], asker: Asker) -> Judgement:
        body = {"arguments": arguments, "agent": asker.agent, "user": asker.identity.user if asker.identity.by else ""}
        return await self._post(f"{_at(name)}/test", body, Judgement, namespace=asker.namespace, repeatable=True)

    async def offered_tools(self, server: str, namespace: str) -> list[Document]:
        """List the tools that an MCP server offers right now, compared with what was accepted."""
        path = f"{SERVERS}/{quote(server, safe='')}/tools"
        answer = await self._get(path, dict[str, list[Document]], namespace=namespace)
        return answer["tools"]

    async def accept_tool(self, server: str, tool: str, digest: str, levels: Document, *, namespace: str) -> str:
        """Agree to the definition of this digest; the name of the Tool is returned."""
        body = {"tool": tool, "digest": digest, **levels}
        path = f"{SERVERS}/{quote(server, safe='')}/accept"
        answer = await self._post(path, body, dict[str, str], namespace=namespace, timeout=PATIENCE)
        return answer["tool"]


def _at(name: str) -> str:
    return f"{TOOLS}/{quote(name, safe='')}"
