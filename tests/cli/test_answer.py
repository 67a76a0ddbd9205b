"""`foliot answer`: what runs ask, and what becomes of the answers."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

MANIFEST = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: painter-model}
spec:
  provider: scripted
  default_model: scripted
  script:
    - {call: {ask_user: {question: "Which colour?", choices: [red, blue], default: red, timeout_seconds: 3600}}}
    - {say: "It is {last_result}."}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: painter}
spec: {model_ref: painter-model, tools: [ask_user]}
"""


@pytest.fixture
def folder(home: Path, tmp_path: Path) -> Path:
    (tmp_path / "painter.yaml").write_text(MANIFEST)
    return tmp_path


@pytest.fixture
def waiting(foliot, folder: Path) -> str:
    said = foliot("run", "painter.yaml", "paint", "--id", "r1")
    assert said.code == 8, said.err
    return said.err


def test_the_run_says_what_is_asked_and_how_to_answer(waiting: str) -> None:
    assert "It waits for an answer" in waiting
    assert "Which colour?" in waiting
    assert "one of: red | blue" in waiting
    assert "without an answer in" in waiting
    assert "it is 'red'" in waiting
    assert 'foliot answer r1 "…"' in waiting


def test_why_says_the_same_and_tells_the_answer_afterwards(foliot, waiting) -> None:
    assert 'foliot answer r1 "…"' in foliot("why", "r1").out
    assert foliot("answer", "r1", "blue", "--as", "ann").code == 0
    told = foliot("why", "r1").out
    assert "It succeeded" in told
    assert "answer: blue, by ann" in told


def test_the_list_shows_open_questions_until_they_are_answered(foliot, waiting) -> None:
    said = foliot("answer")
    assert said.code == 0
    assert "r1" in said.out
    assert "Which colour?" in said.out
    assert "red | blue" in said.out
    (asked,) = json.loads(foliot("answer", "-o", "json").out)
    assert (asked["run_id"], asked["choices"], asked["default"]) == ("r1", ["red", "blue"], "red")
    assert "NAMESPACE" in foliot("answer", "-A").out
    assert "No run asks anything" in foliot("answer", "-n", "other").err
    foliot("answer", "r1", "blue")
    assert "No run asks anything" in foliot("answer").err


def test_the_answer_goes_on_with_the_run_and_prints_its_answer(foliot, waiting) -> None:
    said = foliot("answer", "r1", asked_call(foliot), "2")
    assert (said.code, said.out) == (0, "It is blue.\n"), said.err
    again = foliot("answer", "r1", "red")
    assert again.code != 0
    assert "asks nothing" in again.err
    assert "Traceback" not in again.err


def asked_call(foliot) -> str:
    (asked,) = json.loads(foliot("answer", "-o", "json").out)
    return asked["call_id"]


def test_an_answer_can_be_left_for_whoever_resumes(foliot, waiting) -> None:
    said = foliot("answer", "r1", "red", "--no-resume")
    assert (said.code, said.out) == (0, "")
    assert "foliot resume r1" in said.err
    assert foliot("resume", "r1").out == "It is red.\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("r1", "green"), "not one of the choices"),
        (("r1", "zzz", "red"), "no call 'zzz' that asks"),
        (("r1",), "There is no answer"),
        (("r1", "a", "b", "c"), "Put it in quotes"),
        (("nope", "red"), "nope"),
        (("r1", ""), "empty"),
    ],
)
def test_what_is_no_answer_is_refused_and_nothing_changes(foliot, waiting, words, told) -> None:
    said = foliot("answer", *words)
    assert said.code not in (0, 8)
    assert told in said.err
    assert "Traceback" not in said.err
    assert "r1" in foliot("answer").out


def test_a_long_answer_comes_from_standard_input(foliot, waiting, folder) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "foliot.cli", "answer", "r1", "-"],
        input=b"blue\n",
        capture_output=True,
        timeout=110,
        check=False,
        cwd=folder,
        env=os.environ.copy(),
    )
    assert (done.returncode, done.stdout) == (0, b"It is blue.\n"), done.stderr.decode()


def test_a_run_that_stays_goes_on_by_itself(foliot, folder) -> None:
    staying = subprocess.Popen(
        [sys.executable, "-m", "foliot.cli", "run", "painter.yaml", "paint", "--id", "r2", "--wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=os.environ.copy(),
    )
    try:
        assert staying.stderr is not None
        for line in staying.stderr:  # the pipe ends with the process, so this is bounded
            if b"waiting for an answer: foliot answer r2" in line:
                break
        said = foliot("answer", "r2", "red")
        assert (said.code, said.out) == (0, ""), said.err
        assert "goes on where it is driven" in said.err
        out, err = staying.communicate(timeout=110)
        assert (staying.returncode, out) == (0, b"It is red.\n"), err.decode()
    finally:
        staying.kill()
        staying.communicate()


def test_tools_call_says_that_only_a_run_can_ask(foliot, folder) -> None:
    said = foliot("tools", "call", "ask_user", "--args", '{"question": "Why?"}')
    assert said.code != 0
    assert "only a run can wait" in said.err


class Terminal:
    """A command on a terminal: what it draws can be waited for, and typed into."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._master, slave = pty.openpty()
        command = [sys.executable, "-m", "foliot.cli", *words]
        env = {**os.environ, "TERM": "xterm"}
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=env)
        os.close(slave)
        self.drawn = ""

    def wait_for(self, text: str, *, times: int = 1) -> None:
        deadline = time.monotonic() + 60
        while self.drawn.count(text) < times:
            assert time.monotonic() < deadline, self.drawn
            assert self._read(), self.drawn

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._read():
            pass
        os.close(self._master)
        return self.process.wait(20)

    def _read(self) -> bool:
        if not select.select([self._master], [], [], 0.5)[0]:
            return True
        try:
            self.drawn += os.read(self._master, 65536).decode()
        except OSError:  # how Linux says that nobody holds the other end any more
            return False
        return True


def test_on_a_terminal_the_answer_is_taken_right_there(foliot, folder) -> None:
    terminal = Terminal(folder, "run", "painter.yaml", "paint", "--id", "r3")
    terminal.wait_for("Answer: ")
    assert "Which colour?" in terminal.drawn
    terminal.type("green\n")
    terminal.wait_for("Answer: ", times=2)
    assert "not one of the choices" in terminal.drawn
    terminal.type("2\n")
    assert terminal.end() == 0, terminal.drawn
    assert "It is blue." in terminal.drawn
    assert "by" in foliot("why", "r3").out


def test_whoever_ends_the_input_leaves_the_question_open(foliot, folder) -> None:
    terminal = Terminal(folder, "run", "painter.yaml", "paint", "--id", "r4")
    terminal.wait_for("Answer: ")
    terminal.type("\x04")
    assert terminal.end() == 8, terminal.drawn
    assert "r4" in foliot("answer").out


def test_an_answer_from_elsewhere_is_as_good(foliot, folder) -> None:
    terminal = Terminal(folder, "run", "painter.yaml", "paint", "--id", "r5")
    terminal.wait_for("Answer: ")
    assert foliot("answer", "r5", "red", "--no-resume").code == 0
    terminal.wait_for("answered elsewhere")
    assert terminal.end() == 0, terminal.drawn
    assert "It is red." in terminal.drawn


def test_without_a_text_the_answer_command_asks_too(foliot, waiting, folder) -> None:
    terminal = Terminal(folder, "answer", "r1")
    terminal.wait_for("Answer")
    terminal.type("1\n")
    assert terminal.end() == 0, terminal.drawn
    assert "It is red." in terminal.drawn
