"""What people outside read of a run that waits is separate from what an operator types."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from foliot.kernel.messages import Usage
from foliot.server.runs.waits import waiting_data, waiting_text
from foliot.server.streams.pieces import Asked, Rested

KINDS = get_args(get_type_hints(Asked)["kind"])


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_for_people_outside_has_a_command_or_an_id(kind: str) -> None:
    asked = Asked(kind, "apr-1", "run-1", "call-1", "pay", "Which one?")  # type: ignore[arg-type]
    rested = Rested((asked,), "budget tenant/b is used up: `foliot budgets`", Usage())
    text, (data,) = waiting_text(rested), waiting_data(rested)["for"]

    assert text
    assert not [word for word in ("foliot", "`", "apr-1", "run-1", "call-1") if word in text]
    assert data["command"].startswith("foliot ") or kind == "call"
    assert "foliot" not in waiting_text(Rested((), rested.message, Usage()))
