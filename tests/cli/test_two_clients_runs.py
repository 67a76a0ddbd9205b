"""One suite, two clients: runs that are begun, watched, ended and taken up, here and on a server."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

MANIFEST = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: brain}
spec:
  provider: scripted
  default_model: scripted
  script:
    - match: {agent: writer}
      turns:
        - {say: "Looking.", call: {look: {}}}
        - {say: "On {input}: {last_result}."}
    - match: {agent: broken}
      turns: [{fail: request}]
    - match: {agent: asker}
      turns:
        - call: {ask_user: {question: "Which colour?"}}
        - say: "It is {last_result}"
    - match: {agent: payer}
      turns:
        - {call: {pay: {amount: 5}}}
        - {say: "Paid: {last_result}."}
    - match: {agent: boss}
      turns:
        - {call: {"agent:payer": {input: "Pay five."}}}
        - {say: "The payer says: {last_result}"}
    - match: {agent: loser}
      turns:
        - call: [{tool: lose, args: {n: 1}, id: a}, {tool: lose, args: {n: 2}, id: lose}, {tool: lose, args: {n: 3}}]
        - {say: "Done."}
---
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: lose}
spec: {type: function, function: "two_tools:lose", effect: once}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: loser}
spec: {model_ref: brain, prompt: Lose., tools: [lose]}
---
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: look}
spec: {type: function, function: "two_tools:look", effect: read}
---
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: pay}
spec: {type: function, function: "two_tools:pay", effect: idempotent, operation_classes: [write]}
---
apiVersion: foliot.dev/v1
kind: ToolPermission
metadata: {name: pay}
spec: {operation_rules: [{operation_class: write, verdict: approval_required}]}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: writer}
spec: {model_ref: brain, prompt: Go., tools: [look]}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: broken}
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
kind: Agent
metadata: {name: boss}
spec: {model_ref: brain, prompt: Delegate., tools: ["agent:payer"]}
"""
TOOLS = """\
import asyncio
from pathlib import Path


async def look() -> str:
    for _ in range(6000):
        if not Path("look.hold").exists():
            return "all is well"
        Path("look.held").touch()
        await asyncio.sleep(0.01)
    return "held for too long"


async def pay(amount: int) -> str:
    return f"{amount} euros"


async def lose(n: int) -> str:
    raise ConnectionResetError("the line is dead")
"""
PATIENCE = 60.0


def furnish(folder: Path) -> None:
    (folder / "team.yaml").write_text(MANIFEST)
    (folder / "two_tools.py").write_text(TOOLS)


def plain(text: str) -> str:
    """Without what differs from run to run: ids, namespaces and durations."""
    text = re.sub(r"\bn[0-9a-f]{8}/", "", text)
    text = re.sub(r"\b01[0-9a-z]{18}\b", "RUN", text)
    return re.sub(r"\b\d+(\.\d+)? ?(ms|s)\b", "TIME", text)


def test_a_run_is_watched_to_its_answer_and_looked_at_afterwards(applied) -> None:
    said = applied("run", "writer", "clocks")

    assert (said.code, said.out) == (0, "On clocks: all is well.\n"), said.err
    assert plain(said.err).splitlines() == [
        "writer  run RUN",
        "  › clocks",
        "step 1",
        "  │ Looking.",
        "  TIME · 49 tokens",
        "  ✓ look  TIME",
        "    all is well",
        "step 2",
        "  TIME · 74 tokens",
        "✓ succeeded  2 steps · 1 tool call · 123 tokens · TIME · RUN",
    ]
    assert applied("run", "writer", "clocks", "-q").out == "On clocks: all is well.\n"
    assert applied("trace").code == 0
    assert "look" in applied("results").out
    newest = applied("runs", "-o", "name").out.split()[0]
    assert applied("results", newest, "look").out == "all is well\n"
    assert "succeeded" in applied("why").out


def test_the_list_of_unknown_calls_says_when_it_is_cut(applied) -> None:
    applied("run", "loser", "go", "-q")
    cut = applied("runs", "--unknown", "--limit", "2", "-o", "name")

    assert len(cut.out.splitlines()) == 2
    assert "2 of 3 shown" in cut.err
    whole = applied("runs", "--unknown", "-o", "name")
    assert (len(whole.out.splitlines()), whole.err) == (3, "")

    run_id = whole.out.split()[0]
    applied("decide", run_id, "lose", "happened")  # the id of a call wins over the name that all their tools have
    left = {line.split()[1] for line in applied("runs", "--unknown", "-o", "name").out.splitlines()}
    assert len(left) == 2
    assert "lose" not in left


def test_manifests_are_applied_before_their_agent_runs(ask) -> None:
    said = ask("run", "team.yaml", "--agent", "writer", "clocks", "--id", ask.space)

    assert (said.code, said.out) == (0, "On clocks: all is well.\n"), said.err
    assert "applied team.yaml: 11 resources" in said.err
    again = ask("run", "writer", "--id", ask.space, "-q")
    assert (again.code, again.out) == (0, said.out)
    assert ask("run", "writer", "other", "--id", ask.space).code == 4
    assert ask("run", "payer", "--id", ask.space).code == 4
    assert ask("run", "nobody", "x").code == 3


