"""The examples that run programs in the sandbox: one writes, repairs and publishes, one reviews and changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.test_examples import EXAMPLES, environ, foliot

pytestmark = pytest.mark.fence
ASK = ("run", "agent.yaml", "The primes below 30, please.", "--id", "p1", "--no-wait")


@pytest.fixture
def receiver() -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Where results are published, on a free port."""
    program = [sys.executable, str(EXAMPLES / "programmer" / "receiver.py"), "0"]
    with subprocess.Popen(program, env=environ(), stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        yield int(started.stdout.readline().rsplit(" ", 1)[1]), started
        started.terminate()


@pytest.fixture
def programmer(receiver: tuple[int, subprocess.Popen[str]], tmp_path: Path) -> Path:
    """The example as it is, with another port."""
    folder = tmp_path / "programmer"
    folder.mkdir()
    for path in (EXAMPLES / "programmer").iterdir():
        if path.is_file():
            (folder / path.name).write_text(path.read_text().replace("8977", str(receiver[0])))
    return folder


def test_an_agent_writes_runs_and_repairs_a_program_and_publishes_it_when_a_person_agrees(
    programmer: Path, receiver: tuple[int, subprocess.Popen[str]], tmp_path: Path
) -> None:
    here = {"FOLIOT_HOME": str(tmp_path / "home"), "FOLIOT_OUTBOUND_ALLOW": "127.0.0.2"}
    asked = foliot(
        "run", "agent.yaml", "The primes below 30, please.", "--id", "p1", "--no-wait", cwd=programmer, **here
    )
    assert asked.returncode == 8, asked.stderr
    assert "NameError" in foliot("trace", "p1", "--full", cwd=programmer, **here).stdout
    (waiting,) = json.loads(foliot("approvals", "list", "-o", "json", cwd=programmer, **here).stdout)["items"]
    done = foliot("approvals", "approve", waiting["metadata"]["name"], cwd=programmer, **here)

    assert "Done. It is published as number 1." in done.stdout, done.stderr
    assert receiver[1].stdout is not None
    assert receiver[1].stdout.readline() == "The primes below 30: 2 3 5 7 11 13 17 19 23 29\n"
    records = [json.loads(line) for line in foliot("audit", "export", cwd=programmer, **here).stdout.splitlines()]
    (left,) = [each for each in records if each["moment"] == "egress"]
    assert (left["egress"]["host"], left["egress"]["method"], left["outcome"]) == ("127.0.0.2", "POST", "allowed")


def test_without_the_consent_of_the_operator_nothing_leaves(
    programmer: Path, receiver: tuple[int, subprocess.Popen[str]], tmp_path: Path
) -> None:
    here = {"FOLIOT_HOME": str(tmp_path / "home")}
    foliot(*ASK, cwd=programmer, **here)
    (waiting,) = json.loads(foliot("approvals", "list", "-o", "json", cwd=programmer, **here).stdout)["items"]
    done = foliot("approvals", "approve", waiting["metadata"]["name"], cwd=programmer, **here)

    assert "403" in done.stdout, done.stderr
    receiver[1].terminate()
    assert receiver[1].stdout is not None
    assert receiver[1].stdout.read() == ""


def test_a_reviewer_sees_everything_and_changes_nothing(tmp_path: Path) -> None:
    repository, folder = tmp_path / "repository", EXAMPLES / "code-review"
    subprocess.run([sys.executable, "prepare.py", str(repository)], cwd=folder, env=environ(), check=True)
    before = (repository / "prices.py").read_bytes()
    here = {"FOLIOT_HOME": str(tmp_path / "home"), "FOLIOT_WORKSPACE": str(repository)}

    done = foliot("run", "agent.yaml", "Review the last commit.", "--id", "r1", cwd=folder, **here)
    trace = foliot("trace", "r1", "--full", cwd=folder, **here).stdout

    assert "prices.py:2: the discount" in done.stdout, done.stderr
    assert "Make the discount quicker" in trace
    assert "shop.py:5" in trace
    assert "Read-only file system" in trace
    assert (repository / "prices.py").read_bytes() == before
    assert subprocess.run(["git", "status", "--porcelain"], cwd=repository, capture_output=True).stdout == b""
