"""`foliot schedule` and `foliot webhook`, with real tasks; and deliveries over real HTTP."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Foliot

MANIFESTS = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: brain}
spec: {provider: scripted, default_model: scripted, script: [{say: hello}]}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: writer}
spec: {model_ref: brain, prompt: Write.}
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
spec: {task_ref: brief, schedule: 0 9 * * 1, time_zone: America/Chicago, input: {by: "{{ trigger }}"}}
---
apiVersion: foliot.dev/v1
kind: TaskWebhook
metadata: {name: push}
spec: {task_ref: brief, auth: {profile: github, secret_ref: hook}}
"""


@pytest.fixture
def declared(foliot: Foliot, tmp_path: Path) -> Foliot:
    file = tmp_path / "all.yaml"
    file.write_text(MANIFESTS)
    said = foliot("apply", "-f", file)
    assert said.code == 0, said.err
    return foliot


def test_a_task_by_hand_and_the_slots_that_tell_of_it(declared: Foliot) -> None:
    said = declared("schedule", "run", "weekly", "--input", "extra=1", "-o", "json")
    assert said.code == 0, said.err
    task = json.loads(said.out)["task"]
    assert re.fullmatch(r"default/weekly-manual-\d{8}-\d{6}-\d{3}", task)

    slots = json.loads(declared("schedule", "slots", "weekly", "-o", "json").out)
    assert [(slot["kind"], slot["state"], slot["task"]) for slot in slots] == [("manual", "fired", task)]
    assert task in declared("schedule", "slots", "weekly").out
    shown = declared("schedule", "show", "weekly").out
    assert "0 9 * * 1 (America/Chicago)" in shown
    assert shown.count(" 09:00:00 C") == 5
    assert task in shown
    document = json.loads(declared("schedule", "show", "weekly", "-o", "json").out)
    assert document["status"]["activeRuns"] == [task]
    assert len(document["next"]) == 5
    assert "weekly" in declared("schedule", "list").out


def test_a_task_that_cannot_be_made_is_an_error_that_says_why(declared: Foliot) -> None:
    assert declared("delete", "task", "brief").code == 0
    said = declared("schedule", "run", "weekly")
    assert said.code == 1
    assert 'task template "brief" not found' in said.err
    (slot,) = json.loads(declared("schedule", "slots", "weekly", "-o", "json").out)
    assert slot["state"] == "skipped"


def test_what_is_not_there_is_told_with_what_is(declared: Foliot) -> None:
    for words in (
        ("schedule", "show", "wekly"),
        ("schedule", "run", "wekly"),
        ("schedule", "slots", "wekly"),
        ("schedule", "next", "wekly"),
    ):
        said = declared(*words)
        assert (said.code, "weekly" in said.err) == (3, True)
    said = declared("webhook", "show", "pusch")
    assert (said.code, "push" in said.err) == (3, True)
    assert declared("schedule", "run", "weekly", "--input", "novalue").code == 2
    assert "No schedules found" in declared("schedule", "list", "-n", "other").err


def test_the_next_times_of_an_expression(foliot: Foliot) -> None:
    said = foliot("schedule", "next", "0 9 * * 1", "--time-zone", "America/Chicago", "--count", "3")
    assert [line.split()[0] for line in said.out.splitlines()] == ["Mon"] * 3
    assert foliot("schedule", "next", "61 * * * *").code == 2
    assert foliot("schedule", "next", "@daily", "--time-zone", "Mars").code == 2


def test_a_webhook_from_its_address_to_a_replay(declared: Foliot, tmp_path: Path) -> None:
    listed = json.loads(declared("webhook", "list", "-o", "json").out)["items"]
    path = listed[0]["status"]["endpointPath"]
    assert re.fullmatch(r"/v1/webhook-deliveries/[0-9a-f]{32}", path)

    (tmp_path / "body.json").write_text('{"api_key": "sk-abcdefghijklmnop1234", "n": 1}')
    first = declared("webhook", "send-test", "push", "-d", f"@{tmp_path}/body.json", "--event-id", "e1")
    assert first.code == 0, first.err
    answer = json.loads(first.out)
    assert answer["accepted"] is True
    again = json.loads(declared("webhook", "send-test", "push", "--event-id", "e1").out)
    assert again == {**answer, "duplicate": True, "message": "duplicate delivery"}
    bad = declared("webhook", "send-test", "push", "-H", "X-Hub-Signature-256: sha256=00")
    assert bad.code == 1
    assert "401" in bad.err

    entries = json.loads(declared("webhook", "deliveries", "push", "-o", "json").out)
    assert [entry["outcome"] for entry in entries] == ["rejected", "duplicate", "accepted"]
    one = json.loads(declared("webhook", "deliveries", "push", entries[-1]["id"]).out)
    assert one["headers"] == {"x-github-delivery": "e1"}
    assert "sk-abcdefghijklmnop1234" not in json.dumps(one)
    replayed = declared("webhook", "replay", "push", entries[-1]["id"])
    assert replayed.code == 0, replayed.err
    assert replayed.out.strip() != answer["task"]
    assert declared("webhook", "replay", "push", entries[0]["id"]).code == 4
    assert declared("webhook", "replay", "push", "nothing").code == 3
    shown = declared("webhook", "show", "push").out
    assert "2 accepted, 1 duplicate, 0 filtered, 1 rejected" in shown

    rotated = declared("webhook", "rotate", "push")
    assert rotated.out.strip() not in ("", path)
    assert declared("webhook", "rotate", "push", "--grace", "soon").code == 2


