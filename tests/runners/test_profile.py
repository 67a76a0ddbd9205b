"""Defaults, variables, adapters and lines: everything about runners that starts no program."""

from __future__ import annotations

from typing import Any

import pytest

from foliot import Agent
from foliot.engine.runners.adapters import RunnerAdapter, adapters, find_adapter, resolved_runner
from foliot.engine.runners.lines import (
    SaidCalls,
    SaidEnd,
    SaidError,
    SaidLog,
    SaidSession,
    SaidText,
    SaidUsage,
    parsed,
    read_claude_line,
    read_line,
    stripped,
)
from foliot.engine.runners.profile import (
    RunnerSpec,
    TurnFacts,
    config_name,
    default_agent_config,
    environment_of,
    folder_of,
    session_of,
)
from foliot.errors import InvalidInput
from foliot.resources.problems import ManifestError

RUNNER = RunnerSpec("command", "command", "text", ("cat",))
TURN = TurnFacts("run-1", 2, "s-1")


def test_the_defaults_are_offered_before_an_agent_is_declared() -> None:
    found = default_agent_config("clerk")

    assert (found["runner"], found["provider"]) == ("claude_code", "claude")
    assert found["workspace_dir"] == "/workspace/agents/clerk"
    assert default_agent_config("")["workspace_dir"] == "/workspace"
    for topic in (
        "{{workspace_dir}}",
        "AGENTS.md",
        "/workspace/skills",
        "/workspace/sources",
        "/workspace/tools",
        "/tmp",
    ):
        assert topic in found["system_prompt"]


@pytest.mark.parametrize(
    ("given", "runner", "provider"),
    [({}, "claude_code", "claude"), ({"provider": "CLAUDE"}, "claude_code", "claude"), ({"type": " Claude_Code "},) * 1
     + ("claude_code", "claude"), ({"command": ["cat"]}, "command", "command")],
)  # fmt: skip
def test_a_blank_runner_or_provider_is_filled_from_the_other(given: Any, runner: str, provider: str) -> None:
    found = resolved_runner(Agent("clerk", runner=given).document)

    assert found is not None
    assert (found.type, found.provider) == (runner, provider)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"type": "codex"}, 'runner "codex" is not supported'),
        ({"provider": "acme"}, 'provider "acme" is not supported'),
    ],
)
def test_what_no_adapter_offers_is_refused_by_its_name(given: Any, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        resolved_runner(Agent("clerk", runner=given).document)

    assert caught.value.message == text


def test_a_package_brings_an_adapter_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        def __init__(self, name: str, found: Any) -> None:
            self.name, self._found = name, found

        def load(self) -> Any:
            if isinstance(self._found, Exception):
                raise self._found
            return self._found

    acme = RunnerAdapter("acme", "acme", command=("acme-agent", "{prompt}"))
    other = [Entry("acme", acme), Entry("broken", ImportError()), Entry("text", "nothing"), Entry("command", acme)]
    monkeypatch.setattr("foliot.engine.runners.adapters.entry_points", lambda group: other)
    adapters.cache_clear()
    try:
        assert find_adapter("acme") is acme
        assert find_adapter("command").provider == "command", "a built-in name means the same everywhere"
        assert sorted(adapters()) == ["acme", "claude_code", "command"]
        assert resolved_runner(Agent("clerk", runner={"provider": "acme"}).document).command == acme.command
    finally:
        adapters.cache_clear()


def test_the_variables_are_those_of_the_contract() -> None:
    runner = RunnerSpec("command", "acme", "text", ("cat",), config={"maxTurns": 3, "flags": ["a"], "on": True})
    facts = TurnFacts(
        "run-1", 2, "s-1", "Be brief.", "default/t-1", "m-1", "/workspace", "nightly", "run:0", False,
        [{"name": "a.png"}], {"via": "http"}, True,
    )  # fmt: skip

    assert environment_of(runner, facts) == {
        "FOLIOT_RUN_ID": "run-1",
        "FOLIOT_RUN_ATTEMPT_ID": "run-1/2",
        "FOLIOT_ORIGIN_TASK_ID": "default/t-1",
        "FOLIOT_AGENT_SESSION_ID": "s-1",
        "FOLIOT_AGENT_PROVIDER": "acme",
        "FOLIOT_AGENT_MODEL": "m-1",
        "FOLIOT_AGENT_SYSTEM_PROMPT": "Be brief.",
        "FOLIOT_AGENT_SYSTEM_PROMPT_MODE": "append",
        "FOLIOT_AGENT_WORKSPACE_DIR": "/workspace",
        "FOLIOT_AGENT_DELIVER": "false",
        "FOLIOT_AGENT_LABEL": "nightly",
        "FOLIOT_AGENT_SPAWNED_BY": "run:0",
        "FOLIOT_AGENT_ATTACHMENTS_JSON": '[{"name":"a.png"}]',
        "FOLIOT_AGENT_INPUT_PROVENANCE_JSON": '{"via":"http"}',
        "FOLIOT_AGENT_RESUME_SESSION": "true",
        "FOLIOT_AGENT_CONFIG_MAXTURNS": "3",
        "FOLIOT_AGENT_CONFIG_FLAGS": '["a"]',
        "FOLIOT_AGENT_CONFIG_ON": "true",
    }


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("model", "MODEL"),
        ("a-b.c", "A_B_C"),
        ("__x__", "X"),
        ("é", ""),
        ("", ""),
        ("api_key", ""),
        ("GitHub-Token", ""),
    ],
)
def test_a_key_of_config_becomes_the_end_of_a_variable_and_a_credential_never_does(key: str, name: str) -> None:
    assert config_name(key) == name


