"""One suite, two clients: tools, records, budgets, workers, schedules, webhooks and rules, here and on a server."""

from __future__ import annotations

import json
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
    - {say: "Looking.", call: {look: {what: clocks}}}
    - {say: "Seen: {last_result}."}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: writer}
spec: {model_ref: brain, prompt: Write., tools: [look]}
---
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: look}
spec: {type: function, function: "watch_tools:look", effect: read}
---
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: pay}
spec: {type: function, function: "watch_tools:pay", effect: idempotent, operation_classes: [write]}
---
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: clerk}
spec:
  provider: scripted
  default_model: scripted
  script: [{call: {refund: {}}}]
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: clerk}
spec: {model_ref: clerk, prompt: Refund., tools: [refund]}
---
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: refund}
spec: {type: function, function: "watch_tools:refund", effect: once, on_unknown: fail, runtime: {timeout: 100ms}}
---
apiVersion: foliot.dev/v1
kind: ToolPermission
metadata: {name: pay}
spec: {operation_rules: [{operation_class: write, verdict: approval_required}]}
---
apiVersion: foliot.dev/v1
kind: Budget
metadata: {name: house}
spec: {window: day, limit: {tokens: 100000}}
---
apiVersion: foliot.dev/v1
kind: Task
metadata: {name: brief}
spec: {agent: writer, mode: template, input: {topic: The week}}
---
apiVersion: foliot.dev/v1
kind: Secret
metadata: {name: hook}
spec: {stringData: {value: correct-horse-battery}}
---
apiVersion: foliot.dev/v1
kind: TaskSchedule
metadata: {name: weekly}
spec: {task_ref: brief, schedule: 0 9 * * 1}
---
apiVersion: foliot.dev/v1
kind: TaskWebhook
metadata: {name: push}
spec: {task_ref: brief, auth: {profile: github, secret_ref: hook}}
"""
TOOLS = """\
import asyncio


async def look(what: str) -> str:
    return f"{what} are well"


async def pay(amount: int) -> str:
    return f"{amount} euros"


async def refund() -> str:
    await asyncio.Event().wait()
