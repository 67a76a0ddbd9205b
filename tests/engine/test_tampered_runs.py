"""Every verb says of a run that somebody changed in the store that it was changed, however it was."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

from foliot import Agent, Runtime, ScriptedModel, parse_manifests
from foliot.store.journal.chain import JournalChanged

CLERK = Agent("clerk", model=ScriptedModel({"otherwise": {"say": "I heard {input}"}}))
CHANGES = {
    "UPDATE event SET data = x'01' || 'garbage' WHERE seq = 3": 3,
    "UPDATE event SET data = x'' WHERE seq = 3": 3,
    "UPDATE event SET data = x'02' || data WHERE seq = 3": 3,
    "UPDATE event SET data = 'a text' WHERE seq = 3": 3,
    "UPDATE event SET data = 7 WHERE seq = 3": 3,
    "UPDATE event SET type = 'tool.failed' WHERE seq = 3": 3,
    "UPDATE event SET at = 'yesterday' WHERE seq = 3": 3,
    "UPDATE event SET link = 'a text' WHERE seq = 3": 3,
    "UPDATE event SET data = x'03' || 'garbage' WHERE seq = 1": 1,
    "UPDATE run_pin SET data = 'a text'": 1,
    "UPDATE run_pin SET data = CAST(replace(CAST(data AS TEXT), 'clerk', 'clork') AS BLOB)": 1,
    "DELETE FROM run_pin": 1,
    "UPDATE run SET pin = 0": 1,
    "UPDATE run_pin SET spec = 'sha256:other'": 0,
}


@pytest.mark.parametrize(("change", "seq"), CHANGES.items())
async def test_every_verb_says_that_a_run_was_changed_in_the_store(change: str, seq: int, tmp_path: Path) -> None:
    path = tmp_path / "foliot.db"
    async with Runtime(str(path)) as runtime:
        await runtime.inside.run(CLERK, "hello", run_id="r1")
        assert (await runtime.runs.replay("r1")).difference is None
    store: Any = apsw.Connection(str(path))
    store.execute(change)
    assert store.changes() > 0
    store.close()

    said = f"event {seq} is not what was recorded" if seq else "its definition is not the one that event 1 has recorded"
    async with Runtime(str(path)) as runtime:
        verbs = {
            "replay": lambda: runtime.runs.replay("r1"),
            "why": lambda: runtime.runs.why("r1"),
            "fork": lambda: runtime.inside.fork("r1", at=1),
            "resume": lambda: runtime.resume("r1"),
            **({"trace": lambda: runtime.runs.trace("r1")} if seq else {}),
        }
        for verb, ask in verbs.items():
            with pytest.raises(JournalChanged, match=said) as told:
                await ask()
            assert told.value.exit_code == 1, verb


ASKS_BELOW = """
kind: ModelEndpoint
metadata: {name: outer}
spec: {provider: scripted, default_model: m, script: [{call: {"agent:inner": {input: go}}}, {say: done}]}
---
kind: ModelEndpoint
metadata: {name: inner}
spec: {provider: scripted, default_model: m, script: [{call: {ask_user: {question: "Which day?"}}}, {say: done}]}
---
kind: Agent
metadata: {name: inner}
spec: {model_ref: inner, tools: [ask_user]}
---
kind: Agent
metadata: {name: outer}
spec: {model_ref: outer, tools: ["agent:inner"]}
"""


@pytest.mark.parametrize("place", ["= 'r1'", "<> 'r1'"], ids=["of the run", "of its sub-run"])
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE event SET at = at + 1 WHERE seq = 3 AND run IN (SELECT key FROM run WHERE id {})",
        "DELETE FROM event WHERE seq = 3 AND run IN (SELECT key FROM run WHERE id {})",
        "UPDATE run SET pin = 0 WHERE id {}",
        "DELETE FROM run WHERE id {}",
    ],
)
async def test_a_run_that_was_changed_is_listed_with_all_others(change: str, place: str, tmp_path: Path) -> None:
    """Also when it is only the run below that was, which its parent is waiting for."""
    path = tmp_path / "foliot.db"
    async with Runtime(str(path)) as runtime:
        await runtime.resources.apply(parse_manifests(ASKS_BELOW))
        await runtime.runs.start("outer", "go", run_id="r1")
        async with asyncio.timeout(60):
            while (await runtime.runs.get("r1")).asking == ():
                await asyncio.sleep(0.01)
    store: Any = apsw.Connection(str(path))
    left = {row[0] for row in store.execute("SELECT id FROM run")}
    assert len(left) == 2
    store.execute(change.format(place))
    assert store.changes() > 0
    left = {row[0] for row in store.execute("SELECT id FROM run")}
    store.close()

    async with Runtime(str(path)) as runtime:
        assert {info.id for info in await runtime.runs.list()} == left
        assert {info.id for info in await runtime.runs.interrupted()} <= left
        if "<>" in place:
            assert (await runtime.runs.get("r1")).info.id == "r1"