def test_the_prefix_is_the_agents_choice_and_its_own_variables_never_replace_those_of_foliot() -> None:
    runner = RunnerSpec("command", "c", "text", ("cat",), env={"AIR_RUN_ID": "forged", "X": "1"}, env_prefix="AIR_")

    found = environment_of(runner, TURN)

    assert (found["AIR_RUN_ID"], found["X"]) == ("run-1", "1")


@pytest.mark.parametrize(
    "runner",
    [
        {"command": ["cat"], "env": {"GITHUB_TOKEN": "x"}},
        {"command": ["cat"], "config": {"apiKey": "x"}},
        {"command": ["sh", "-c", "echo {prompt}"]},
        {"command": ["{prompt}"]},
        {"command": ["cat", "--x", "-y{prompt}"]},
        {"command": ["cat"], "resume": ["{other}"]},
        {"command": ["cat"], "workspace_dir": "/workspace/../etc"},
        {"command": ["cat"], "env_prefix": "ld"},
        {"type": "command"},
    ],
)
def test_what_would_be_dangerous_is_refused_when_it_is_declared(runner: Any) -> None:
    with pytest.raises(ManifestError):
        Agent("clerk", runner=runner)


def test_a_model_and_a_program_exclude_each_other() -> None:
    with pytest.raises(ManifestError, match="exclude each other"):
        Agent("clerk", model="fast", runner={"command": ["cat"]})


def test_the_folder_is_the_agents_own_where_it_may_write() -> None:
    assert folder_of(RUNNER, "clerk") == "/workspace/agents/clerk"
    assert folder_of(RunnerSpec("c", "c", "text", ("cat",), workspace="read_only"), "clerk") == "/workspace"
    assert folder_of(RunnerSpec("c", "c", "text", ("cat",), workspace="none"), "clerk") == "/tmp"


def test_the_session_of_a_run_is_the_same_in_every_process() -> None:
    assert session_of("run-1") == session_of("run-1") != session_of("run-2")


# --- lines -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[1]",
        b'"x"',
        b"null",
        b"\xff\xfe",
        b'{"type": "text", "text": "\\ud800"',
        b"{" * 100_000,
        b'{"a":' * 5000,
    ],
)
def test_what_is_no_object_is_no_line(line: bytes) -> None:
    assert parsed(line) is None


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": -5, "output_tokens": -1, "cost_usd": -3},
        {"input_tokens": 10**30, "cost_usd": 1e300},
        {"input_tokens": "many", "output_tokens": True, "cost_usd": "free"},
        {},
    ],
)
def test_usage_that_cannot_be_is_none(usage: Any) -> None:
    assert read_line({"type": "usage", **usage}) == []


@pytest.mark.parametrize("read", [read_line, read_claude_line])
@pytest.mark.parametrize("kind", ["text", "session", "tool_call", "tool_calls", "question", "result", "error", "user"])
@pytest.mark.parametrize("value", [None, 7, [], {}, [[]], "x\0y", {"content": [{"type": "text", "text": 3}, 4]}])
def test_no_line_ever_raises(read: Any, kind: str, value: Any) -> None:
    fields = ("text", "id", "name", "arguments", "calls", "message", "outcome", "choices", "default", "session_id")

    for said in read({"type": kind, **dict.fromkeys(fields, value)}):
        assert "\0" not in repr(said)


def test_a_session_that_could_become_an_option_is_none() -> None:
    assert read_line({"type": "session", "id": "--dangerous"}) == [SaidLog('{"type":"session","id":"--dangerous"}')]
    assert read_line({"type": "session", "id": "abc-1"}) == [SaidSession("abc-1")]


def test_more_calls_than_anybody_means_are_a_failure() -> None:
    (said,) = read_line({"type": "tool_calls", "calls": [{"name": "x"}] * 65})

    assert isinstance(said, SaidError)
    assert isinstance(read_line({"type": "tool_calls", "calls": [{"name": "x"}] * 64})[0], SaidCalls)


def test_the_lines_of_claude_code_are_understood() -> None:
    said = [
        *read_claude_line({"type": "system", "subtype": "init", "session_id": "abc"}),
        *read_claude_line({"type": "assistant", "message": {"content": [{"type": "text", "text": "Hi"}]}}),
        *read_claude_line({"type": "result", "subtype": "success", "result": "Done.", "total_cost_usd": 0.5,
                           "usage": {"input_tokens": 5, "cache_read_input_tokens": 90, "output_tokens": 7}}),
    ]  # fmt: skip

    assert said[:2] == [SaidSession("abc"), SaidText("Hi")]
    assert isinstance(said[2], SaidUsage)
    used = said[2].usage
    assert (used.input_tokens, used.cache_read_tokens, used.output_tokens, used.cost_usd) == (95, 90, 7, 0.5)
    assert said[3] == SaidEnd("Done.")
    failed = read_claude_line({"type": "result", "subtype": "error_max_turns", "is_error": True})
    assert failed == [SaidError("error_max_turns", "error")]


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;https://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("10%\r50%\r100%\r\ndone\r\n", "100%\ndone"),
        ("abc\x08\x08\x08xyz", "xyz"),
        ("\x1b[2J\x1b[Hclean\x07\x00", "clean"),
        ("\x9b31mred", "red"),
        ("\x1b", ""),
    ],
)
def test_what_only_a_terminal_understands_is_left_out(raw: str, plain: str) -> None:
    assert stripped(raw) == plain
