"""`foliot sessions` on a store: what it marks stale for whom, and what it says of bad names."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Foliot


def invalidated(foliot: Foliot) -> list[dict[str, object]]:
    said = foliot("audit", "list", "-o", "json")
    assert said.code == 0, said.err
    return [each for each in json.loads(said.out) if each["outcome"] == "sessions_invalidated"]


def test_what_is_warm_for_a_user_is_invalidated(foliot: Foliot) -> None:
    said = foliot("sessions", "invalidate", "--user", "ann")
    assert (said.code, said.out) == (0, "the next turns of ann are built anew\n")
    assert [each["resource"] for each in invalidated(foliot)] == [{"kind": "User", "name": "ann"}]


def test_without_a_name_it_is_for_the_caller(foliot: Foliot) -> None:
    said = foliot("sessions", "invalidate")
    assert (said.code, said.out) == (0, "the next turns of your sessions are built anew\n")
    assert len(invalidated(foliot)) == 1


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mann"])
def test_a_name_that_is_none_is_refused_and_nothing_is_recorded(foliot: Foliot, name: str) -> None:
    said = foliot("sessions", "invalidate", "--user", name)
    assert said.code != 0
    assert "\x1b" not in said.err
    assert "Traceback" not in said.err
    assert invalidated(foliot) == []