def test_a_signed_command_line_never_holds_the_secret(declared: Foliot, tmp_path: Path) -> None:
    said = declared("webhook", "sign", "push", "-d", '{"a": "it\'s"}')
    words = shlex.split(said.out)
    assert words[0] == "curl"
    assert words[-1] == '{"a": "it\'s"}'
    lab = MANIFESTS.split("---\n")[-1].replace("push", "lab").replace("github", "gitlab")
    (tmp_path / "lab.yaml").write_text(lab)
    declared("apply", "-f", tmp_path / "lab.yaml")
    for name in ("push", "lab"):
        out = declared("webhook", "sign", name).out
        assert "correct-horse-battery" not in out
    assert '"X-Gitlab-Token: $WEBHOOK_SECRET"' in out


# --- over HTTP -------------------------------------------------------------------------------------------------------


@pytest.fixture
def address(declared: Foliot) -> Iterator[str]:
    """A real listener on a free port."""
    command = [sys.executable, "-m", "foliot.cli", "webhook", "listen", "--port", "0"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, env=dict(os.environ), text=True)
    assert child.stderr is not None
    try:
        line = child.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, line + child.stderr.read()
        yield found[0]
    finally:
        child.send_signal(signal.SIGTERM)
        _, rest = child.communicate(timeout=110)
        assert child.returncode == 0, rest
    assert "Stopped." in rest


def post(url: str, body: bytes = b"{}", method: str = "POST", **headers: str) -> tuple[int, Any]:
    request = urllib.request.Request(url, data=body if method == "POST" else None, method=method, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=20) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_deliveries_over_http(declared: Foliot, address: str) -> None:
    sent = declared("webhook", "send-test", "push", "--url", address, "--event-id", "e1")
    assert sent.code == 0, sent.err
    assert json.loads(sent.out)["duplicate"] is False
    assert json.loads(declared("webhook", "send-test", "push", "--url", address, "--event-id", "e1").out)["duplicate"]

    base = f"{address}/v1/webhook-deliveries/"
    path = json.loads(declared("webhook", "list", "-o", "json").out)["items"][0]["status"]["endpointPath"]
    assert post(base) == (400, {"accepted": False, "error": "endpoint id is required"})
    assert post(base + "0" * 32) == (404, {"accepted": False, "error": "webhook endpoint not found"})
    assert post(address + path) == (401, {"accepted": False, "error": "signature verification failed"})
    assert post(address + path, b"x" * (1024 * 1024 + 1))[0] == 400
    assert post(address + path, method="GET")[0] == 405
    assert post(address + "/elsewhere")[0] == 404

    declared("webhook", "rotate", "push")
    assert post(address + path)[0] == 404
    said = declared("webhook", "send-test", "push", "--url", "http://127.0.0.1:1")
    assert said.code == 7


def test_a_schedule_that_no_process_keeps_is_told(declared: Foliot, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "It has not been due yet." in declared("schedule", "slots", "weekly").err
    assert "none of them in error" in declared("doctor").out
    monkeypatch.setattr("foliot.work.triggers.schedule.NEGLECTED_AFTER", -60.0)

    said = declared("schedule", "slots", "weekly").err
    assert "no process keeps schedules: start `foliot server`, `foliot up` or `foliot schedule serve`" in said
    assert "has not been due" not in said
    assert "no process keeps schedules" in declared("schedule", "show", "weekly").out
    assert "no process keeps schedules" in declared("why", "weekly").out
    found = {each["check"]: each for each in json.loads(declared("doctor", "-o", "json").out)["findings"]}
    assert found["work.schedules"]["level"] == "warning"
    assert found["work.schedules"]["message"].endswith("weekly")
