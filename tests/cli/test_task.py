"""`foliot task` from end to end: the real command line, a real store, a worker in this process, a scripted model."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from foliot.cli.commands.init import BLUEPRINTS

TEAM = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: brain}
spec:
  provider: scripted
  default_model: scripted
  script:
    - match: {agent: first}
      turns: [{say: "first on {input}"}]
    - match: {agent: second}
      turns:
        - when: {input: bad}
          fail: request
        - say: "second on {input}"
    - match: {agent: asker}
      turns:
        - call: {ask_user: {question: "Which colour?"}}
        - say: "It is {last_result}"
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: first}
spec: {model_ref: brain, prompt: Go.}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: second}
spec: {model_ref: brain, prompt: Go.}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: asker}
spec: {model_ref: brain, prompt: Ask., tools: [ask_user]}
---
apiVersion: foliot.dev/v1
kind: AgentSystem
metadata: {name: duo}
spec: {agents: [first, second]}
---
apiVersion: foliot.dev/v1
kind: Task
metadata: {name: pattern, labels: {made: by-hand}}
spec: {mode: template, system: duo, input: {topic: templates}}
"""


@pytest.fixture
def duo(foliot, tmp_path: Path):
    path = tmp_path / "duo.yaml"
    path.write_text(TEAM)
    said = foliot("apply", "-f", path)
    assert said.code == 0, said.err
    return foliot


def names(foliot, *words: str) -> list[str]:
    return foliot("task", "list", "-o", "name", *words).out.split()


@pytest.mark.parametrize("blueprint", BLUEPRINTS)
def test_every_blueprint_runs_offline_from_its_folder_to_its_result(foliot, tmp_path, blueprint):
    assert foliot("init", tmp_path / "p", "-b", blueprint).code == 0

    said = foliot("task", "run", tmp_path / "p")

    assert said.code == 0, said.err
    assert said.out.strip()
    assert "✓ succeeded" in said.err
    shown = json.loads(foliot("task", "show", "p-first", "-o", "json").out)
    assert shown["status"]["phase"] == "Succeeded"
    assert shown["status"]["output"]["result"] == said.out.rstrip("\n")
    assert shown["spec"]["agent" if blueprint == "agent" else "system"] == "p"


def test_a_system_is_run_by_its_name_and_its_result_goes_to_stdout(duo):
    said = duo("task", "run", "duo", "clocks")

    assert (said.code, said.out) == (0, "second on first on clocks\n")
    assert "first → second" in said.err


def test_an_agent_alone_is_a_task_too(duo):
    assert duo("task", "run", "agent/first", "clocks", "-q").out == "first on clocks\n"


def test_a_template_is_run_by_its_name_and_what_is_typed_wins(duo):
    said = duo("task", "run", "pattern", "-i", "topic=chimes", "-q", "--name", "chimes")

    assert said.out == "second on first on chimes\n"
    assert json.loads(duo("task", "show", "chimes", "-o", "json").out)["metadata"]["labels"] == {"made": "by-hand"}


def test_json_lines_are_the_recorded_facts_in_order_and_end_with_the_result(duo):
    said = duo("task", "run", "duo", "clocks", "--json")

    lines = [json.loads(line) for line in said.out.splitlines()]
    own = [line["seq"] for line in lines if "run" not in line and "seq" in line]
    assert own == list(range(1, len(own) + 1))
    assert lines[0]["type"] == "task.accepted"
    assert {"step.started", "model.responded", "run.succeeded"} <= {line["type"] for line in lines}
    assert lines[-1]["type"] == "result"
    assert lines[-1]["data"]["output"] == "second on first on clocks"
    assert lines[-1]["data"]["usage"]["input_tokens"] > 0


def test_the_same_key_finds_the_same_task_and_other_content_is_a_conflict(duo):
    first = duo("task", "run", "duo", "clocks", "--key", "k1", "-d")
    again = duo("task", "run", "duo", "clocks", "--key", "k1", "-d")
    other = duo("task", "run", "duo", "chimes", "--key", "k1", "-d")

    assert first.out == again.out
    assert "it was there already" in again.err
    assert other.code == 4
    assert "reused with different payload" in other.err


