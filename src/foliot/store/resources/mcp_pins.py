"""The table of agreements about tools of MCP servers: read, and written together with the Tools.

Only Foliot's own parts write it: a sync, an acceptance, a change of a generated Tool by somebody who may lower what was
agreed to, and the end of a generated Tool, which leaves behind what people raised and set in it. All of them hold the
lock of the revision, so that what is written was decided on what is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from foliot.errors import Conflict, NotFound
from foliot.resources.agreed import Agreed, Levels, check_declared, read_kept, tool_of_server
from foliot.store.base import Database, Document, Key, ResourceStore, Written
from foliot.store.transaction import Row, Tx, many, rows

KIND: Final = "Tool"


async def read_agreed(database: Database, namespace: str, server: str = "", tool: str = "") -> list[Agreed]:
    """Read the records of one tool of a server, or, without a server, of all servers of a namespace."""
    if server:
        found = await database.read("mcp_pin_get", namespace=namespace, server=server, tool=tool)
    else:
        found = await database.read("mcp_pin_list", namespace=namespace)
    return [_agreed(row) for row in found]


async def held_tools(store: ResourceStore, namespace: str) -> list[Agreed]:
    """The tools of the servers of a namespace that wait for somebody to accept them, without those that are gone."""
    held = [row for row in await store.agreed(namespace) if row.held]
    found: list[Agreed] = []
    for server in sorted({row.server for row in held}):
        try:
            status: dict[str, Any] = (await store.get(Key("McpServer", namespace, server))).get("status") or {}
        except NotFound:
            continue
        discovered: list[dict[str, Any]] = status.get("discoveredTools") or []
        gone = {each.get("name") for each in discovered if each.get("state") == "gone"}
        found += [row for row in held if row.server == server and row.tool not in gone]
    return found


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


class ToolWrite(NamedTuple):
    """A Tool that a batch changes: as it was and as it is then, None when it is not there.

    `judged`: somebody other than Foliot itself declares it, who may lower what was agreed to when `may_lower`.
    """

    before: Document | None
    after: Document | None
    judged: bool = False
    may_lower: bool = False


def check_tools(writes: Sequence[ToolWrite]) -> Tx[None]:
    """Hold the Tools of a batch against what was agreed to about them, in the transaction that stores them.

    A Tool that goes away, or becomes one of something else, leaves behind how strict it was and what people set in it:
    that holds for the next one too, whoever took it away (a server that left its tool out of one listing, a deletion,
    or the end of its McpServer). One query reads what the whole batch needs. Raises `Denied`.
    """
    if not writes:
        return
    found = yield from rows("mcp_pins_of", **_about([each for write in writes for each in write[:2] if each]))
    if not found:
        return
    agreed = {each.place: each for each in map(_agreed, found)}
    named = {(each.namespace, each.name): place for place, each in agreed.items() if each.name}
    changed: dict[tuple[str, str, str], Agreed] = {}
    for before, after, judged, may_lower in writes:
        if judged and after is not None:
            places = dict.fromkeys((tool_of_server(after), named.get(_home(after))))
            about = [agreed[place] for place in places if place in agreed]
            if (now := check_declared(before, after, about, may_lower=may_lower)) is not None:
                agreed[now.place] = changed[now.place] = now
        if before is not None and (left := _left(before, after, agreed, named)) is not None:
            agreed[left.place] = changed[left.place] = left
    yield from many("mcp_pin_put", [_row(each) for each in changed.values()])


def _left(
    before: Document,
    after: Document | None,
    agreed: Mapping[tuple[str, str, str], Agreed],
    named: Mapping[tuple[str, str], tuple[str, str, str]],
) -> Agreed | None:
    """The record of a generated Tool that goes away; None when it stays, or there is nothing new to keep of it."""
    place = tool_of_server(before)
    if place is None or named.get(_home(before)) != place or (after is not None and tool_of_server(after) == place):
        return None
    row, levels = agreed[place], Levels.of(before["spec"])
    now = row.with_levels(row.levels.stricter(levels) if row.levels.below(levels) else row.levels).keeping(before)
    return now if now != row else None


def _home(document: Mapping[str, Any]) -> tuple[str, str]:
    metadata = document["metadata"]
    return metadata.get("namespace") or "default", metadata["name"]


def _about(documents: Sequence[Document]) -> dict[str, str]:
    """Name what may be kept about Tools. It is more than is: which of it holds is seen when it is read."""
    places = {place for each in documents if (place := tool_of_server(each)) is not None}
    homes = {_home(each) for each in documents}
    # A NUL is in no name that is kept, and PostgreSQL takes none.
    wanted = {
        "namespaces": {each[0] for each in places},
        "servers": {each[1] for each in places},
        "tools": {each[2].replace("\0", "?") for each in places},
        "homes": {each[0] for each in homes},
        "names": {each[1] for each in homes},
    }
    return {name: json.dumps(sorted(texts)) for name, texts in wanted.items()}


def _agreed(row: Row) -> Agreed:
    place = (row["namespace"], row["server"], row["tool"])
    levels, kept = Levels.read(row["levels"]), read_kept(row["levels"])
    return Agreed(*place, row["name"], row["pin"], row["definition"], levels, row["held"], kept)


def _row(agreed: Agreed) -> dict[str, Any]:
    return {
        "namespace": agreed.namespace,
        "server": agreed.server,
        "tool": agreed.tool,
        "name": agreed.name,
        "pin": agreed.pin,
        "definition": agreed.definition,
        "levels": agreed.levels.text(agreed.kept),
        "held": agreed.held,
    }
