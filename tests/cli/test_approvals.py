"""`foliot approvals` on the command line: what is listed, what is refused, and a process that dies in the call."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from foliot import Runtime
from foliot.engine.live.hub import Recorded
from foliot.server.streams.pieces import Returned, Teller
from foliot.sessions.chat_events import ToolEvent, TurnStory

MANIFEST = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: desk-model}
spec:
  provider: scripted
  default_model: scripted
  script:
    - {call: {pay: {amount: 5, token: hunter2}}}
    - {say: "Paid: {last_result}."}
---
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: pay}
spec: {type: function, function: "gated_tools:pay", effect: idempotent, operation_classes: [write]}
---
apiVersion: foliot.dev/v1
kind: ToolPermission
metadata: {name: pay}
spec:
  operation_rules: [{operation_class: write, verdict: approval_required}]
  approvers: [ann, zoe]
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: desk}
spec: {model_ref: desk-model, tools: [pay]}
"""
# The first call kills its own process, when it is told to, after it has paid.
TOOLS = """\
import os
import signal
from pathlib import Path

from foliot import Invocation


async def pay(amount: int, call: Invocation, token: str = "") -> str:
    with open("ledger.txt", "a") as ledger:
        ledger.write(f"{call.idempotency_key} {amount}\\n")
    if Path("die").exists():
        Path("die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{amount} euros"
"""


@pytest.fixture
def folder(home: Path, tmp_path: Path) -> Path:
    (tmp_path / "desk.yaml").write_text(MANIFEST)
    (tmp_path / "gated_tools.py").write_text(TOOLS)
    return tmp_path


@pytest.fixture
def waiting(foliot, folder: Path) -> str:
    """The name of the approval that a run in this folder waits for."""
    said = foliot("run", "desk.yaml", "pay", "--id", "r1")
    assert said.code == 8, said.err  # not on a terminal: it does not stay
    (name,) = foliot("approvals", "list", "-o", "name").out.split()
    return name


def test_an_empty_list_says_so(foliot, folder) -> None:
    said = foliot("approvals", "list")
    assert (said.code, said.out) == (0, "")
    assert "No approvals found in namespace default" in said.err


def test_a_list_shows_what_waits_and_hides_secrets(foliot, waiting) -> None:
    said = foliot("approvals", "list")
    assert waiting in said.out
    assert 'amount=5 token="[REDACTED]"' in said.out
    for output in ("table", "json", "yaml"):
        assert "hunter2" not in foliot("approvals", "list", "-o", output).out
    assert foliot("approvals", "list", "--phase", "denied", "-o", "name").out == ""
    assert waiting in foliot("approvals", "list", "-A").out
    assert waiting not in foliot("approvals", "list", "-n", "other", "-o", "name").out
    (document,) = json.loads(foliot("approvals", "list", "-o", "json").out)["items"]
    assert document["spec"]["run"] == "r1"


def test_show_masks_secrets_also_in_the_story_of_the_run(foliot, waiting) -> None:
    for output in ("text", "json", "yaml"):
        said = foliot("approvals", "show", waiting, "-o", output)
        assert said.code == 0
        assert "hunter2" not in said.out
    assert "approvers  ann, zoe" in foliot("approvals", "show", waiting).out


def test_who_is_no_approver_is_refused_and_told_who_is(foliot, waiting, folder) -> None:
    said = foliot("approvals", "approve", waiting, "--as", "mallory")
    assert said.code == 6
    assert "mallory may not decide" in said.err
    assert "ann, zoe" in said.err
    assert not (folder / "ledger.txt").exists()


def test_an_approval_makes_the_call_and_gives_the_answer(foliot, waiting, folder) -> None:
    said = foliot("approvals", "approve", waiting, "--as", "zoe", "--comment", "go")
    assert (said.code, said.out) == (0, "Paid: 5 euros.\n")
    assert len((folder / "ledger.txt").read_text().splitlines()) == 1
    told = foliot("trace", "r1")
    assert "decision: approve" in told.out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["approve", "nothing"], 3, "no approval 'nothing'"),
        (["show", "nothing"], 3, "no approval 'nothing'"),
        (["revoke", "nothing"], 3, "no approval 'nothing'"),
        (["grant", "--tool", "pay", "--until", "soon"], 2, "not a duration"),
        (["grant", "--tool", "pay", "--until", "0s"], 2, "covers nothing"),
        (["grant", "--tool", "pay", "--until", "1h", "--when", "args."], 2, "not a CEL expression"),
        (["grant", "--until", "1h"], 2, "--tool"),
    ],
)
def test_a_mistake_is_told_and_not_traced(foliot, folder, words, code, message) -> None:
    said = foliot("approvals", *words)
    assert said.code == code
    assert message in said.err
    assert "Traceback" not in said.err


