"""Names that the API has taken: found in the table of routes, refused for what is new, readable where stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from foliot import Client, Command, Runtime
from foliot.errors import InvalidInput
from foliot.resources.kinds import KINDS
from foliot.resources.references import TAKEN_NAMES
from foliot.server.route_table import ROUTES
from foliot.store.resources import changes
from foliot.testing.served import served

MEMORY = {"kind": "Memory", "metadata": {"name": "watch"}, "spec": {}}


def taken() -> set[str]:
    """The words that are written out where a path of the same method has the name of a resource, a task or a run."""
    plurals = {kind.plural for kind in KINDS.values()}
    found: set[str] = set()
    for method, path in ROUTES:
        words = path.split("/")
        for other_method, other in ROUTES:
            others = other.split("/")
            if method != other_method or len(words) != len(others) or len(words) < 4 or not others[3].startswith("{"):
                continue
            fits = all(
                a == b or b.startswith("{") or a.startswith("{") for a, b in zip(words[3:], others[3:], strict=True)
            )
            first = {words[2], others[2]}
            same = len(first) == 1 or ("{kind}" in first and first - {"{kind}"} <= plurals)
            if fits and same and not words[3].startswith("{"):
                found.add(words[3])
    return found


def test_every_word_of_a_path_that_stands_where_a_name_may_stand_is_taken() -> None:
    # The number of a record is no name.
    assert taken() - {"totals", "export", "verify"} == TAKEN_NAMES


async def test_what_is_new_is_not_called_so_and_what_is_stored_can_be_read_changed_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime(tmp_path / "foliot.db") as runtime:
        monkeypatch.setattr(changes, "TAKEN_NAMES", frozenset())  # as an older version stored it
        await runtime.resources.apply([MEMORY])
        monkeypatch.undo()
    async with served(tmp_path) as url, Client(url, home=tmp_path) as client:
        assert (await client.resources.get("Memory", "watch"))["metadata"]["name"] == "watch"
        again = await client.resources.apply([{**MEMORY, "spec": {"type": "vector"}}])
        assert again.outcomes[0].action == "updated"
        await client.resources.delete("Memory", "watch")
        with pytest.raises(InvalidInput, match="cannot be called 'watch'"):
            await client.resources.apply([MEMORY])
        with pytest.raises(InvalidInput, match="cannot be called 'watch'"):
            await client.tasks.submit(Command("agent", "a", message="x", name="watch"))
