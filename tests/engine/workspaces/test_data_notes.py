"""Tools that write files tell a model of `data/` where that is kept for its user, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.definition.backends import can_fence
from foliot.kernel.messages import ModelRequest

NOTE = "Files in data/ are kept for the user"


async def told(rt: Runtime, tools: list[Any], **spec: Any) -> dict[str, bool]:
    """Whether the description of each tool that a model was asked with tells of `data/`."""
    asked: list[ModelRequest] = []

    def play(request: ModelRequest) -> str:
        asked.append(request)
        return "done"

    await rt.run(Agent("helper", model=ScriptedModel(play), tools=tools, **spec), "go")
    return {each.name: NOTE in each.description for each in asked[0].tools}


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "foliot.db")


async def test_tools_that_write_files_tell_of_data(store: str) -> None:
    async with Runtime(store) as rt:
        assert await told(rt, ["write", "read", "glob"]) == {"write": True, "read": False, "glob": False}
        assert await told(rt, ["write_file"]) == {"write_file": True}


@pytest.mark.skipif(not can_fence(), reason="programs cannot be fenced here")
async def test_commands_and_code_tell_of_data_and_how_it_is_made(store: str) -> None:
    async with Runtime(store) as rt:
        assert await told(rt, ["bash", "python"]) == {"bash": True, "python": True}


@pytest.mark.parametrize(
    "rules", [{"data": "none"}, {"access": "read_only"}, {"access": "none"}, {"mode": "run", "data": "none"}]
)
async def test_an_agent_that_keeps_no_data_is_not_told_of_it(store: str, rules: dict[str, Any]) -> None:
    async with Runtime(store) as rt:
        assert await told(rt, ["write"], workspace=rules) == {"write": False}


async def test_an_agent_with_a_source_is_told_of_it_when_it_says_so(store: str, tmp_path: Path) -> None:
    source = str(tmp_path)
    async with Runtime(store) as rt:
        assert await told(rt, ["write"], workspace={"source": source}) == {"write": False}
        assert await told(rt, ["write"], workspace={"source": source, "data": "user"}) == {"write": True}


async def test_nothing_is_kept_in_a_shared_workspace(store: str, tmp_path: Path) -> None:
    async with Runtime(store, workspace=tmp_path) as rt:
        assert await told(rt, ["write"]) == {"write": False}
        assert await told(rt, ["write"], workspace={"mode": "run"}) == {"write": True}


async def test_a_tool_of_somebody_else_under_the_same_name_says_what_its_author_wrote(store: str) -> None:
    @tool
    async def write(path: str) -> str:
        """Write it down."""
        return path

    async with Runtime(store) as rt:
        assert await told(rt, [write]) == {"write": False}


async def test_what_a_model_writes_to_data_needs_no_folder_there(store: str) -> None:
    call = {"call": {"write": {"path": "data/notes/a.md", "content": "kept"}}}
    async with Runtime(store) as rt:
        await rt.run(Agent("helper", model=ScriptedModel([call, {"say": "ok"}]), tools=["write"]), "go")
        read = [{"call": {"read": {"path": "data/notes/a.md"}}}, {"say": "{last_result}"}]
        result = await rt.run(Agent("helper", model=ScriptedModel(read), tools=["read"]), "go")
    assert "kept" in result.output