def test_events_of_a_run_are_told_to_programs_line_by_line(applied) -> None:
    lines = [json.loads(line) for line in applied("run", "writer", "clocks", "--json").out.splitlines()]

    stored = [line for line in lines if "seq" in line]
    assert [line["seq"] for line in stored] == list(range(1, len(stored) + 1))
    assert [line["type"] for line in stored][-1] == "run.succeeded"
    assert lines[-1]["type"] == "result"
    assert lines[-1]["data"]["output"] == "On clocks: all is well."
    pieces = [line["data"]["text"] for line in lines if line["type"] == "text.delta" and line["step"] == 2]
    answer = "On clocks: all is well."
    if applied.far:  # pieces are for show: what was said before somebody listened is not said again
        assert all(piece in answer for piece in pieces)
    else:
        assert "".join(pieces) == answer


def test_a_run_that_fails_says_why_and_ends_with_1(applied) -> None:
    said = applied("run", "broken", "x")

    assert said.code == 1
    assert "error: " in said.err
    assert "foliot why" in said.err


def test_a_run_that_needs_consent_ends_with_8_and_goes_on_when_it_is_given(applied) -> None:
    said = applied("run", "payer", "go", "--id", applied.space)
    assert said.code == 8, said.err
    assert "foliot approvals approve" in said.err

    (name,) = applied("approvals", "list", "-o", "name").out.split()
    assert applied("approvals", "approve", name, "--no-resume").code == 0

    assert _until(lambda: applied("resume", applied.space, "-q"), lambda said: said.code == 0).out == "Paid: 5 euros.\n"
    assert applied("cancel", applied.space).code == 4


def test_a_name_that_is_given_to_decide_by_is_taken_or_refused_and_never_passed_over(applied) -> None:
    assert applied("run", "payer", "go", "--id", applied.space).code == 8
    (name,) = applied("approvals", "list", "-o", "name").out.split()
    for words in (["approvals", "deny", name], ["approvals", "edit", name, "--arguments", '{"amount": 1}']):
        assert applied(*words, "--as", " ").code == 2
        if applied.far:
            said = applied(*words, "--as", "zoe")
            assert (said.code, "knows by the token who decides" in said.err) == (2, True)
    for words in (["approvals", "grant", "--tool", "pay", "--until", "1h"], ["approvals", "revoke", name]):
        assert not applied.far or applied(*words, "--as", "zoe").code == 2
    assert not applied.far or applied("answer", applied.space, "yes", "--as", "zoe").code == 2
    assert applied("answer", "--as", "zoe").code == 2
    if not applied.far:
        assert applied("approvals", "deny", name, "--as", "zoe", "--no-resume").code == 0
        (document,) = json.loads(applied("approvals", "list", "-o", "json").out)["items"]
        assert document["status"]["decided_by"] == "zoe"


def test_a_denied_call_is_told_to_the_model(applied) -> None:
    assert applied("run", "payer", "go", "--id", applied.space).code == 8
    (name,) = applied("approvals", "list", "-o", "name").out.split()

    assert applied("approvals", "deny", name, "--comment", "not today", "--no-resume").code == 0

    ended = _until(lambda: applied("resume", applied.space, "-q"), lambda said: said.code != 8)
    assert (ended.code, "not today" in ended.out) == (0, True), ended.err


def test_a_run_whose_agent_waits_for_a_person_is_left_and_goes_on_after_the_decision(applied) -> None:
    said = applied("run", "boss", "go", "--id", applied.space, "--no-wait")
    assert said.code == 8, said.err
    assert "It waits for an approval of pay" in said.err
    assert "foliot approvals approve" in said.err

    (name,) = applied("approvals", "list", "-o", "name").out.split()
    assert applied("approvals", "approve", name).code == 0
    assert applied("run", "boss", "--id", applied.space, "--wait").out == "The payer says: Paid: 5 euros.\n"


def test_the_run_that_is_meant_without_a_name_is_one_that_somebody_started(applied) -> None:
    assert applied("run", "boss", "go", "--id", applied.space, "--no-wait").code == 8

    for command in ("trace", "why"):
        said = applied(command)
        assert (said.code, said.out.splitlines()[0].split()[:2]) == (0, ["boss", applied.space]), said.err


