"""A well-behaved server made with the SDK, of the current revision. `sample.py stdio`, or `sample.py http PORT`."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

PIXEL = base64.b64encode(b"\x89PNG pixel").decode()
server = MCPServer("sample", version="1.2.3")
cancelled: list[str] = []


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=False))
def environment() -> dict[str, str]:
    """What the server finds in its environment."""
    return dict(os.environ)


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def fail(reason: str) -> str:
    """Always fails."""
    raise ValueError(reason)


@server.tool()
async def slow(name: str) -> str:
    """Never answers; remembers that it was cancelled."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.append(name)
        raise
    return "unreachable"


@server.tool()
def was_cancelled() -> list[str]:
    """The names of the slow calls that were cancelled."""
    return cancelled


@server.tool()
async def count(ctx: Context, to: int) -> str:
    """Reports progress."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"step {number}")
    return "counted"


@server.tool()
async def talk(ctx: Context) -> str:
    """Logs something."""
    await ctx.info("a word in between")
    return "talked"


@server.tool()
async def ask(ctx: Context) -> str:
    """Wants to ask the user something."""
    from pydantic import BaseModel

    class Answer(BaseModel):
        name: str

    answer = await ctx.elicit("What is your name?", Answer)
    return f"answered: {answer.action}"


@server.tool()
def everything() -> CallToolResult:
    """A result of every kind of content."""
    return CallToolResult(
        content=[
            TextContent(text="words"),
            ImageContent(data=PIXEL, mime_type="image/png"),
            EmbeddedResource(resource=TextResourceContents(uri="note://1", text="a note", mime_type="text/plain")),
            EmbeddedResource(resource=BlobResourceContents(uri="file:///a.bin", blob=PIXEL)),
            ResourceLink(name="page", uri="https://example.com/page", description="a page"),
        ],
        structured_content={"answer": 42},
    )


@server.tool()
async def learn(ctx: Context, name: str, description: str) -> str:
    """Offer another tool from now on, or describe one differently."""

    def learned(text: str = "") -> str:
        return f"{name}: {text}"

    if any(tool.name == name for tool in await server.list_tools()):
        server.remove_tool(name)
    server.add_tool(learned, name=name, description=description)
    await tell(ctx)
    return "learned"


@server.tool()
async def unlearn(ctx: Context, name: str) -> str:
    """Offer a tool no more."""
    server.remove_tool(name)
    await tell(ctx)
    return "unlearned"


async def tell(ctx: Context) -> None:
    await ctx.notify_tools_changed()


def main(arguments: list[str]) -> Any:
    if arguments[0] == "stdio":
        return server.run("stdio")
    return server.run("streamable-http", host="127.0.0.1", port=int(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