def test_a_detached_task_waits_for_somebody_and_wait_does_it_here_when_asked(duo):
    name = duo("task", "run", "duo", "clocks", "-d").out.strip()

    why = duo("why", name)
    assert "no worker is alive" in why.out
    assert "foliot worker" in why.out
    done = duo("task", "wait", name, "--here", "-q")
    assert (done.code, done.out) == (0, "second on first on clocks\n")


def test_a_wait_ends_with_how_long_the_task_took_however_late_somebody_looks(duo):
    duo("task", "run", "duo", "clocks", "--name", "job", "-q")
    shown = json.loads(duo("task", "show", "job", "-o", "json").out)
    moments = [
        datetime.fromisoformat(text) for text in (shown["metadata"]["createdAt"], shown["status"]["completedAt"])
    ]

    seconds = [
        json.loads(duo("task", "wait", "job", "-o", "json").out.splitlines()[-1])["data"]["seconds"] for _ in "12"
    ]

    assert seconds[0] == seconds[1] == pytest.approx((moments[1] - moments[0]).total_seconds(), abs=0.002)


def test_waiting_gives_up_in_time_and_says_what_to_look_at(duo):
    name = duo("task", "run", "duo", "clocks", "-d").out.strip()

    said = duo("task", "wait", name, "--timeout", "200ms", "-q")

    assert said.code == 7
    assert f"foliot why {name}" in said.err


def test_waiting_for_work_that_nobody_does_says_so_once(duo):
    name = duo("task", "run", "duo", "clocks", "-d").out.strip()

    said = duo("task", "wait", name, "--timeout", "2s")

    assert said.err.count("No worker is alive that could do it") == 1


def test_a_dead_letter_is_told_listed_edited_and_tried_again(duo):
    failed = duo("task", "run", "duo", "bad clocks", "--name", "job")
    assert failed.code == 1
    assert "dead-lettered" in failed.err
    assert "foliot task retry job" in failed.err

    why = duo("why", "job").out
    assert "second did not finish" in why
    assert "foliot task retry job" in why
    letters = json.loads(duo("task", "dead-letters", "-o", "json").out)
    assert [(each["task"], [m["to"] for m in each["messages"]]) for each in letters] == [("job", ["second"])]
    assert "foliot task retry job" in duo("task", "dead-letters").out

    edited = duo("task", "retry", "job", "--edit", "second=good clocks")
    assert edited.code == 0, edited.err
    done = duo("task", "wait", "job", "--here", "-q")
    assert (done.code, done.out) == (0, "second on good clocks\n")
    shown = json.loads(duo("task", "show", "job", "-o", "json").out)
    assert shown["status"]["attempts"] == 2
    assert [message["phase"] for message in shown["status"]["messages"]] == ["succeeded", "deadletter", "succeeded"]
    types = [entry["type"] for entry in shown["status"]["history"]]
    assert types[types.index("requeued") :] == ["requeued", "claim", "succeeded"]


def test_an_edit_of_a_message_that_did_not_fail_is_refused_with_those_that_did(duo):
    duo("task", "run", "duo", "bad", "--name", "job", "-q")

    said = duo("task", "retry", "job", "--edit", "first=x")

    assert said.code == 2
    assert "(second)" in said.err


def test_a_task_that_asks_a_person_ends_with_8_and_goes_on_after_the_answer(duo):
    said = duo("task", "run", "asker", "paint", "--name", "job")

    assert said.code == 8
    assert "Which colour?" in said.err
    assert "foliot answer" in said.err
    assert names(duo, "--phase", "waiting") == ["job"]
    why = duo("why", "job").out
    assert "asker: It waits for an answer" in why
    run = json.loads(duo("task", "show", "job", "-o", "json").out)["status"]["messages"][0]["run"]
    assert duo("answer", run, "green").code == 0
    done = duo("task", "wait", "job", "--here", "-q")
    assert (done.code, done.out.strip()) == (0, "It is green")


