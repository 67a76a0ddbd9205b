"""Tokens of older stores get names that no account has, and no other token."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import apsw
import pytest

import foliot.store

MIGRATIONS = Path(foliot.store.__file__).parent / "migrations"


@pytest.mark.parametrize("names", list(permutations(["ann", "token:ann", "token:token:ann", "ci"])))
def test_a_name_that_is_taken_is_not_given_twice(names: tuple[str, ...]) -> None:
    database = apsw.Connection(":memory:")
    database.execute((MIGRATIONS / "0010_auth.sql").read_text())
    database.execute("CREATE TABLE user_account (name TEXT)")
    database.execute("INSERT INTO user_account VALUES ('ann')")
    for number, name in enumerate(names):
        database.execute(
            "INSERT INTO api_token VALUES (?, ?, 'd', '[]', '[]', 0, '', NULL, NULL, NULL)", (f"id{number}", name)
        )
    database.execute((MIGRATIONS / "0014_token_owners.sql").read_text())

    found = [name for (name,) in database.execute("SELECT name FROM api_token")]
    assert len(set(found)) == len(names)
    assert "ann" not in found
    assert "ci" in found