def test_a_run_whose_agent_waits_for_a_person_says_so_while_it_stays(applied) -> None:
    words = [*applied.where, "run", "boss", "go", "--id", applied.space, "--wait"]
    with subprocess.Popen(
        [sys.executable, "-m", "foliot.cli", *map(str, words)],
        cwd=applied.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as staying:
        assert staying.stderr is not None
        timer = threading.Timer(PATIENCE, staying.kill)
        timer.start()
        named = next(line for line in staying.stderr if "waiting for approval" in line)
        approved = applied("approvals", "approve", named.split("approvals approve ")[1].split()[0])
        out, _ = staying.communicate()
        timer.cancel()
    assert (approved.code, out) == (0, "The payer says: Paid: 5 euros.\n"), approved.err


def test_a_question_is_answered_from_elsewhere(applied) -> None:
    assert applied("run", "asker", "go", "--id", applied.space).code == 8

    assert applied("answer", applied.space, "blue", "--no-resume").code == 0

    assert _until(lambda: applied("resume", applied.space, "-q"), lambda said: said.code == 0).out == "It is blue\n"


def test_a_run_that_waits_can_be_cancelled(applied) -> None:
    assert applied("run", "payer", "go", "--id", applied.space).code == 8

    said = applied("cancel", applied.space, "--reason", "changed my mind")

    assert said.code == 0
    assert _until(lambda: applied("why", applied.space), lambda said: "cancelled" in said.out).code == 0
    assert applied("resume", applied.space).code == 1


def test_ctrl_c_cancels_the_run_wherever_it_is_driven(applied, tmp_path: Path) -> None:
    hold = applied.folder / "look.hold"
    hold.touch()
    words = [*applied.where, "run", "writer", "clocks", "--id", applied.space]
    command = [sys.executable, "-u", "-m", "foliot.cli", *map(str, words)]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    guard = threading.Timer(PATIENCE, running.kill)
    guard.start()
    try:
        while not (applied.folder / "look.held").exists():
            assert running.poll() is None, running.communicate()
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate()
    finally:
        guard.cancel()
        hold.unlink()
        running.kill()
        running.wait()

    assert running.returncode == 130, errors
    assert "Cancelling" in errors
    assert "cancelled" in applied("why", applied.space).out


def _until(ask: Callable[[], object], good: Callable[[object], bool]) -> object:
    """On a server a decision lets the run go on by itself: it may be under way when it is asked for again."""
    deadline = time.monotonic() + PATIENCE
    while not good(said := ask()):
        assert time.monotonic() < deadline, said
        time.sleep(0.05)
    return said


def test_a_fork_is_watched_and_compared_with_its_original(applied) -> None:
    assert applied("run", "writer", "clocks", "--id", applied.space, "-q").code == 0

    said = applied("fork", applied.space, "--at", "2")

    assert (said.code, said.out) == (0, "On clocks: all is well.\n"), said.err
    assert plain(said.err.replace(applied.space, "FIRST")).splitlines() == [
        "writer  run RUN",
        "  ! fork of FIRST at step 2, with nothing changed",
        "step 1",
        "  TIME · 74 tokens",
        "✓ succeeded  1 step · 0 tool calls · 74 tokens · TIME · RUN",
        "",
        "Side by side",
        "  original  FIRST  2 steps · 123 tokens",
        "            On clocks: all is well.",
        "  fork      RUN  1 step · 74 tokens",
        "            On clocks: all is well.",
        "  Both say the same.",
    ]


def test_a_task_that_waits_for_word_on_a_lost_call_waits_and_says_why(applied) -> None:
    name = applied("task", "run", "loser", "go", "-d").out.strip()
    applied("task", "wait", name, *([] if applied.far else ["--here"]))

    status = json.loads(applied("task", "show", name, "-o", "json").out)["status"]
    assert (status["phase"], status["waiting"]["reason"]) == ("Waiting", "unknown_effect")
    for word in ("Waiting", "waiting", "WaitingApproval"):
        assert applied("task", "list", "--phase", word, "-o", "name").out.split() == [name]


def test_settled_calls_let_the_run_go_on_to_its_answer(applied) -> None:
    assert applied("run", "loser", "go", "--id", applied.space).code == 8
    calls = [line.split()[1] for line in applied("runs", "--unknown", "-o", "name").out.splitlines()]

    said = [applied("decide", applied.space, call, "happened", "--result", "kept") for call in calls]

    assert [each.code for each in said] == [8, 8, 0], said[-1].err
    assert said[-1].out == "Done.\n"
    assert said[-1].err.splitlines()[0] == "Decided: happened."


def test_a_command_that_stays_shows_whom_it_waits_for_and_the_answer(applied, tmp_path: Path) -> None:
    words = [*applied.where, "run", "payer", "go", "--id", applied.space, "--wait"]
    command = [sys.executable, "-u", "-m", "foliot.cli", *map(str, words)]
    staying = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    guard = threading.Timer(10 * PATIENCE, staying.kill)
    guard.start()
    try:
        assert staying.stderr is not None
        named = next(line for line in staying.stderr if "waiting for approval" in line)
        name = named.split("approvals approve ")[1].split()[0]
        approved = applied("approvals", "approve", name)
        answer, errors = staying.communicate()
    finally:
        guard.cancel()
        staying.kill()
        staying.wait()

    assert (approved.code, approved.out) == (0, ""), approved.err
    assert f"Run {applied.space} goes on where" in approved.err
    assert (staying.returncode, answer) == (0, "Paid: 5 euros.\n"), errors