def test_cancel_archive_delete_and_what_lists_show_of_them(duo):
    duo("task", "run", "duo", "a", "-d", "--name", "job-a")
    duo("task", "run", "duo", "b", "-d", "--name", "job-b")

    assert "is told to stop (cancelled)" in duo("task", "cancel", "job-a", "--reason", "no need").out
    assert duo("task", "cancel", "job-a").code == 4
    assert names(duo, "--phase", "queued") == ["job-b"]
    assert duo("task", "delete", "job-b").code == 4
    assert duo("task", "archive", "job-a", "job-b").code == 0
    assert names(duo) == []
    assert set(names(duo, "--archived")) == {"job-a", "job-b"}
    assert duo("task", "delete", "job-a", "job-b").code == 0
    assert names(duo, "--archived") == []


def test_lists_can_be_filtered_paged_and_printed_in_every_format(duo):
    for number in range(3):
        duo(
            "task", "run", "duo", "x", "-d", "--name", f"job-{number}", "--lane", f"l{number}", "--label", f"n={number}"
        )

    assert names(duo, "--lane", "l1") == ["job-1"]
    assert names(duo, "--label", "n=2") == ["job-2"]
    assert names(duo, "--target", "nobody") == []
    assert names(duo, "--since", "1h") == ["job-2", "job-1", "job-0"]
    assert names(duo, "--since", "2020-01-31", "--until", "2100-01-31T00:00:00Z") == ["job-2", "job-1", "job-0"]
    assert names(duo, "--until", "2020-01-31") == []
    page = json.loads(duo("task", "list", "--limit", "2", "-o", "json").out)
    assert [item["metadata"]["name"] for item in page["items"]] == ["job-2", "job-1"]
    assert names(duo, "--continue", page["continue"]) == ["job-0"]
    assert "Pending" in duo("task", "list").out
    assert "LANE" in duo("task", "list", "-o", "wide").out
    assert "kind: Task" in duo("task", "list", "-o", "yaml").out
    assert names(duo, "-A") == ["job-2", "job-1", "job-0"]
    assert names(duo, "--phase", "Pending,DeadLetter") == ["job-2", "job-1", "job-0"]


def test_a_task_is_found_by_a_unique_part_of_its_name(duo):
    for name in ("alpha-one", "alpha-two"):
        duo("task", "run", "duo", "x", "-d", "--name", name)

    assert "alpha-two" in duo("task", "show", "two").out
    assert "alpha-one" in duo("task", "show", "alpha-o").out
    several = duo("task", "show", "alpha")
    assert several.code == 2
    assert "alpha-one" in several.err


def test_logs_can_be_taken_up_where_they_ended(duo):
    duo("task", "run", "duo", "x", "-d", "--name", "job")

    before = duo("task", "logs", "job", "--show-cursor")
    duo("task", "wait", "job", "--here", "-q")
    after = duo("task", "logs", "job", "--cursor", before.err.split()[-1])
    whole = duo("task", "logs", "job")

    assert before.out.splitlines() + after.out.splitlines() == whole.out.splitlines()
    assert "first: says: first on x" in after.out
    assert whole.out.splitlines()[-1].endswith("the task has succeeded")
    assert duo("task", "logs", "job", "--cursor", "nonsense").code == 2


def test_events_go_on_behind_a_number(duo):
    duo("task", "run", "duo", "x", "-q", "--name", "job")

    every = [json.loads(line) for line in duo("task", "events", "job", "-f").out.splitlines()]
    later = [json.loads(line) for line in duo("task", "events", "job", "--after", "2").out.splitlines()]

    assert every[2:] == later
    assert every[-1]["type"] == "task.succeeded"
    assert len(duo("task", "events", "job", "--limit", "2").out.splitlines()) == 2


