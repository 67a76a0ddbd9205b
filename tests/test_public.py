"""What programs may import, pinned: names, where they are, and that docs and examples need no more."""

from __future__ import annotations

import asyncio
import builtins
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import foliot
from foliot import Agent, Runtime, ScriptedModel, UsageError
from foliot.runtime.groups import sessions, store, work

ROOT = Path(__file__).parents[1]
# Besides `foliot` itself. Everything else is inside, and may be moved.
NAMED = ("foliot.errors", "foliot.testing", "foliot.cli.main")
PUBLIC = """
Accepted Agent Answered Applied AuditFilter AuditRecord Batch Budgets CallResult Called Change ChannelDelivery
ChannelLink ChatEvent ClassInfo Client
Command Document Doubt DoubtPage Event Explanation Fate FieldConflict Filter Fired FoliotError Fork Found Hook
HookAct HookBlock HookChange InUse Input Invocation
Judgement Limit Live ManifestError Media Message ModelEndpoint ModelError ModelResponse OpenQuestion Outcome Output
Page PolicyAnswer PolicyQuestion Question Recorded Replayed Requirement Requirements ResultPage RuleDefaults
RunFailedError RunHeld RunInfo RunInput RunOptions RunResult RunStanding RunTaken Runtime SchemaMismatch ScriptedModel
Said Sent Session Settings Slot StepFiles Streamed
Taken TaskExplanation TaskInfo TaskRecord TaskStory Text ToolCall ToolError ToolResult Toolset Total Trace
TurnOptions TurnView Usage
UsageError Verified WebhookDelivery WorkerInfo WorkspaceTree __version__ chat_events events load_settings log_line
outlives_call
parse_manifests read_presets tool hook
"""


def test_the_public_names_are_these() -> None:
    assert sorted(PUBLIC.split()) == sorted(foliot.__all__) == dir(foliot)
    for name in foliot.__all__:
        assert getattr(foliot, name) is not None


@pytest.mark.parametrize("module", [sessions, store, work])
def test_whatever_a_verb_returns_can_be_named(module: ModuleType) -> None:
    known = {*foliot.__all__, *dir(builtins), "Rows", "AsyncGenerator", "Sequence"}
    for group in vars(module).values():
        if inspect.isclass(group) and group.__module__ == module.__name__:
            for verb in vars(group).values():
                returned = inspect.get_annotations(verb).get("return", "") if inspect.isfunction(verb) else ""
                assert {*re.findall(r"\w+", returned)} - known == set(), f"{group.__name__}.{verb.__name__}"


def pages() -> list[Path]:
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    return [path for path in found if "decisions" not in path.parts]


@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_that_people_read_imports_from_inside(page: Path) -> None:
    imported = re.findall(r"^\s*(?:from|import) (foliot(?:\.\w+)+)", page.read_text(encoding="utf-8"), re.MULTILINE)

    assert [name for name in imported if not name.startswith(NAMED)] == []


@pytest.mark.parametrize("name", ["run", "run_sync", "stream"])
def test_a_method_that_agents_have_elsewhere_says_what_to_write(name: str) -> None:
    agent = Agent("clerk", model=ScriptedModel([{"say": "hi"}]))

    with pytest.raises(AttributeError, match=r"await rt\.run\(agent"):
        getattr(agent, name)
    assert not hasattr(agent, "nonsense")


def test_a_program_without_an_event_loop_runs_an_agent(tmp_path: Path) -> None:
    agent = Agent("clerk", model=ScriptedModel([{"say": "hi"}]))

    assert Runtime(tmp_path / "runs.db").run_sync(agent, "Hello").output == "hi"


async def test_inside_an_event_loop_it_says_to_await() -> None:
    agent = Agent("clerk", model=ScriptedModel([{"say": "hi"}]))
    assert asyncio.get_running_loop() is not None

    with pytest.raises(UsageError, match="event loop"):
        Runtime("memory:").run_sync(agent, "Hello")
