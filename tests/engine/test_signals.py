"""What somebody gives and JSON cannot carry is refused where it is given, and nothing is stored of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from foliot.engine.driver.journal import signal
from foliot.engine.driver.runs import user_message
from foliot.errors import InvalidInput, NotFound
from foliot.kernel.run.events import InputReceived
from tests.engine.kit import Engine, in_turn, says

HALF = "half of a pair: \ud83d"


@pytest.mark.parametrize("where", ["input", "history", "prompt"])
async def test_a_run_of_what_cannot_be_stored_does_not_begin(where: str) -> None:
    engine = Engine(in_turn(says("never asked for")))
    spec = replace(engine.spec, system=HALF) if where == "prompt" else engine.spec
    said = {part: (user_message(HALF if part == where else "go"),) for part in ("input", "history")}

    with pytest.raises(InvalidInput, match="run r1 cannot be stored") as caught:
        await engine.runs.start(spec, said["input"], run_id="r1", history=said["history"])

    assert "surrogate" in (caught.value.hint or "")
    with pytest.raises(NotFound):
        await engine.journal.get("r1")
    await engine.close()


def test_what_cannot_be_stored_cannot_be_said_to_a_run() -> None:
    with pytest.raises(InvalidInput, match="what is said to run r1"):
        signal("r1", InputReceived("i1", user_message(HALF)), 1.0)