def test_arguments_that_cannot_be_used_decide_nothing(foliot, waiting) -> None:
    for arguments, message in (("{", "not a JSON object"), ("[1]", "JSON object"), ('{"amount": "x"}', "amount")):
        said = foliot("approvals", "edit", waiting, "--as", "ann", "--arguments", arguments)
        assert said.code == 2
        assert message in said.err
    assert foliot("approvals", "list", "--phase", "pending", "-o", "name").out.strip() == waiting


def test_what_an_edit_changes_is_shown_without_what_is_secret(foliot, waiting) -> None:
    arguments = json.dumps({"amount": 4, "token": "swordfish", "note": "x\n  ✓ paid"})
    said = foliot("approvals", "edit", waiting, "--as", "ann", "--arguments", arguments, "--no-resume")
    assert "  │ amount: 5 → 4\n" in said.err
    assert '  │ token: "[REDACTED]" → another value, hidden too\n' in said.err
    assert '  │ note: (not given) → "x\\n ✓ paid"\n' in said.err
    assert "swordfish" not in said.out + said.err


def test_an_editor_that_changes_nothing_decides_nothing(foliot, waiting, monkeypatch) -> None:
    monkeypatch.setenv("EDITOR", "true")
    said = foliot("approvals", "edit", waiting, "--as", "ann")
    assert said.code == 0
    assert "nothing is decided" in said.err
    assert foliot("approvals", "list", "--phase", "pending", "-o", "name").out.strip() == waiting


def test_a_standing_grant_cannot_be_approved_and_an_approval_not_revoked(foliot, waiting) -> None:
    name = foliot("approvals", "grant", "--tool", "pay", "--until", "1h", "--max-uses", "2", "--as", "ann").out.split()[
        0
    ]
    assert "2 of 2 uses left" in foliot("approvals", "list").out
    assert foliot("approvals", "approve", name, "--as", "ann").code == 4
    assert foliot("approvals", "revoke", waiting).code == 4
    assert foliot("approvals", "revoke", name).code == 0


@pytest.mark.parametrize("verb", ["approve", "deny"])
def test_after_a_decision_why_says_that_it_was_made_and_offers_what_works(foliot, waiting, verb: str) -> None:
    assert foliot("approvals", verb, waiting, "--as", "zoe", "--no-resume", "-q").code == 0

    told = foliot("why", "r1").out

    assert "It has been decided about" in told
    assert "pay amount=5 token=" in told
    assert f": {verb}, by zoe" in told
    assert "approvals" not in told
    assert "foliot resume r1" in told
    assert foliot("resume", "r1").code == 0
    assert "It succeeded" in foliot("why", "r1").out


def test_a_process_that_dies_in_an_approved_call_needs_no_second_approval(foliot, waiting, folder) -> None:
    (folder / "die").touch()
    command = [sys.executable, "-m", "foliot.cli", "approvals", "approve", waiting, "--as", "ann"]
    died = subprocess.run(command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=90)
    assert died.returncode == -9, died.stderr

    said = foliot("resume", "r1")

    assert (said.code, said.out) == (0, "Paid: 5 euros.\n")
    first, second = (folder / "ledger.txt").read_text().splitlines()
    assert first == second  # the same call, under the same key
    assert foliot("approvals", "list", "-o", "name").out.split() == [waiting]


def test_get_shows_which_run_an_approval_is_for(foliot, waiting) -> None:
    said = foliot("get", "tool-approvals")
    assert said.code == 0
    headings, row = (line.split() for line in said.out.splitlines()[:2])
    assert headings[:3] == ["NAME", "RUN", "TASK"]
    assert row[:3] == [waiting, "r1", "-"]


def test_after_an_approval_what_waited_in_the_session_is_answered_too(foliot, folder) -> None:
    script = '    - {say: "Paid: {last_result}."}\n'
    (folder / "desk.yaml").write_text(MANIFEST.replace(script, script + "    - {say: And that was all.}\n"))
    assert foliot("apply", "-f", "desk.yaml").code == 0
    session = foliot("sessions", "rotate", "desk").out.strip()
    assert foliot("sessions", "say", session, "pay").code == 8
    said = foliot("sessions", "say", session, "Anything else?", "--mode", "followup", "--no-wait")
    assert said.code == 0, said.err
    (name,) = foliot("approvals", "list", "-o", "name").out.split()

    said = foliot("approvals", "approve", name, "--as", "ann")

    assert (said.code, "What waited in the session is answered now" in said.err) == (0, True), said.err
    assert "And that was all." in foliot("sessions", "history", session).out


