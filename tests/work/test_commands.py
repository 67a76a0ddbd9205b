"""Commands: what is asked for is checked before anything is accepted."""

from __future__ import annotations

import pytest

from foliot.errors import InvalidInput
from foliot.work.tasks.base import Command
from foliot.work.tasks.commands import normalise


def test_a_session_is_not_taken_along_and_ignored() -> None:
    with pytest.raises(InvalidInput, match=r"not a turn of a session.*sessions\.say"):
        normalise(Command("agent", "clerk", message="hi", session="s-1"))
