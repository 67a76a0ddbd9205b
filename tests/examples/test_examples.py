"""Every example runs, offline, as a newcomer would run it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from foliot.engine.definition.backends import can_fence

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE = 200.0
LETTER = "Order A-1007 arrived broken. I want my money back."


def environ(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("FOLIOT_")} | more


def foliot(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "foliot.cli", *words],
        cwd=cwd,
        env=environ(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def payments(ledger: Path) -> list[str]:
    return [json.loads(row)["run"] for row in ledger.read_text().splitlines()]


@pytest.mark.parametrize("folder", [path.parent.name for path in sorted(EXAMPLES.glob("*/agent.yaml"))])
def test_every_example_is_valid_and_explains_itself(folder: str, tmp_path: Path) -> None:
    done = foliot("validate", "--strict", "-f", ".", cwd=EXAMPLES / folder, FOLIOT_HOME=str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert (EXAMPLES / folder / "README.md").read_text().startswith("# ")


def test_an_agent_that_is_a_program_calls_its_tool(tmp_path: Path) -> None:
    if not can_fence():
        pytest.skip("nothing can be fenced on this machine")
    words = ("run", "agent.yaml", "how many words are these")

    done = foliot(*words, cwd=EXAMPLES / "program-agent", FOLIOT_HOME=str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert "The text has 5 words." in done.stdout


def test_the_refund_desk_pays_once_and_says_so(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    done = foliot(
        "run",
        "agent.yaml",
        LETTER,
        "--id",
        "r1",
        cwd=EXAMPLES / "first-run",
        FOLIOT_HOME=str(tmp_path),
        DESK_LEDGER=str(ledger),
    )

    assert done.returncode == 0, done.stderr
    assert "refunded in full: 49.90 euros" in done.stdout
    assert "6 steps · 5 tool calls" in done.stderr
    assert payments(ledger) == ["r1"]


def tour(home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / "tour.py"), "--home", str(home)],
        cwd=home,
        env=environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_a_tour_killed_anywhere_goes_on_where_it_was_when_it_is_started_again(tmp_path: Path) -> None:
    moments = ["photographer: step 1", "The policy says", "takes over"]
    homes = [tmp_path / str(number) for number in range(len(moments))]
    with ThreadPoolExecutor(len(moments)) as at_once:  # a tour waits most of its time, for people to read
        tours = at_once.map(killed_and_started_again, homes, moments)

    for home, seen, (code, told) in zip(homes, moments, tours, strict=True):
        assert code == 0, f"killed at {seen!r}:\n{told}"
        assert "Going on with the tour that was interrupted." in told, seen
        assert "goes on where it was" in told or "had ended already" in told, seen
        assert told.count("The ledger holds exactly 1 payment of this run.") == 2, seen
        assert sorted(payments(home / "ledger-1.jsonl")) == ["tour-1", "tour-1-killed"], seen


def killed_and_started_again(home: Path, seen: str) -> tuple[int, str]:
    """A tour that is killed when it says this, and started again: how the second one ended, and what it told."""
    home.mkdir()
    with tour(home) as first:
        assert first.stdout is not None
        for line in first.stdout:
            if seen in line:
                break
        first.send_signal(signal.SIGKILL)
        first.communicate(timeout=PATIENCE)
    with tour(home) as second:
        told, _ = second.communicate(timeout=PATIENCE)
    return second.returncode, told


@pytest.mark.slow
def test_the_tour_shows_a_killed_run_that_goes_on_and_the_next_tour_is_a_new_one(tmp_path: Path) -> None:
    with tour(tmp_path) as process:
        told, _ = process.communicate(timeout=PATIENCE)

    assert process.returncode == 0, told
    assert "\x1b" not in told
    assert "✓ succeeded  6 agents · 6 runs" in told
    assert "sharp in the middle.)" in told
    assert "in the middle of the run" in told
    assert "goes on where it was" in told
    assert "another took over" in told
    assert json.loads((tmp_path / "tour.json").read_text()) == {"number": 1, "done": True}

    typed = [shlex.split(line[2:]) for line in told.splitlines() if line.startswith("$ ")]
    assert [words[1] for words in typed] == ["task", "run", "why", "trace"]
    ledger = str(tmp_path / "typed.jsonl")
    for program, *words in typed:  # what is printed is what people copy
        assert program == "foliot"
        done = foliot(*words, cwd=EXAMPLES.parent, FOLIOT_HOME=str(tmp_path), DESK_LEDGER=ledger)
        assert done.returncode == 0, (words, done.stderr)
