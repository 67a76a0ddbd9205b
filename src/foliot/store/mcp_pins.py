"""The table of agreements about tools of MCP servers: read, and written together with the Tools.

Only Foliot's own parts write it: a sync, an acceptance, a change of a generated Tool by somebody who may lower what was
agreed to, and the end of a generated Tool, which leaves behind what people raised in it. All of them hold the lock of
the revision, so that what is written was decided on what is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from foliot.errors import Conflict
from foliot.resources.agreed import Agreed, Levels, check_declared, tool_of_server
from foliot.store.base import Database, Document, Written
from foliot.store.transaction import Row, Tx, many, rows

KIND: Final = "Tool"


async def read_agreed(database: Database, namespace: str, server: str = "", tool: str = "") -> list[Agreed]:
    """Read the records of one tool of a server, or, without a server, of all servers of a namespace."""
    if server:
        found = await database.read("mcp_pin_get", namespace=namespace, server=server, tool=tool)
    else:
        found = await database.read("mcp_pin_list", namespace=namespace)
    return [_agreed(row) for row in found]


def keep_agreed(seen: Sequence[Agreed], now: Sequence[Agreed], written: Sequence[Written]) -> Tx[None]:
    """Store `now`, which was decided on what was `seen`, in the transaction that writes the Tools.

    Raises `Conflict` when somebody has agreed to something else meanwhile.
    """
    before = {each.place: each for each in seen}
    changed = [each for each in now if before.get(each.place) != each]
    for namespace in sorted({each.namespace for each in changed}):
        found = yield from rows("mcp_pin_list", namespace=namespace)
        there = {each.place: each for each in map(_agreed, found)}
        for each in changed:
            if each.namespace == namespace and there.get(each.place) != before.get(each.place):
                raise Conflict(
                    f"somebody has just agreed to another definition of {each.tool!r} of MCP server {each.server!r}",
                    hint="look at it again",
                )
    yield from many("mcp_pin_put", [_row(each) for each in changed])


def check_tool(before: Document | None, after: Document, *, may_lower: bool) -> Tx[None]:
    """Check a Tool in the transaction that stores it over `before`: see `resources/agreed.py`. Raises `Denied`."""
    found = yield from rows("mcp_pin_of", **_about(after))
    if found:
        now = check_declared(before, after, [_agreed(row) for row in found], may_lower=may_lower)
        yield from many("mcp_pin_put", [_row(now)] if now is not None else [])


def keep_levels(before: Document, after: Document | None) -> Tx[None]:
    """Keep how strict a Tool was, in the transaction that deletes it or makes it one of something else.

    What people raised in the Tool that was generated for a tool holds for the next one too, whoever took it away: a
    server that left its tool out of one listing, a deletion, or the end of its McpServer.
    """
    place = tool_of_server(before)
    if place is None or (after is not None and tool_of_server(after) == place):
        return
    metadata, levels = before["metadata"], Levels.of(before["spec"])
    found = yield from rows("mcp_pin_of", **_about(before))
    for each in map(_agreed, found):
        own = (each.namespace, each.name) == (metadata.get("namespace") or "default", metadata["name"])
        if own and each.place == place and each.levels.below(levels):
            yield from many("mcp_pin_put", [_row(each.with_levels(each.levels.stricter(levels)))])


def _about(document: Mapping[str, Any]) -> dict[str, str]:
    metadata = document["metadata"]
    namespace, server, tool = tool_of_server(document) or ("", "", "")
    home = metadata.get("namespace") or "default"
    # A NUL is in no name that is kept, and PostgreSQL takes none.
    return {
        "namespace": namespace,
        "server": server,
        "tool": tool.replace("\0", "?"),
        "home": home,
        "name": metadata["name"],
    }


def _agreed(row: Row) -> Agreed:
    place = (row["namespace"], row["server"], row["tool"])
    return Agreed(*place, row["name"], row["pin"], row["definition"], Levels.read(row["levels"]), row["held"])


def _row(agreed: Agreed) -> dict[str, Any]:
    return {
        "namespace": agreed.namespace,
        "server": agreed.server,
        "tool": agreed.tool,
        "name": agreed.name,
        "pin": agreed.pin,
        "definition": agreed.definition,
        "levels": agreed.levels.text(),
        "held": agreed.held,
    }
