"""Somebody may send a hundred thousand fields that do not exist; to guess what each was meant to be takes time."""

from __future__ import annotations

from typing import Any

import pytest

from foliot.resources import validate as explain
from foliot.resources.validate import validate_document


def test_only_the_first_of_many_unknown_fields_are_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    guessed = 0
    suggest = explain.suggest

    def counted(*given: Any) -> str | None:
        nonlocal guessed
        guessed += 1
        return suggest(*given)

    monkeypatch.setattr(explain, "suggest", counted)
    unknown = {f"k{number}": number for number in range(5000)}

    made, problems = validate_document(
        {"kind": "Agent", "metadata": {"name": "a"}, "spec": {"model_ref": "m"}, **unknown}
    )

    assert made is None
    assert guessed == len(problems) == explain.MOST_EXPLAINED
    assert problems[0].message == 'unknown field "k0"'
