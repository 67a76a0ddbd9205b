"""Defaults, variables, adapters and lines: everything about runners that starts no program."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_a_blank_text_of_config_is_a_variable_and_null_is_none() -> None:
    runner = RunnerSpec("command", "c", "text", ("cat",), config={"suffix": "", "none": None, "zero": 0, "off": False})

    found = {name: value for name, value in environment_of(runner, TURN).items() if "_CONFIG_" in name}

    assert found == {
        "FOLIOT_AGENT_CONFIG_" + name: value for name, value in [("SUFFIX", ""), ("ZERO", "0"), ("OFF", "false")]
    }


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


_TYPES = (
    *("text", "log", "session", "tool_call", "tool_calls", "question", "usage", "result", "error", "system"),
    *("assistant", "user", "stream_event", "x"),
)
_FIELDS = (
    *("text", "id", "name", "arguments", "calls", "message", "outcome", "choices", "default", "session_id"),
    *("input_tokens", "output_tokens", "cost_usd", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens"),
    *("total_cost_usd", "usage", "result", "is_error", "subtype", "content", "input"),
)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(_TYPES)
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from([*_FIELDS, "type"]) | st.text()
    return st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=6)


_VALUES = st.recursive(_LEAVES, _containers, max_leaves=12)


def _texts(said: Any) -> list[str]:
    """All texts in what a line means, each of which is stored."""
    found = msgspec.to_builtins(said)
    if isinstance(found, dict):
        return _texts(list(found.values()))
    return (
        [found]
        if isinstance(found, str)
        else [text for each in found for text in _texts(each)]
        if isinstance(found, list)
        else []
    )


@pytest.mark.parametrize("read", [read_line, read_claude_line])
@given(kind=st.sampled_from(_TYPES) | _VALUES, fields=st.dictionaries(st.sampled_from(_FIELDS), _VALUES))
def test_no_line_ever_raises(read: Any, kind: Any, fields: dict[str, Any]) -> None:
    line = parsed(json.dumps({"type": kind, **fields}).encode())

    assert line is None or all("\0" not in text for text in _texts(read(line)))


@pytest.mark.parametrize("read", [read_line, read_claude_line])
@pytest.mark.parametrize("value", [["x"], {"x": 1}, 10**400, -(10**400), 1e308, "x\0y", True, None, [[]], [{}]])
@pytest.mark.parametrize("kind", _TYPES)
def test_every_field_of_every_line_takes_any_value(read: Any, kind: str, value: Any) -> None:
    for field in _FIELDS:
        assert all("\0" not in text for text in _texts(read({"type": kind, "name": "look", field: value})))


@pytest.mark.parametrize("read", [read_line, read_claude_line])
@pytest.mark.parametrize("field", ["x", "arguments", "id", "calls", "input", "message"])
def test_no_depth_is_read_that_cannot_be_written(read: Any, field: str) -> None:
    for kind in ("nobody", "tool_call", "assistant"):
        for depth in (1, 64, *range(980, 1010)):
            head = f'{{"type":"{kind}","name":"look","{field}":'
            line = parsed(f"{head}{'[' * depth}{']' * depth}}}".encode())
            assert line is None or all(len(repr(each)) < 5_000 for each in read(line))
            assert (line is None) == (depth > 900)


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
