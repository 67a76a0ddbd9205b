"""One suite, two clients: the same commands on the store in this process, and over a server in another one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

MANIFEST = """\
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
    - match: {agent: payer}
      turns:
        - {call: {pay: {amount: 5}}}
        - {say: "Paid: {last_result}."}
---
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: pay}
spec: {type: function, function: "both_clients_tools:pay", effect: idempotent, operation_classes: [write]}
---
apiVersion: foliot.dev/v1
kind: ToolPermission
metadata: {name: pay}
spec: {operation_rules: [{operation_class: write, verdict: approval_required}]}
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
kind: Agent
metadata: {name: payer}
spec: {model_ref: brain, prompt: Pay., tools: [pay]}
---
apiVersion: foliot.dev/v1
kind: AgentSystem
metadata: {name: duo}
spec: {agents: [first, second]}
"""
TASK = """\
apiVersion: foliot.dev/v1
kind: Task
metadata: {{name: brief}}
spec: {{agent: first, input: {{about: {}}}}}
"""
TOOLS = """\
async def pay(amount: int) -> str:
    return f"{amount} euros"
"""


def furnish(folder: Path) -> None:
    (folder / "team.yaml").write_text(MANIFEST)
    (folder / "both_clients_tools.py").write_text(TOOLS)


def test_resources_are_applied_listed_described_and_deleted(applied):
    again = applied("apply", "-f", "team.yaml")
    assert again.code == 0
    assert "unchanged" in again.out
    assert applied("get", "agents", "-o", "name").out.split() == [
        "agent/asker",
        "agent/first",
        "agent/payer",
        "agent/second",
    ]
    assert "model_ref" in applied("get", "agent/first", "-o", "yaml").out
    assert applied("describe", "agent/first").code == 0
    assert applied("diff", "-f", "team.yaml").code == 0
    missing = applied("get", "agent", "frist")
    assert (missing.code, "did you mean first?" in missing.err) == (3, True)
    assert applied("delete", "agent/payer").code == 0
    assert applied("get", "agent/payer").code == 3
    everything = applied("get", "all", "-o", "name").out.split()
    assert "agent/first" in everything


def test_a_task_is_run_to_its_result_and_looked_at_from_all_sides(applied):
    said = applied("task", "run", "duo", "clocks", "--name", "t1", "-q")
    assert (said.code, said.out) == (0, "second on first on clocks\n"), said.err

    assert applied("task", "list", "-o", "name").out.split() == ["t1"]
    assert "Succeeded" in applied("task", "show", "t1").out
    logs = applied("task", "logs", "t1", "-f")
    assert logs.code == 0
    assert logs.out.count("the task has succeeded") == 1
    assert applied("task", "logs", "t1").out == logs.out
    events = [json.loads(line) for line in applied("task", "events", "t1", "-f").out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert "first" in applied("task", "graph", "t1").out
    assert "second on first on clocks" in applied("task", "trace", "t1", "--full").out
    assert "succeeded" in applied("why", "t1").out
    runs = json.loads(applied("runs", "-o", "json").out)["items"]
    assert sorted(run["spec"]["agent"] for run in runs) == ["first", "second"]
    assert "first on clocks" in applied("trace", runs[-1]["metadata"]["name"]).out
    assert applied("why", runs[0]["metadata"]["name"]).code == 0
    assert applied("task", "archive", "t1").code == 0
    assert applied("task", "list", "-o", "name").out == ""


def test_a_task_that_fails_says_so_and_can_be_tried_again(applied):
    said = applied("task", "run", "second", "bad", "--name", "t1", "-q")
    assert said.code == 1
    assert "failed" in said.err or "dead-lettered" in said.err
    again = applied("task", "requeue", "t1")
    assert again.code == 0, again.err
    assert applied("task", "wait", "t1", "-q", *_here(applied)).code == 1


def test_asking_twice_with_one_key_finds_one_task(applied):
    first = applied("task", "run", "duo", "clocks", "--key", "k1", "--detach")
    second = applied("task", "run", "duo", "clocks", "--key", "k1", "--detach")

    assert (first.code, second.code) == (0, 0), first.err
    assert first.out == second.out
    assert applied("task", "run", "duo", "other", "--key", "k1", "--detach").code == 4


def test_an_approval_is_shown_and_given_and_the_work_goes_on(applied):
    said = applied("task", "run", "payer", "go", "--name", "t1")
    assert said.code == 8, said.err

    (name,) = applied("approvals", "list", "-o", "name").out.split()
    assert "pay" in applied("approvals", "show", name).out
    assert applied("approvals", "approve", name, "--no-resume").code == 0
    assert applied("approvals", "approve", name).code == 4

    waited = applied("task", "wait", "t1", "-q", "--wait", *_here(applied))
    assert (waited.code, waited.out) == (0, "Paid: 5 euros.\n"), waited.err


def test_a_question_is_listed_and_answered(applied):
    said = applied("task", "run", "asker", "go", "--name", "t1")
    assert said.code == 8, said.err
    (question,) = json.loads(applied("answer", "-o", "json").out)
    assert question["question"] == "Which colour?"

    assert applied("answer", question["run_id"], "blue", "--no-resume").code == 0

    waited = applied("task", "wait", "t1", "-q", "--wait", *_here(applied))
    assert (waited.code, waited.out) == (0, "It is blue\n"), waited.err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["task", "show", "nothing"], 3),
        (["task", "run", "nobody", "x"], 3),
        (["trace", "nothing"], 3),
        (["approvals", "show", "nothing"], 3),
        (["task", "logs", "nothing", "-f"], 3),
    ],
)
def test_what_is_not_there_is_told_in_the_same_way(ask, words, code):
    said = ask(*words)

    assert said.code == code, said.err
    assert said.err.startswith("error: ")
    assert "hint: " in said.err


def _here(applied) -> list[str]:
    """On the store nobody else does the work."""
    return [] if applied.far else ["--here"]


def test_a_watch_prints_what_others_change_and_ends_with_ctrl_c(applied, tmp_path):
    words = [*applied.where, "get", "agents", "-w", "-o", "name"]
    command = [sys.executable, "-u", "-m", "foliot.cli", *map(str, words)]
    watch = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    guard = threading.Timer(110, watch.kill)
    guard.start()
    try:
        assert watch.stdout is not None
        listed = [watch.stdout.readline().strip() for _ in range(4)]
        assert applied("delete", "agent/payer").code == 0
        changed = watch.stdout.readline().strip()
        watch.send_signal(signal.SIGINT)
        rest, errors = watch.communicate()
    finally:
        guard.cancel()
        watch.kill()
        watch.wait()

    assert listed == ["agent/asker", "agent/first", "agent/payer", "agent/second"]
    assert (changed, rest, errors.strip(), watch.returncode) == ("agent/payer", "", "", 130)


def test_a_changed_task_is_refused_and_one_that_did_not_change_is_not(applied, tmp_path):
    (tmp_path / "task.yaml").write_text(TASK.format("clocks"))
    accepted = applied("apply", "-f", "task.yaml")
    assert (accepted.code, "task/brief accepted" in accepted.out) == (0, True), accepted.err
    assert applied("apply", "-f", "task.yaml").code == 0

    (tmp_path / "task.yaml").write_text(TASK.format("bells"))
    refused = applied("apply", "-f", "task.yaml")

    assert (refused.code, refused.out) == (4, "")
    assert "task/brief asks for something else than the work that was accepted under its name." in refused.err
    assert "Nothing was applied." in refused.err
    assert f"`foliot delete task brief -n {applied.space}`" in refused.err
    assert "clocks" in applied("get", "task", "brief", "-o", "yaml").out


def test_a_resource_is_changed_in_an_editor(applied, tmp_path, monkeypatch):
    editor = tmp_path / "editor.sh"
    editor.write_text("#!/bin/sh\nsed -i 's/prompt: Go./prompt: Stay./' \"$1\"\n")
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))

    said = applied("edit", "agent/first")

    assert said.code == 0, said.err
    assert "prompt: Stay." in applied("get", "agent/first", "-o", "yaml").out


OLDER = """\
apiVersion: orloj.dev/v1
kind: Task
metadata: {name: older, labels: {team: docs}}
spec: {system: pair, priority: Medium, input: {topic: clocks}, retry: {}}
---
apiVersion: orloj.dev/v1
kind: AgentSystem
metadata: {name: pair}
spec: {agents: [first, second], graph: {first: {next: second, join: {}}}}
"""


def test_manifests_of_the_older_version_come_back_as_they_were_written(applied):
    (applied.folder / "older.yaml").write_text(OLDER)
    said = applied("apply", "-f", applied.folder / "older.yaml")
    assert said.code == 0, said.err

    system = json.loads(applied("get", "agent-system/pair", "-o", "json").out)
    assert system["apiVersion"] == "orloj.dev/v1"
    assert system["spec"] == {"agents": ["first", "second"], "graph": {"first": {"next": "second", "join": {}}}}
    assert "orloj.dev/v1" in applied("get", "agent-system/pair", "-o", "yaml").out
    differs = applied("diff", "-f", applied.folder / "older.yaml")
    assert (differs.code, differs.out.strip()) == (0, ""), differs.out
    (applied.folder / "today.yaml").write_text(OLDER.replace("orloj", "foliot"))
    differs = applied("diff", "-f", applied.folder / "today.yaml")
    assert "-apiVersion: orloj.dev/v1" in differs.out
    assert "+apiVersion: foliot.dev/v1" in differs.out


def test_a_declared_task_is_one_document_wherever_it_is_shown(applied):
    for name in ("older", "newer"):
        text = OLDER if name == "older" else OLDER.replace("orloj", "foliot").replace("name: older", "name: newer")
        (applied.folder / f"{name}.yaml").write_text(text)
        said = applied("apply", "-f", applied.folder / f"{name}.yaml")
        assert said.code == 0, said.err
        assert applied("task", "wait", name, "-q", *_here(applied)).code == 0

        got = json.loads(applied("get", "task", name, "-o", "json").out)
        assert got == json.loads(applied("task", "show", name, "-o", "json").out)
        assert got["status"]["phase"] == "Succeeded"
        assert [each["to_agent"] for each in got["status"]["messages"]] == ["first", "second"]
        assert got["spec"]["priority"] == ("Medium" if name == "older" else "normal")

        (applied.folder / "back.yaml").write_text(applied("get", "task", name, "-o", "yaml").out)
        back = applied("apply", "-f", applied.folder / "back.yaml")
        assert back.code == 0, back.err
        assert json.loads(applied("get", "task", name, "-o", "json").out) == got
