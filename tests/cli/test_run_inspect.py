"""Looking at runs and acting on them: runs, trace, why, replay, fork, resume, cancel, decide."""

from __future__ import annotations

import json

import pytest

MANIFEST = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: brain}
spec:
  provider: scripted
  default_model: scripted
  script:
    - {say: "First.", call: {nothing_like_it: {}}}
    - {say: "You said {input}, and I am told: {system}"}
---
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: other}
spec: {provider: scripted, default_model: other, script: [{say: "Other.", repeat: 9}]}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: writer}
spec: {model_ref: brain, prompt: Be kind.}
"""


@pytest.fixture
def writer(foliot, tmp_path):
    path = tmp_path / "writer.yaml"
    path.write_text(MANIFEST)
    said = foliot("run", path, "hello", "--id", "run-1")
    assert (said.code, said.out) == (0, "You said hello, and I am told: Be kind.\n"), said.err
    return path


def test_runs_are_listed_newest_first_whatever_their_ids(foliot, writer):
    foliot("run", "writer", "again", "--id", "a-run")
    foliot("run", "writer", "again", "--id", "z-run")
    foliot("run", "writer", "again", "--id", "b-run")

    assert foliot("runs", "-o", "name").out.split() == ["b-run", "z-run", "a-run", "run-1"]
    assert foliot("runs", "-o", "name", "--limit", "1").out.split() == ["b-run"]


def test_the_table_of_runs_says_how_each_stands(foliot, writer):
    headings, row = foliot("runs").out.splitlines()

    assert headings.split() == ["RUN", "AGENT", "PHASE", "STEPS", "TOKENS", "COST", "AGE", "LAST"]
    assert row.split()[:4] == ["run-1", "writer", "succeeded", "2"]
    assert "You said hello" in row
    assert foliot("runs", "-o", "wide").out.splitlines()[0].split()[-2:] == ["LABELS", "LAST"]
    assert foliot("runs", "-A").out.startswith("NAMESPACE")


def test_runs_can_be_chosen_by_agent_and_phase(foliot, writer):
    assert foliot("runs", "--agent", "writer", "-o", "name").out == "run-1\n"
    assert foliot("runs", "--agent", "nobody", "-o", "name").out == ""
    assert foliot("runs", "--phase", "failed", "-o", "name").out == ""
    assert foliot("runs", "--phase", "succeeded", "-o", "name").out == "run-1\n"
    assert foliot("runs", "--phase", "interrupted").err == "No interrupted runs found in namespace default.\n"
    assert foliot("runs", "--agent", "nobody").err == "No runs of agent nobody found in namespace default.\n"
    assert foliot("runs", "--phase", "sleeping").code == 2


def test_a_run_as_data_looks_like_every_other_object(foliot, writer):
    (document,) = json.loads(foliot("runs", "-o", "json").out)["items"]

    assert (document["kind"], document["metadata"]["name"]) == ("Run", "run-1")
    assert document["spec"]["agent"] == "writer"
    assert document["status"]["phase"] == "succeeded"
    assert document["status"]["steps"] == 2
    assert "kind: Run" in foliot("runs", "-o", "yaml").out


def test_a_trace_is_a_tree(foliot, writer):
    said = foliot("trace", "run-1")

    lines = said.out.splitlines()
    assert lines[0].startswith("writer  run-1  succeeded · 2 steps · 1 call · ")
    assert "├─ step 1" in said.out
    assert "✗ nothing_like_it" in said.out
    assert "not run: invalid" in said.out
    assert lines[-2] == "└─ ✓ succeeded"
    assert lines[-1].strip() == "You said hello, and I am told: Be kind."


def test_a_trace_as_data_holds_everything(foliot, writer):
    trace = json.loads(foliot("trace", "run-1", "-o", "json").out)

    assert (trace["phase"], trace["ended"]["type"]) == ("succeeded", "run.succeeded")
    (call,) = trace["steps"][0]["items"]
    assert (call["item"], call["name"], call["synthetic"]) == ("call", "nothing_like_it", "invalid")


def test_full_texts_are_not_shortened(foliot, writer):
    long = "word " * 100
    foliot("run", "writer", long, "--id", "long")

    assert "…" in foliot("trace", "long").out
    assert long.strip() in foliot("trace", "long", "--full").out


def test_why_tells_the_story_in_words_and_as_data(foliot, writer):
    said = foliot("why", "run-1")

    assert "It succeeded after 2 steps and 1 tool call." in said.out
    assert "What it cost" in said.out
    assert "nothing_like_it was not run (invalid)" in said.out
    assert json.loads(foliot("why", "run-1", "-o", "json").out)["headline"].startswith("It succeeded")


def test_without_an_id_the_newest_run_is_meant(foliot, writer):
    foliot("run", "writer", "again", "--id", "a-later-one")

    for verb in ("trace", "why", "replay"):
        assert "a-later-one" in foliot(verb).out


def test_a_beginning_of_an_id_is_enough_when_it_is_the_only_one(foliot, writer):
    assert "run-1" in foliot("trace", "ru").out
    foliot("run", "writer", "again", "--id", "run-2")
    foliot("run", "writer", "again", "--id", "run-22")

    said = foliot("trace", "run")

    assert said.code == 4
    assert "Several runs begin with 'run'" in said.err
    assert "run-22  writer  succeeded" in said.err
    assert "run-2 " in foliot("trace", "run-2").out  # an id that is whole is meant, also when another begins so


@pytest.mark.parametrize("verb", ["trace", "why", "replay", "resume", "cancel"])
def test_a_run_that_is_not_there_is_not_found(foliot, writer, verb):
    said = foliot(verb, "zzz")

    assert said.code == 3
    assert "there is no run 'zzz'" in said.err
    assert "foliot runs" in said.err


def test_a_replay_verifies_and_can_show(foliot, writer):
    said = foliot("replay", "run-1", "--show")

    assert said.code == 0
    assert "byte for byte" in said.out
    assert "step 2" in said.err
    assert json.loads(foliot("replay", "run-1", "-o", "json").out)["same"] is True


def test_a_replay_of_a_changed_journal_fails_and_says_where(foliot, writer, home):
    import apsw

    database = apsw.Connection(str(home / "foliot.db"))
    database.execute(
        "UPDATE event SET data = CAST(replace(CAST(data AS TEXT), 'Be kind.', 'Be rude.') AS BLOB)"
        " WHERE type = 'run.succeeded'"
    )
    database.close()

    said = foliot("replay", "run-1")

    assert said.code == 1
    assert "was changed in the store: event 8 is not what was recorded" in said.err


def test_a_fork_runs_from_a_step_and_stands_beside_the_original(foliot, writer):
    said = foliot("fork", "run-1", "--at", "2", "--prompt", "Be rude.")

    assert (said.code, said.out) == (0, "You said hello, and I am told: Be rude.\n")
    assert "fork of run-1 at step 2, with another prompt" in said.err
    assert "Side by side" in said.err
    assert "I am told: Be kind." in said.err
    assert "First." not in said.err  # what came before the step is not done again
    newest = foliot("runs", "-o", "name").out.split()[0]
    assert "forked from run-1" in foliot("trace", newest).out


def test_a_fork_takes_a_prompt_from_a_file_another_model_and_another_input(foliot, writer, tmp_path):
    (tmp_path / "prompt.txt").write_text("Be brief.")

    assert "I am told: Be brief." in foliot("fork", "run-1", "--at", "1", "--prompt", "@prompt.txt", "-q").out
    assert foliot("fork", "run-1", "--at", "2", "--model", "other", "-q").out == "Other.\n"
    assert "You said bye" in foliot("fork", "run-1", "--at", "1", "--input", "bye", "-q").out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--at", "9"), 3, "has no step 9"),
        (("--at", "0"), 2, "0 is not in the range"),
        (("--at", "2", "--model", "othr"), 3, "did you mean other?"),
        (("--at", "2", "--prompt", "@nowhere.txt"), 2, "nowhere.txt cannot be read: No such file"),
        (("--at", "1", "--input", " "), 2, "The input is empty"),
        ((), 2, "--at"),
    ],
)
def test_a_fork_that_cannot_be_is_told(foliot, writer, words, code, message):
    said = foliot("fork", "run-1", *words)

    assert said.code == code
    assert message in said.err


def test_what_has_ended_cannot_be_cancelled_or_decided_and_resuming_it_shows_it(foliot, writer):
    assert foliot("cancel", "run-1").code == 4
    assert "has ended (succeeded)" in foliot("settle", "run-1", "c1", "run").err
    assert "none of its calls waits for a decision" in foliot("settle", "run-1", "c1", "happened").err
    said = foliot("resume", "run-1")
    assert (said.code, said.out) == (0, "You said hello, and I am told: Be kind.\n")
    assert "had ended already" in said.err


def test_resuming_with_nothing_to_resume_says_so(foliot, writer):
    said = foliot("resume")

    assert (said.code, said.out) == (0, "")
    assert "No interrupted runs in namespace default." in said.err


def test_commands_without_any_run_say_how_to_start_one(foliot):
    said = foliot("why")

    assert said.code == 3
    assert "There are no runs in namespace default yet." in said.err


def test_a_result_goes_only_with_a_call_that_happened(foliot, writer):
    said = foliot("settle", "run-1", "c1", "run", "--result", "x")

    assert said.code == 2
    assert foliot("settle", "run-1", "c1", "perhaps").code == 2


def test_results_are_listed_and_shown_whole(foliot, writer):
    headings, row = foliot("results", "run-1").out.splitlines()
    assert headings.split() == ["CALL", "TOOL", "BYTES"]
    call, tool = row.split()[:2]
    assert (tool, row.split()[-1]) == ("nothing_like_it", "failed")

    shown = foliot("results", "run-1", call)
    assert shown.code == 0
    assert shown.out == foliot("results", "run-1", "nothing_like_it").out
    assert json.loads(foliot("results", "run-1", call, "-o", "json").out)["text"] + "\n" == shown.out
    missing = foliot("results", "run-1", "no-such")
    assert (missing.code != 0, "`foliot results run-1` lists them" in missing.err) == (True, True)
