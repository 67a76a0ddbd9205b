"""The exit codes mean what the table in docs/cli.md says: 2 is what was typed, 3 what is missing, 5 a manifest."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("get", "agents", "-l", "a b c"), 2),
        (("get", "agents", "--continue", "zz"), 2),
        (("approvals", "grant", "--tool", "pay", "--when", "args.a >", "--until", "1h"), 2),
        (("schedule", "next", "every day at nine"), 2),
        (("workers", "limit", "namespace", "default", "-5"), 2),
        (("apply", "-f", "nowhere.yaml"), 3),
        (("validate", "-f", "nowhere.yaml"), 3),
        (("run", "./nowhere.yaml", "hi"), 3),
        (("run", "nobody", "hi"), 3),
        (("tools", "call", "http_get", "--args", '{"url": "http://127.0.0.1/"}'), 6),
        (("alertcheck",), 1),
        (("get", "agents", "--field-selector", "spec.nosuch=1"), 2),
        (("audit", "show", "abc"), 2),
        (("context", "use", "nope"), 3),
        (("tokens", "revoke", "nope"), 3),
        (("answer", "nope", "the red one"), 3),
    ],
)
def test_exit_codes_mean_what_the_table_says(foliot, words, code):
    said = foliot(*words)

    assert said.code == code, said.err
    assert "Traceback" not in said.err


def test_what_is_not_a_store_or_a_place_for_a_backup_was_typed_wrong(foliot, tmp_path):
    (tmp_path / "notes.yaml").write_text("no store\n" * 200)

    assert foliot("--store", str(tmp_path / "notes.yaml"), "runs").code == 2
    foliot("get", "agents")
    assert foliot("backup", str(tmp_path / "nowhere" / "x.tar")).code == 2


def test_a_refusal_by_the_guard_names_the_setting_that_allows_it(foliot):
    said = foliot("tools", "call", "http_get", "--args", '{"url": "http://127.0.0.1/"}')

    assert "FOLIOT_OUTBOUND_ALLOW" in said.err


def test_a_condition_that_ends_too_early_is_told_in_words(foliot):
    said = foliot("approvals", "grant", "--tool", "pay", "--when", "args.a >", "--until", "1h")

    assert "column 9: it ends too early" in said.err
    assert "IDENTIFIER" not in said.err


def test_a_call_of_a_tool_that_nothing_runs_is_refused(foliot, tmp_path):
    spec = "{type: wasm, effect: read, description: d, runtime: {isolation_mode: none}}"
    (tmp_path / "t.yaml").write_text(f"kind: Tool\nmetadata: {{name: t}}\nspec: {spec}\n")
    foliot("apply", "-f", str(tmp_path / "t.yaml"))

    said = foliot("tools", "call", "t")

    assert said.code == 6
    assert "foliot tools list" in said.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("workers", "limit", "namespace", "default", "-5"), "-5 is below zero"),
        (("audit", "show", "abc"), "'abc' is not a whole number"),
        (("run", "nosuch", "hi"), "`foliot get agents` lists them"),
        (("context", "use", "nope"), "foliot context set NAME --server URL"),
        (("tokens", "revoke", "nope"), "foliot tokens list"),
        (("schedule", "next", "every day at nine"), '"0 9 * * MON"'),
        (("--server", "http://127.0.0.1:9", "users", "create", "a"), "works on the store itself"),
    ],
)
def test_a_message_says_what_to_do(foliot, words, says):
    assert says in foliot(*words).err


@pytest.mark.parametrize("command", [("run",), ("task", "run")])
def test_what_was_typed_is_understood_before_anything_is_stored(foliot, tmp_path, command):
    one = "kind: Agent\nmetadata: {name: %s}\nspec: {model_ref: m, prompt: p}\n"
    (tmp_path / "two.yaml").write_text(f"{one % 'first'}---\n{one % 'second'}")

    said = foliot(*command, str(tmp_path / "two.yaml"), "hi")

    assert said.code == 2
    assert "declares 2 agents" in said.err
    assert foliot("get", "agent", "first").code == 3
