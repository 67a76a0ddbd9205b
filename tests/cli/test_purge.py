"""`foliot purge` forgets what is over, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

MANIFEST = """\
kind: ModelEndpoint
metadata: {name: brain}
spec: {provider: scripted, script: echo}
---
kind: Agent
metadata: {name: parrot}
spec: {model_ref: brain}
"""


@pytest.fixture
def parrot(foliot, tmp_path) -> None:
    path = tmp_path / "parrot.yaml"
    path.write_text(MANIFEST)
    assert foliot("run", path, "hello", "--id", "run-1").code == 0


def test_runs_that_ended_recently_stay(foliot, parrot) -> None:
    said = foliot("purge")
    assert (said.code, said.out) == (0, "0 runs and 0 changes forgotten\n")
    assert foliot("trace", "run-1").code == 0


def test_runs_that_ended_before_are_forgotten_and_resources_stay(foliot, parrot) -> None:
    said = foliot("purge", "--older-than", "0s", "--keep-changes", "1")
    assert (said.code, said.out) == (0, "1 run and 1 change forgotten\n")
    assert foliot("trace", "run-1").code == 3
    assert "parrot" in foliot("get", "agents").out


def test_a_purge_of_one_namespace_is_refused_and_forgets_nothing(foliot, parrot) -> None:
    said = foliot("purge", "--older-than", "0s", "-n", "team-a")
    assert (said.code, "all namespaces" in said.err) == (2, True)
    assert foliot("trace", "run-1").code == 0


def test_the_audit_log_says_who_forgot_how_much(foliot, parrot) -> None:
    foliot("purge", "--older-than", "0s", "--keep-changes", "1")
    foliot("purge", "--older-than", "0s", "--keep-changes", "1")
    (record,) = json.loads(foliot("audit", "list", "-A", "--outcome", "purged", "-o", "json").out)
    assert (record["resource"]["runs"], record["resource"]["changes"]) == (1, 1)
    assert record["decision"]["by"]


@pytest.mark.parametrize(("typed", "code"), [("n\n", 130), ("y\n", 0)])
def test_on_a_terminal_it_asks_before_it_forgets_what_ended_within_a_day(foliot, home, parrot, typed, code) -> None:
    master, slave = os.openpty()
    os.write(master, typed.encode())
    command = [sys.executable, "-m", "foliot.cli", "--home", str(home), "purge", "--older-than", "0s"]
    done = subprocess.run(command, stdin=slave, capture_output=True, timeout=110, check=False)
    os.close(master)
    os.close(slave)
    assert (done.returncode, b"that ended more than 0s ago?" in done.stderr) == (code, True)
    assert (foliot("trace", "run-1").code == 0) == (code != 0)


def test_an_age_that_is_none_is_refused(foliot) -> None:
    said = foliot("purge", "--older-than", "long")
    assert said.code == 2
    assert "such as" in said.err