"""
CALLS = '{"agent": "writer", "tool": "look", "args": {"what": "x"}}\n{"agent": "writer", "tool": "pay"}\n'
SECRET = "correct-horse-battery"


def furnish(folder: Path) -> None:
    (folder / "team.yaml").write_text(MANIFEST)
    (folder / "watch_tools.py").write_text(TOOLS)
    (folder / "calls.jsonl").write_text(CALLS)


def test_tools_are_listed_described_judged_and_called_under_their_rules(applied) -> None:
    listed = json.loads(applied("tools", "list", "-o", "json").out)
    there = {tool["name"]: tool for tool in listed["tools"]}
    assert (there["look"]["available"], there["pay"]["effect"]) == (True, "idempotent")
    assert listed["capabilities"]["types"]["function"]["available"]
    assert "ToolPermission/pay" in applied("tools", "describe", "pay").out
    assert applied("tools", "describe", "nothing").code == 3

    judged = applied("tools", "test", "pay", "--args", '{"amount": 5}')
    assert (judged.code, "needs an approval" in judged.out) == (0, True)
    called = applied("tools", "call", "look", "--args", '{"what": "clocks"}')
    assert (called.code, called.out) == (0, "clocks are well\n"), called.err
    wrong = applied("tools", "call", "look", "--args", "{}")
    assert (wrong.code, wrong.err.startswith("error (")) == (1, True)
    asked = applied("tools", "call", "pay", "--args", '{"amount": 5}')
    assert (asked.code, "needs an approval" in asked.err) == (6, True)
    granted = applied("approvals", "grant", "--tool", "pay", "--until", "1h", "--max-uses", "1")
    assert granted.code == 0, granted.err
    assert applied("tools", "call", "pay", "--args", '{"amount": 5}').out == "5 euros\n"


def test_what_was_decided_is_listed_added_up_exported_and_verified(applied) -> None:
    assert applied("tools", "call", "look", "--args", '{"what": "clocks"}').code == 0

    records = json.loads(applied("audit", "list", "--tool", "look", "-o", "json").out)
    assert {record["outcome"] for record in records} >= {"allowed", "ok"}
    assert {record["namespace"] for record in records} == {applied.space}
    number = records[0]["seq"]
    assert json.loads(applied("audit", "show", str(number), "-o", "json").out) == records[0]
    (total,) = json.loads(applied("audit", "summary", "--tool", "look", "-o", "json").out)
    assert (total["name"], total["calls"]) == ("look", 1)
    exported = [json.loads(line) for line in applied("audit", "export").out.splitlines()]
    assert [record["seq"] for record in exported] == sorted({record["seq"] for record in exported})
    assert records[0] in exported
    verified = json.loads(applied("audit", "verify", "-o", "json").out)
    assert (verified["broken"], verified["records"] >= len(exported)) == (None, True)
    held = applied("audit", "verify", "--head", verified["head"])
    assert (held.code, "head: " in held.out) == (0, True)
    assert applied("audit", "verify", "--head", f"{verified['records']}:{'0' * 64}").code == 1
    assert applied("audit", "show", "999999999").code == 3


def test_budgets_say_what_was_spent(applied) -> None:
    assert applied("run", "writer", "clocks", "-q").code == 0

    (account,) = json.loads(applied("budgets", "-o", "json").out)
    assert (account["budget"], account["limit_tokens"], account["namespace"]) == ("house", 100000, applied.space)
    assert account["spent"]["tokens"] > 0
    assert "house" in applied("budgets").out
    shown = applied("budgets", "show", "house")
    assert (shown.code, "limit: 100,000 tokens" in shown.out) == (0, True)
    missing = applied("budgets", "show", "hose")
    assert (missing.code, "did you mean house?" in missing.err) == (3, True)


def test_limits_are_set_listed_and_lifted(applied) -> None:
    name = f"{applied.space}/writer"

    assert applied("workers", "limit", "agent", "writer", "2").out == f"agent {name}: at most 2 at once\n"
    limits = json.loads(applied("workers", "limits", "-o", "json").out)
    assert {"scope": "agent", "name": name, "max": 2} in limits
    assert applied("workers", "limit", "agent", "writer", "none").out == f"agent {name}: no limit\n"
    assert applied("workers", "limit", "agent", "writer", "none").code == 3
    assert applied("workers", "limit", "agent", "writer", "many").code == 2
    assert applied("workers").code == 0
    assert applied("workers", "classes").code == 0
    assert applied("workers", "mend", "nothing").code == 3


def test_a_schedule_is_shown_and_makes_a_task_right_now(applied) -> None:
    assert "weekly" in applied("schedule", "list").out
    assert len(applied("schedule", "next", "weekly").out.splitlines()) == 5

    task = applied("schedule", "run", "weekly", "--input", "extra=1").out.strip()

    assert task.startswith(f"{applied.space}/weekly-manual-")
    slots = json.loads(applied("schedule", "slots", "weekly", "-o", "json").out)
    assert [(slot["kind"], slot["task"]) for slot in slots] == [("manual", task)]
    assert task in applied("schedule", "show", "weekly").out
    assert applied("task", "show", task.partition("/")[2]).code == 0
    missing = applied("schedule", "run", "wekly")
    assert (missing.code, "weekly" in missing.err) == (3, True)


def test_a_webhook_takes_a_delivery_remembers_it_and_gets_another_address(applied) -> None:
    path = json.loads(applied("webhook", "show", "push", "-o", "json").out)["status"]["endpointPath"]
    assert path in applied("webhook", "list").out + applied("webhook", "show", "push").out

    sent = applied("webhook", "send-test", "push", "-d", '{"a": 1}', "--event-id", "e1")
    assert sent.code == 0, sent.err
    assert json.loads(applied("webhook", "send-test", "push", "-d", '{"a": 1}', "--event-id", "e1").out)["duplicate"]
    forged = applied("webhook", "send-test", "push", "-H", "X-Hub-Signature-256: sha256=00")
    assert (forged.code, "refused with 4" in forged.err) == (1, True)

    entries = json.loads(applied("webhook", "deliveries", "push", "-o", "json").out)
    assert [entry["outcome"] for entry in entries] == ["rejected", "duplicate", "accepted"]
    one = applied("webhook", "deliveries", "push", entries[-1]["id"])
    assert json.loads(one.out)["body"] == '{"a": 1}'
    replayed = applied("webhook", "replay", "push", entries[-1]["id"])
    assert (replayed.code, replayed.out.startswith(applied.space)) == (0, True), replayed.err
    assert applied("webhook", "replay", "push", "nothing").code == 3
    assert applied("webhook", "rotate", "push").out.strip() not in ("", path)
    assert applied("webhook", "show", "nothing").code == 3
    signed = applied("webhook", "sign", "push")
    assert signed.code == (2 if applied.far else 0)
    assert SECRET not in signed.out + signed.err + one.out


def test_rules_are_explained_and_tried_before_they_are_applied(applied, tmp_path: Path) -> None:
    explained = json.loads(applied("policy", "explain", "writer", "pay", "-o", "json").out)
    assert explained["agent"] == "writer"
    (tmp_path / "stricter.yaml").write_text(
        "apiVersion: foliot.dev/v1\nkind: ToolPermission\nmetadata: {name: look}\n"
        "spec: {tool_ref: look, required_permissions: [see]}\n"
    )

    said = applied("policy", "simulate", "-f", "stricter.yaml", "--calls", "calls.jsonl", "--exit-code", "-o", "json")

    assert said.code == 1, said.err
    fates = json.loads(said.out)
    told = [(fate["tool"], fate["before"]["outcome"], fate["after"]["outcome"]) for fate in fates]
    assert ("look", "allow", "deny") in told
    assert applied("get", "tool-permission/look").code == 3


def test_a_run_is_verified_and_tried_again_from_a_step_on(applied) -> None:
    run = applied.space
    assert applied("run", "writer", "clocks", "-q", "--id", run).code == 0

    verified = json.loads(applied("replay", run, "-o", "json").out)
    assert (verified["same"], verified["difference"]) == (True, None)
    forked = applied("fork", run, "--at", "2", "--prompt", "Be short.")
    assert (forked.code, forked.out) == (0, "Seen: clocks are well.\n"), forked.err
    assert "Both say the same." in forked.err
    assert applied("fork", run, "--at", "9").code != 0
    assert applied("fork", "nothing", "--at", "1").code == 3


def test_a_call_that_may_have_acted_is_listed_and_settled_after_its_run_has_ended(applied) -> None:
    run = applied.space
    assert "No call in namespace" in applied("runs", "--unknown").err
    assert applied("run", "clerk", "now", "-q", "--id", run).code != 0

    (found,) = json.loads(applied("runs", "--unknown", "-o", "json").out)["items"]
    assert (found["spec"]["run"], found["spec"]["tool"]) == (run, "refund")
    assert found["status"]["runPhase"] == "failed"
    assert applied("runs", "--unknown", "-o", "name").out == f"{run} {found['spec']['call']}\n"
    assert applied("settle", run, "refund", "run").code != 0
    settled = applied("settle", run, "refund", "not_happened", "--reason", "the bank says so")
    assert (settled.code, settled.out) == (0, f"{run} failed: kept that refund not happened.\n"), settled.err
    assert json.loads(applied("runs", "--unknown", "-o", "json").out)["items"] == []
    assert applied("settle", run, "refund", "happened").code != 0


def test_the_health_of_tasks_and_what_can_be_done_is_told(applied) -> None:
    checked = applied("alertcheck", "--json")
    assert (checked.code, "too few to tell" in checked.out) == (1, True)
    found = json.loads(applied("capabilities", "-o", "json").out)
    assert {"core.api.crud", "core.governance.approvals"} <= {each["id"] for each in found if each["enabled"]}


def test_the_doctor_says_what_the_server_is(applied) -> None:
    if not applied.far:
        pytest.skip("of the store the doctor has tests of its own")
    report = json.loads(applied("doctor", "-o", "json").out)
    told = {finding["check"]: finding for finding in report["findings"]}

    assert report["healthy"]
    assert "answers at http://127.0.0.1" in told["server.reachable"]["message"]
    assert told["server.known"]["message"] == "it knows you as ann: admin in all namespaces"
    assert told["server.store"]["level"] == told["server.workers"]["level"] == "ok"
    assert "server " in applied("version").out


def test_the_doctor_says_that_there_is_no_server(foliot) -> None:
    said = foliot("--server", "http://127.0.0.1:1", "doctor")

    assert said.code == 1
    assert "cannot be reached" in said.out