def test_graph_and_trace_show_who_did_what(duo):
    duo("task", "run", "duo", "x", "-q", "--name", "job")

    assert "└─▶ ✓ second  succeeded" in duo("task", "graph", "job").out
    assert duo("task", "graph", "job", "-o", "mermaid").out.startswith("flowchart TD")
    assert '"first" -> "second";' in duo("task", "graph", "job", "-o", "dot").out
    drawn = json.loads(duo("task", "graph", "job", "-o", "json").out)
    assert drawn["edges"] == [{"from": "first", "to": "second", "when": None, "on_failure": "fail"}]
    trace = duo("task", "trace", "job").out
    assert "system → first" in trace
    assert "first → second" in trace
    runs = json.loads(duo("task", "trace", "job", "-o", "json").out)["runs"]
    assert [run["message"]["to"] for run in runs] == ["first", "second"]
    assert all(run["queued_seconds"] >= 0 for run in runs)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("task", "run", "nobody", "x"), 3, "There is no system, agent or task 'nobody'"),
        (("task", "run", "duo"), 2, "There is no message"),
        (("task", "run", "", "x"), 2, "'' names neither something declared"),
        (("task", "run"), 2, "There is no TARGET"),
        (("task", "run", "duo", "x", "-i", "novalue"), 2, "is not KEY=VALUE"),
        (("task", "run", "duo", "x", "--timeout", "soon"), 2, "not a length of time"),
        (("task", "run", "duo", "x", "--name", "Not A Name"), 2, "cannot be the name of a task"),
        (("task", "run", "missing.yaml", "x"), 3, "missing.yaml"),
        (
            ("task", "list", "--phase", "odd"),
            2,
            "phase: 'odd' is not one of DeadLetter, Pending",
        ),
        (("task", "list", "--continue", "odd"), 2, "cursor"),
        (("task", "show", "nobody"), 3, "there is no task 'nobody'"),
        (("task", "show"), 3, "There are no tasks"),
        (("task", "cancel", "nobody"), 3, "there is no task 'nobody'"),
        (("task", "retry", "nobody", "--edit", "x"), 2, "is not MESSAGE=TEXT"),
        (("why", "nobody"), 3, "there is no run 'nobody', and no task"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(duo, words, code, text):
    said = duo(*words)

    assert said.code == code, said.err
    assert text in said.err
    assert "Traceback" not in said.err


def test_a_manifest_with_several_tasks_needs_one_to_be_named(foliot, tmp_path):
    head = "---\napiVersion: foliot.dev/v1\nkind: Task\n"
    one = head + "metadata: {{name: {}}}\nspec: {{system: duo, input: {{topic: x}}}}\n"
    (tmp_path / "two.yaml").write_text(TEAM + one.format("one") + one.format("two"))

    said = foliot("task", "run", tmp_path / "two.yaml")

    assert said.code == 2
    assert "declares 3 tasks: pattern, one, two" in said.err


def test_running_a_folder_again_is_new_work_once_the_first_has_ended(foliot, tmp_path):
    foliot("init", tmp_path / "p", "-b", "pipeline")

    assert foliot("task", "run", tmp_path / "p", "-q").code == 0
    assert foliot("task", "run", tmp_path / "p", "-q").code == 0

    assert len(names(foliot)) == 2
    assert names(foliot)[1] == "p-first"


def test_an_applied_task_is_work_and_shows_how_it_stands(foliot, tmp_path):
    foliot("init", tmp_path / "p", "-b", "pipeline")
    applied = foliot("apply", "-f", tmp_path / "p")
    again = foliot("apply", "-f", tmp_path / "p")

    assert "task/p-first accepted" in applied.out
    assert "accepted" not in again.out
    assert names(foliot) == ["p-first"]
    status = json.loads(foliot("get", "task", "p-first", "-o", "json").out)["status"]
    assert status.items() >= {"phase": "Pending", "attempts": 0}.items()
    assert foliot("task", "wait", "p-first", "--here", "-q").code == 0
    assert json.loads(foliot("get", "task", "p-first", "-o", "json").out)["status"]["phase"] == "Succeeded"
    assert "Succeeded" in foliot("get", "tasks").out
    assert foliot("wait", "task/p-first", "--for", "phase=Succeeded", "--timeout", "5s").code == 0
    assert foliot("diff", "-f", tmp_path / "p").code == 0


def test_a_dry_run_accepts_nothing(foliot, tmp_path):
    foliot("init", tmp_path / "p", "-b", "pipeline")

    assert foliot("apply", "-f", tmp_path / "p", "--dry-run").code == 0

    assert names(foliot) == []


def test_deleting_a_task_ends_and_deletes_its_work_and_frees_its_name(foliot, tmp_path):
    foliot("init", tmp_path / "p", "-b", "pipeline")
    foliot("apply", "-f", tmp_path / "p")

    for more in (("--dry-run",), ()):
        said = foliot("delete", "task", "p-first", *more)
        assert said.code == 0
        assert "task/p-first deleted, its work cancelled" in said.out

    assert names(foliot) == []
    assert names(foliot, "--archived") == []
    assert "task/p-first accepted" in foliot("apply", "-f", tmp_path / "p").out
    assert names(foliot) == ["p-first"]


def test_what_is_deleted_together_does_not_keep_itself_and_what_others_use_keeps_all(foliot, tmp_path):
    foliot("init", tmp_path / "p", "-b", "pipeline")
    foliot("apply", "-f", tmp_path / "p")
    kept = foliot("get", "all", "-o", "name").out

    said = foliot("delete", "agents", "--all")
    assert said.code == 4
    assert "p-first" in said.err
    assert "Nothing was deleted." in said.err
    assert foliot("get", "all", "-o", "name").out == kept

    assert foliot("delete", "-f", tmp_path / "p", "--dry-run").code == 0
    assert foliot("get", "all", "-o", "name").out == kept
    said = foliot("delete", "-f", tmp_path / "p")
    assert said.code == 0, said.err
    assert foliot("get", "all", "-o", "name").out.strip() == ""


def test_a_changed_task_is_refused_before_anything_is_stored_and_says_what_to_do(foliot, tmp_path):
    foliot("init", tmp_path / "p", "-b", "pipeline")
    foliot("apply", "-f", tmp_path / "p")
    manifest = tmp_path / "p" / "task.yaml"
    manifest.write_text(manifest.read_text().replace("why mechanical clocks tick", "why they stop"))

    for said in (foliot("apply", "-f", tmp_path / "p"), foliot("apply", "-f", tmp_path / "p", "--dry-run")):
        assert said.code == 4
        assert "task/p-first asks for something else than the work that was accepted under its name" in said.err
        assert "Nothing was applied." in said.err
    assert "why mechanical clocks tick" in foliot("get", "task", "p-first", "-o", "yaml").out

    for words in (("delete", "task", "p-first"), ("apply", "-f", tmp_path / "p")):
        assert foliot(*words).code == 0
    assert "why they stop" in foliot("get", "task", "p-first", "-o", "yaml").out


def test_a_task_that_nobody_declared_can_be_read_and_deleted_as_a_resource(duo):
    duo("task", "run", "duo", "x", "-q", "--name", "job")

    assert json.loads(duo("get", "task", "job", "-o", "json").out)["status"]["phase"] == "Succeeded"
    assert duo("delete", "task", "job").code == 0
    assert names(duo) == []


def test_a_queued_run_of_a_task_is_no_interrupted_run_and_resume_leaves_it_to_workers(duo):
    duo("task", "run", "duo", "x", "-d", "--name", "job")
    run = duo("runs", "-o", "name").out.strip()

    assert json.loads(duo("runs", "-o", "json").out)["items"][0]["status"]["phase"] == "pending"
    assert duo("runs", "--phase", "interrupted", "-o", "name").out == ""
    duo("resume")
    assert names(duo, "--phase", "queued") == ["job"]
    assert "first is due, and no worker is alive" in duo("why", run).out


def test_cancelling_the_run_of_a_queued_task_ends_it_here_and_the_task_hears_of_it(duo):
    duo("task", "run", "duo", "x", "-d", "--name", "job")
    run = duo("runs", "-o", "name").out.strip()

    assert duo("cancel", run).code == 0

    assert names(duo, "--phase", "dead_lettered,cancelled,failed") == ["job"]


def test_a_task_that_was_applied_is_run_by_its_name(duo, tmp_path):
    """Both ask for the same thing; that one of them spells defaults out must not make a conflict of it."""
    path = tmp_path / "work.yaml"
    work = "{agent: first, input: {topic: clocks, tone: dry, age: '9'}}"
    path.write_text(f"kind: Task\nmetadata: {{name: now}}\nspec: {work}\n")
    assert duo("apply", "-f", path).code == 0

    said = duo("task", "run", "now", "-q")

    assert (said.code, said.out) == (0, "first on clocks\n\ntone: dry\nage: 9\n"), said.err


def test_messages_are_metered_and_audited_from_the_journals(duo):
    assert duo("task", "run", "duo", "clocks", "--name", "t1", "-q").code == 0

    lines = [json.loads(line) for line in duo("task", "messages", "t1").out.splitlines()]

    told = [(each["type"], each["status"], each["agent"], each["attempt"]) for each in lines]
    assert told == [
        ("message.attempt_started", "running", "first", 1),
        ("message.completed", "forwarded", "first", 1),
        ("message.attempt_started", "running", "second", 1),
        ("message.completed", "succeeded", "second", 1),
    ]
    assert lines[0]["message_id"] == lines[1]["message_id"] != lines[2]["message_id"] == lines[3]["message_id"]
    assert lines[1]["metadata"] == {"forwarded_to": ["second"]}
    assert {each["system"] for each in lines} == {"duo"}
    assert lines[1]["tokens_used"] > 0
    assert lines[1]["worker"]
    audited = [json.loads(line) for line in duo("task", "messages", "t1", "--audit").out.splitlines()]
    assert [(each["action"], each["outcome"]) for each in audited] == [
        ("message.attempt_started", "success"),
        ("message.forwarded", "success"),
        ("message.attempt_started", "success"),
        ("message.completed", "succeeded"),
    ]
    assert [each["resource_name"] for each in audited] == [each["message_id"] for each in lines]


def test_a_message_that_was_given_up_says_why(duo):
    duo("task", "run", "second", "bad", "--name", "t1", "-q")

    lines = [json.loads(line) for line in duo("task", "messages", "t1").out.splitlines()]

    assert (lines[-1]["type"], lines[-1]["status"]) == ("message.completed", "deadletter")
    assert lines[-1]["metadata"]["error"]


def test_a_policy_of_the_command_line_narrows_what_is_declared_and_never_widens_it(duo, tmp_path):
    held = tmp_path / "held.yaml"
    policy = "execution_policy: {security: deny, resources: {cpu: 500}}"
    held.write_text(f"kind: Task\nmetadata: {{name: held}}\nspec: {{mode: template, system: duo, {policy}}}\n")
    assert duo("apply", "-f", held).code == 0
    options = ("--policy", "security=full", "--policy", "network_enabled=false", "--policy", "resources.cpu=900")
    said = duo("task", "run", "held", "go", "--name", "job", "-q", *options)
    assert said.code == 0, said.err
    spec = json.loads(duo("task", "show", "job", "-o", "json").out)["spec"]
    expected = {"security": "deny", "network_enabled": False, "resources": {"cpu": 500}}
    assert spec["execution_policy"] == expected


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("security=open", "invalid policy: invalid security: open"),
        ("resources.cpu=-1", "invalid policy: invalid resources: cpu must be non-negative, got -1"),
        ("resources.disk=1", "has no 'resources.disk'"),
        ("network_enabled=maybe", "Expected `bool | null`, got `str`"),
        ("security", "is not KEY=VALUE"),
    ],
)
def test_a_wrong_policy_of_the_command_line_is_refused_before_anything_is_asked(duo, given, told):
    said = duo("task", "run", "duo", "go", "--policy", given)
    assert said.code == 2
    assert told in said.err
    assert names(duo) == []