@pytest.mark.parametrize(
    ("says", "does"),
    [
        ("", "write"),
        (", effect: once", "write"),
        (", effect: idempotent", "write"),
        (", effect: read", "read"),
        (", effect: read, risk_level: high, runtime: {isolation_mode: none}", "write"),
        (", effect: once, operation_classes: [read]", "read"),
        (", effect: read, operation_classes: [delete]", "delete"),
    ],
)
def test_what_a_tool_does_is_the_same_to_rules_explanations_approvals_and_lists(
    foliot, folder, says: str, does: str
) -> None:
    manifest = MANIFEST.replace(", effect: idempotent, operation_classes: [write]", says)
    (folder / "desk.yaml").write_text(manifest.replace("operation_class: write", f"operation_class: {does}"))
    assert foliot("apply", "-f", "desk.yaml").code == 0

    listed = json.loads(foliot("tools", "list", "-o", "json").out)["tools"]
    assert [tool["operation_classes"] for tool in listed if tool["name"] == "pay"] == [[does]]
    told = json.loads(foliot("policy", "explain", "desk", "pay", "--args", '{"amount": 5}', "-o", "json").out)
    assert (told["outcome"], f"does '{does}'" in told["decided"]["reason"]) == ("ask", True), told
    assert foliot("run", "desk", "pay", "--id", "r1").code == 8
    assert not (folder / "ledger.txt").exists()
    (document,) = json.loads(foliot("approvals", "list", "-o", "json").out)["items"]
    assert document["spec"]["operation_class"] == does


async def _events(home: Path, run_id: str) -> list[Recorded]:
    async with Runtime(home / "foliot.db") as runtime:
        facts = await runtime.runs.events(run_id)
    return [Recorded(run_id, seq, at, event) for seq, (at, event) in enumerate(facts, 1)]


@pytest.mark.parametrize(("amount", "denied"), [(80, False), (90, True)])
def test_whatever_shows_an_edited_call_shows_what_was_sent_and_who_changed_it(
    foliot, home, folder, amount: int, denied: bool
) -> None:
    rule = "  conditions: [{when: args.amount == 90, verdict: deny, reason: never ninety}]\n"
    manifest = MANIFEST.replace("amount: 5, token: hunter2", "amount: 500").replace(
        "  approvers:", rule + "  approvers:"
    )
    (folder / "desk.yaml").write_text(manifest)
    assert foliot("run", "desk.yaml", "pay", "--id", "r1").code == 8
    (name,) = foliot("approvals", "list", "-o", "name").out.split()

    said = foliot("approvals", "edit", name, "--as", "ann", "--arguments", json.dumps({"amount": amount}))

    assert said.code == 0, said.err
    assert (folder / "ledger.txt").exists() is not denied
    assert f"ann changed pay to amount={amount}, from amount=500" in said.err
    before = said.err.partition("pay edited by ann")[0]  # what is shown ahead of the decision
    assert f"amount: 500 → {amount}" in before
    assert f'"amount": {amount}' in before
    assert '"amount": 500' not in before
    assert ("it was run with" in said.out, "it was not run" in said.out) == (not denied, denied), said.out
    assert f"amount={amount} (edited; was amount=500)" in foliot("approvals", "list").out
    trace = foliot("trace", "r1").out
    assert f"pay amount={amount}" in trace
    assert "changed by ann; the model wrote amount=500" in trace
    assert trace.count("pay needs an approval") == 1
    assert f"decision: edit to amount={amount}, from amount=500, by ann" in foliot("why", "r1").out
    (call,) = (
        item
        for step in json.loads(foliot("trace", "r1", "-o", "json").out)["steps"]
        for item in step["items"]
        if item["item"] == "call"
    )
    assert (call["arguments"], call["written"], call["changed_by"]) == (
        f'{{"amount":{amount}}}',
        '{"amount":500}',
        "ann",
    )

    events = asyncio.run(_events(home, "r1"))
    chat = TurnStory("r1")
    tools = [each for item in events for each in chat.events(item) if isinstance(each, ToolEvent)]
    assert {(each.changed_by, str(each.arguments), str(each.written)) for each in tools} == {
        ("ann", str({"amount": amount}), str({"amount": 500}))
    }
    teller = Teller("r1")
    (returned,) = (piece for item in events for piece in teller.tell(item) if isinstance(piece, Returned))
    assert returned.arguments == f'{{"amount":{amount}}}'
