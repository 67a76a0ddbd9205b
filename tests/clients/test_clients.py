"""The clients that the tests have at hand do every cell of the table, and the table in the docs is what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients import table
from tests.clients.world import world

BUNDLED = [name for name, client in table.CLIENTS.items() if client.bundled]
CELLS = {f"{api}.{feature}" for api in table.APIS for feature in table.FEATURES}


@pytest.mark.parametrize("name", BUNDLED)
async def test_a_client_does_every_cell(name: str, tmp_path: Path) -> None:
    async with world(tmp_path) as address:
        found = await table.try_client(name, address)

    assert found["cells"].keys() == CELLS
    assert {cell: told for cell, told in found["cells"].items() if told != "right"} == {}


def test_the_page_is_what_the_last_run_of_all_clients_found() -> None:
    results = json.loads(table.RESULTS.read_text())

    assert results.keys() == table.CLIENTS.keys()
    assert all(found["cells"].keys() == CELLS for found in results.values())
    assert table.DOCS.read_text() == table.render(results), "`make clients` writes it; nobody else does"


def test_the_versions_are_those_that_are_installed_by_make_clients() -> None:
    results = json.loads(table.RESULTS.read_text())
    pinned: dict[str, str] = {}
    for file in (table.HERE / "requirements").glob("*.txt"):
        pins = dict(line.split("==") for line in file.read_text().split() if "==" in line)
        pinned[file.stem] = pins[file.stem]
    npm = json.loads((table.HERE / "vercel" / "package.json").read_text())["dependencies"]
    pinned["vercel-ai"] = npm["ai"]

    assert pinned.keys() | set(BUNDLED) == table.CLIENTS.keys()
    assert {name: results[name]["version"] for name in pinned} == pinned
