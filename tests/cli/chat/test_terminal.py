"""`foliot chat` on a terminal: the real command behind a pseudo-terminal, with an agent that plays a script."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from foliot.common.text import UNSAFE
from tests.adversary.test_terminal import EVIL, FORGED
from tests.cli.conftest import Foliot

PATIENCE = 60
# What the chat itself sends to a terminal: colours, moving up and right, erasing below, and pastes on and off.
OURS = re.compile(r"\x1b\[(?:[0-9;]*m|[0-9]+[AC]|J|\?2004[hl])")
TOOLS = """
import pathlib, time

EVIL = {evil!r}

def slow() -> str:
    deadline = time.monotonic() + 60
    while not pathlib.Path("go").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return "slow is done"

def pay(amount: int, note: str = "") -> str:
    with open("ledger", "a") as file:
        file.write(f"{{amount}}\\n")
    return f"paid {{amount}}"

def evil() -> str:
    raise ValueError(EVIL)

def draw() -> list:
    from foliot.kernel.messages import Media, Text

    return [Text("drawn"), Media("image/png", data="iVBORw0KGgo=", name="../../evil\\x1b[2J.png")]
"""
SCRIPT = {
    "count": "input",
    "turns": [
        {"when": {"input": "work"}, "say": "I begin.", "call": {"slow": {}}},
        {"when": {"input": "work"}, "say": "Work is over: {last_result}"},
        {"when": {"input": "blue"}, "say": "Blue it is."},
        {"when": {"input": "pay"}, "call": {"pay": {"amount": 5, "note": EVIL}}},
        {"when": {"input": "pay"}, "say": "The desk says: {last_result}"},
        {"when": {"input": "colour"}, "call": {"ask_user": {"question": f"Which?{EVIL}", "choices": ["red", "blue"]}}},
        {"when": {"input": "colour"}, "say": "It is {last_result}."},
        {"when": {"input": "stall"}, "after": "1h", "say": "late"},
        {"when": {"input": "order"}, "call": {"agent:buyer": {"input": "Buy."}}},
        {"when": {"input": "order"}, "say": "The buyer says: {last_result}"},
        {"when": {"input": "picture"}, "call": {"draw": {}}},
        {"when": {"input": "picture"}, "say": "There it is."},
        {"when": {"input": "evil"}, "say": EVIL, "call": {"evil": {}}},
        {"when": {"input": "evil"}, "say": EVIL},
    ],
    "otherwise": "You said: {input}",
}
BUYER = [
    {"call": {"ask_user": {"question": "Which shop?"}}},
    {"call": {"pay": {"amount": 7, "note": "{last_result}"}}},
    {"say": "{last_result}"},
]


def document(kind: str, name: str, spec: dict[str, object]) -> dict[str, object]:
    return {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


MANIFESTS = [
    document("ModelEndpoint", "brain", {"provider": "scripted", "default_model": "scripted", "script": SCRIPT}),
    document("ModelEndpoint", "buying", {"provider": "scripted", "default_model": "scripted", "script": BUYER}),
    document("Agent", "buyer", {"model_ref": "buying", "prompt": "Buy.", "tools": ["pay", "ask_user"]}),
    *(document("Tool", name, {"type": "function", "function": f"desk:{name}"}) for name in ("slow", "evil", "draw")),
    document("Tool", "pay", {"type": "function", "function": "desk:pay", "operation_classes": ["write"]}),
    document(
        "ToolPermission",
        "pay",
        {"tool_ref": "pay", "operation_rules": [{"operation_class": "write", "verdict": "approval_required"}]},
    ),
    document(
        "Agent",
        "desk",
        {
            "model_ref": "brain",
            "prompt": "Work.",
            "tools": ["slow", "pay", "evil", "draw", "ask_user", "agent:buyer"],
            "execution": {"on_denied": "tell"},
        },
    ),
]


class Place:
    """A folder with the agent, its tools and a home of its own."""

    def __init__(self, folder: Path, foliot: Foliot) -> None:
        self.folder = folder
        self._here = foliot
        (folder / "desk.py").write_text(TOOLS.format(evil=EVIL), encoding="utf-8")
        manifests = {"apiVersion": "foliot.dev/v1", "kind": "List", "items": MANIFESTS}
        (folder / "desk.json").write_text(json.dumps(manifests))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOLIOT_")}
        self.environ = {**kept, "FOLIOT_HOME": str(folder / "home"), "TERM": "xterm", "COLUMNS": "100", "USER": "ann"}
        self.ask("apply", "-f", "desk.json")

    def ask(self, *words: str, code: int = 0) -> str:
        """What a command says, run in this process: for what a test only looks at, or has ready."""
        said = self._here(*words)
        assert said.code == code, said.out + said.err
        return said.out + (said.err if code else "")

    def foliot(self, *words: str, stdin: str = "", code: int = 0, errors: bool = False) -> str:
        command = [sys.executable, "-m", "foliot.cli", *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environ, input=stdin.encode(), capture_output=True, timeout=PATIENCE
        )
        assert done.returncode == code, (done.stdout + done.stderr).decode()
        return done.stdout.decode() + (done.stderr.decode() if code or errors else "")

    def sessions(self) -> list[dict[str, object]]:
        return json.loads(self.ask("sessions", "list", "--archived", "-o", "json"))["items"]

    def wait_until_idle(self) -> None:
        """Waits until no session has a turn at work: its end is told a moment before the session is free."""
        deadline = time.monotonic() + PATIENCE
        while at_work := [each for each in self.sessions() if each["turn"]]:
            assert time.monotonic() < deadline, at_work

    @property
    def paid(self) -> list[str]:
        return (self.folder / "ledger").read_text().split() if (self.folder / "ledger").exists() else []


# What a shell does with a job that stops: it says so, and continues it when it is asked to (SIGUSR1 here).
SHELL = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    status = os.waitpid(job, os.WUNTRACED)[1]
    if not os.WIFSTOPPED(status):
        sys.exit(os.waitstatus_to_exitcode(status))
    os.write(1, b"[the shell is back]")
    signal.sigwait({signal.SIGUSR1})
    os.killpg(job, signal.SIGCONT)
"""


class Terminal:
    """A chat on a terminal: what it draws can be waited for, and typed into."""

    def __init__(self, place: Place, *words: str, shell: bool = False) -> None:
        self._master, slave = pty.openpty()
        self.resize(100)
        program = [sys.executable, "-m", "foliot.cli", "chat", *words]
        self.process = subprocess.Popen(
            [sys.executable, "-c", SHELL, *program] if shell else program,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=place.folder,
            env=place.environ,
            start_new_session=True,
        )
        os.close(slave)
        self.drawn = ""
        self._seen = 0

    def wait_for(self, text: str) -> None:
        """Waits until this is drawn behind what was waited for before."""
        deadline = time.monotonic() + PATIENCE
        while (found := self.drawn.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline, f"{text!r} is not in {self.drawn[self._seen :]}"
            assert self._read(), f"it ended without {text!r}: {self.drawn[self._seen :]}"
        self._seen = found + len(text)

    def wait_for_all(self, *texts: str) -> None:
        """Waits until all of these are drawn, in any order: what a command says, and what its session does."""
        begin, last = self._seen, 0
        for text in texts:
            self._seen = begin
            self.wait_for(text)
            last = max(last, self._seen)
        self._seen = last

    def wait_for_end(self) -> None:
        """Waits until a turn is over: an empty row stands above the prompt."""
        self.wait_for("\x1b[J\n\r\x1b[J> ")

    def resize(self, columns: int) -> None:
        """Makes the terminal so wide."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    @property
    def is_as_found(self) -> bool:
        """Whether the terminal edits lines and echoes them, as it did before the chat."""
        return (termios.tcgetattr(self._master)[3] & (termios.ICANON | termios.ECHO)) == termios.ICANON | termios.ECHO

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def enter(self, text: str) -> None:
        self.type(f"{text}\r")

    def end(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self._read():
            pass
        return self.process.wait(20)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        os.close(self._master)

    def _read(self) -> bool:
        if not select.select([self._master], [], [], 0.5)[0]:
            return True
        try:
            self.drawn += os.read(self._master, 65536).decode(errors="replace").replace("\r\n", "\n")
        except OSError:  # how Linux says that nobody holds the other end any more
            return False
        return True


@pytest.fixture
def place(tmp_path: Path, foliot: Foliot, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("USER", "ann")
    return Place(tmp_path, foliot)


@pytest.fixture
def terminals(place: Place) -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for each in opened:
        each.close()


@pytest.fixture
def start(place: Place, terminals: list[Terminal]):
    def started(*words: str, shell: bool = False) -> Terminal:
        terminals.append(Terminal(place, *words, shell=shell))
        terminals[-1].wait_for("/help lists commands")
        return terminals[-1]

    return started


def test_a_message_of_several_lines_is_answered_and_the_session_stays(place: Place, start) -> None:
    terminal = start("desk")
    terminal.enter("hello\\")
    terminal.enter("**world**")
    terminal.wait_for("You said: hello")
    terminal.wait_for("│ \x1b[0m\x1b[1mworld")
    terminal.wait_for_end()  # who leaves before leaves the turn to the next one who looks
    terminal.type("\x04")
    assert terminal.end() == 0, terminal.drawn

    (session,) = place.sessions()
    assert session["turns"] == 1
    assert f"foliot chat --session {session['id']}" in terminal.drawn
    assert "You said: hello" in place.ask("sessions", "history", str(session["id"]))


def test_what_is_typed_while_the_agent_works_is_heard_between_two_steps(place: Place, start) -> None:
    terminal = start("desk")
    terminal.enter("work")
    terminal.wait_for("calls slow")
    terminal.enter("rather blue")
    terminal.wait_for("(steer: queued)")
    (place.folder / "go").touch()
    terminal.wait_for("heard: rather blue")
    terminal.wait_for("Blue it is.")

    (session,) = place.sessions()
    assert session["turns"] == 1


def test_a_followup_is_a_turn_of_its_own(place: Place, start) -> None:
    terminal = start("desk")
    terminal.enter("work")
    terminal.wait_for("calls slow")
    terminal.enter("/followup and then")
    terminal.wait_for("(followup: queued)")
    (place.folder / "go").touch()
    terminal.wait_for("Work is over: slow is done")
    terminal.wait_for("You said: and then")
    (session,) = place.sessions()
    assert session["turns"] == 2


@pytest.mark.parametrize(("word", "paid", "said"), [("y", ["5"], "paid 5"), ("no", [], "denied")])
def test_an_approval_is_given_or_refused_inline(place: Place, start, word: str, paid: list[str], said: str) -> None:
    terminal = start("desk")
    terminal.enter("pay")
    terminal.wait_for('"amount": 5')
    terminal.wait_for("Allow pay? [y/n]")
    terminal.enter("maybe")
    terminal.wait_for("Answer y or n.")
    assert place.paid == []
    terminal.enter(word)
    if paid:
        terminal.wait_for("(approved by ann)")
    terminal.wait_for("The desk says:")
    terminal.wait_for(said)
    assert place.paid == paid


def test_a_question_is_answered_inline(place: Place, start) -> None:
    terminal = start("desk")
    terminal.enter("colour")
    terminal.wait_for("Answer: ")
    terminal.enter("green")
    terminal.wait_for("not one of the choices")
    terminal.enter("2")
    terminal.wait_for("It is blue")


def test_what_a_sub_agent_asks_is_shown_and_decided_inline(place: Place, start) -> None:
    terminal = start("desk")
    terminal.enter("order")
    terminal.wait_for("Which shop?")
    terminal.wait_for("Answer: ")
    assert " waiting " in place.ask("sessions")
    terminal.enter("the corner")
    terminal.wait_for('"note": "the corner"')
    terminal.wait_for("Allow pay? [y/n]")
    assert place.paid == []
    terminal.enter("y")
    terminal.wait_for("The buyer says: paid 7")
    assert place.paid == ["7"]


def test_a_chat_that_is_opened_later_shows_what_a_sub_agent_asks(place: Place, start) -> None:
    told = place.foliot("chat", "desk", stdin="order", code=8)
    assert "foliot answer sub-" in told
    assert " waiting " in place.ask("sessions")
    assert "foliot approvals approve" in place.foliot("chat", "desk", stdin="the corner", code=8)
    terminal = start("desk")
    terminal.wait_for('"note": "the corner"')
    terminal.wait_for("Allow pay? [y/n]")
    terminal.enter("n")
    terminal.wait_for("The buyer says:")
    assert place.paid == []


def test_a_chat_that_is_killed_goes_on_with_the_turn_at_work(place: Place, start) -> None:
    killed = start("desk")
    killed.enter("pay")
    killed.wait_for("Allow pay? [y/n]")
    killed.kill()

    terminal = start("desk")
    terminal.wait_for("said before")
    terminal.wait_for("Allow pay? [y/n]")
    terminal.enter("y")
    terminal.wait_for("The desk says: paid 5")

    assert place.paid == ["5"]
    (session,) = place.sessions()
    assert session["turns"] == 1


def test_a_turn_that_was_killed_in_the_middle_of_a_tool_goes_on(place: Place, start) -> None:
    place.ask("delete", "tool", "slow")
    idempotent = document("Tool", "slow", {"type": "function", "function": "desk:slow", "effect": "read"})
    (place.folder / "slow.json").write_text(json.dumps(idempotent))
    place.ask("apply", "-f", "slow.json")
    killed = start("desk")
    killed.enter("work")
    killed.wait_for("calls slow")
    killed.kill()
    (place.folder / "go").touch()

    terminal = start("--resume")
    terminal.wait_for("Work is over: slow is done")
    terminal.enter("hello")
    terminal.wait_for("You said: hello")


def test_ctrl_c_stops_the_turn_and_a_second_one_leaves(place: Place, start) -> None:
    terminal = start("desk")
    terminal.enter("stall")
    terminal.wait_for("working")
    terminal.type("\x03")
    terminal.wait_for("■ stopped")
    place.wait_until_idle()
    terminal.enter("hello")
    terminal.wait_for("You said: hello")
    terminal.wait_for_end()
    terminal.type("\x03")
    terminal.wait_for("Nothing is at work")
    terminal.type("\x03")
    assert terminal.end() == 0, terminal.drawn


def test_an_interrupt_ends_the_turn_and_is_answered_first(place: Place, start) -> None:
    terminal = start("desk")
    terminal.enter("stall")
    terminal.wait_for("working")
    terminal.enter("/interrupt now")
    terminal.wait_for("interrupted")
    terminal.wait_for("You said: now")


def test_a_conversation_is_compacted_and_stays_readable(place: Place, start) -> None:
    terminal = start("desk")
    for number in range(12):
        terminal.enter(f"fact {number}: " + "tick " * 100)
        terminal.wait_for(f"You said: fact {number}")
        terminal.wait_for_end()
    terminal.enter("/compact")
    terminal.wait_for("4 messages are summarized from now on")
    terminal.enter("hello again")
    terminal.wait_for("You said: hello again")
    (session,) = place.sessions()
    assert "fact 0: tick" in place.ask("sessions", "history", str(session["id"]))


def test_an_answer_is_given_again_and_the_earlier_one_is_kept(place: Place, start) -> None:
    terminal = start("desk")
    terminal.enter("hello")
    terminal.wait_for("You said: hello")
    terminal.wait_for_end()
    terminal.enter("/history")
    terminal.wait_for("turn 1 (succeeded)")
    terminal.wait_for("You said: hello")
    terminal.enter("/regenerate")
    terminal.wait_for("You said: hello")
    terminal.wait_for_end()
    terminal.enter("/history")
    terminal.wait_for("turn 1 (succeeded, another branch)")
    terminal.wait_for("turn 2 (succeeded)")


def test_a_picture_is_shown_as_a_link_to_a_private_file(place: Place, start) -> None:
    terminal = start("desk")
    terminal.enter("a picture")
    terminal.wait_for("file://")
    terminal.wait_for("There it is.")
    (kept,) = (place.folder / "home" / "chat-files").iterdir()
    assert kept.read_bytes() == b"\x89PNG\r\n\x1a\n"
    assert (kept.suffix, kept.stat().st_mode & 0o777) == (".png", 0o600)
    flat = re.sub(r"\s*\|?\s+", "", OURS.sub("", terminal.drawn))
    assert kept.name in flat
    assert not UNSAFE.search(OURS.sub("", terminal.drawn).replace("\r", "").replace("\n", ""))


def test_a_branch_is_continued(place: Place, start) -> None:
    terminal = start("desk")
    for text in ("hello", "and then"):
        terminal.enter(text)
        terminal.wait_for(f"You said: {text}")
        terminal.wait_for_end()
    terminal.enter("/branch one")
    terminal.wait_for("/branch takes the number of a turn")
    terminal.enter("/branch 9")
    terminal.wait_for("has no turn 9")
    terminal.enter("/branch 1")
    terminal.wait_for("What is said next continues after turn 1.")
    terminal.enter("elsewhere")
    terminal.wait_for("You said: elsewhere")
    terminal.wait_for_end()
    terminal.enter("/history")
    terminal.wait_for("turn 1 (succeeded)")
    terminal.wait_for("turn 2 (succeeded, another branch)")
    terminal.wait_for("turn 3 (succeeded)")


def test_another_model_answers_from_the_next_turn_on(place: Place, start) -> None:
    script = {"turns": [], "otherwise": "The other one heard: {input}"}
    other = document("ModelEndpoint", "other", {"provider": "scripted", "default_model": "m", "script": script})
    (place.folder / "other.json").write_text(json.dumps(other))
    place.ask("apply", "-f", "other.json")
    terminal = start("desk")
    terminal.enter("/model")
    terminal.wait_for("model: that of the agent")
    terminal.enter("/model nowhere")
    terminal.wait_for("nowhere")
    terminal.enter("/model other")
    terminal.wait_for("model: other")
    terminal.enter("hello")
    terminal.wait_for("The other one heard: hello")
    terminal.wait_for_end()
    terminal.enter("/model -")
    terminal.wait_for("model: that of the agent")
    terminal.enter("again")
    terminal.wait_for("You said: again")


def test_what_is_typed_is_drawn_anew_when_the_window_changes(place: Place, start) -> None:
    del place.environ["COLUMNS"]
    terminal = start("desk")
    terminal.resize(40)
    terminal.type("x" * 60)
    terminal.wait_for("x" * 10)
    assert "x" * 41 not in terminal.drawn
    terminal.resize(100)
    terminal.process.send_signal(signal.SIGWINCH)
    terminal.wait_for("> " + "x" * 60)
    terminal.enter("")
    terminal.wait_for("You said: " + "x" * 60)


def test_ctrl_z_gives_the_terminal_back_and_fg_goes_on(place: Place, start) -> None:
    terminal = start("desk", shell=True)
    terminal.enter("hello")
    terminal.wait_for("You said: hello")
    terminal.wait_for_end()
    assert not terminal.is_as_found
    terminal.type("half a sen\x1a")
    terminal.wait_for("[the shell is back]")
    assert terminal.is_as_found
    terminal.process.send_signal(signal.SIGUSR1)
    terminal.wait_for("> half a sen")
    assert not terminal.is_as_found
    terminal.enter("tence")
    terminal.wait_for("You said: half a sentence")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_a_new_session_begins_and_the_title_is_changed(place: Place, start) -> None:
    terminal = start("desk")
    terminal.enter("/title Clocks and more")
    terminal.wait_for("title: Clocks and more")
    terminal.enter("/new Other")
    terminal.wait_for("Other")
    terminal.wait_for("/help lists commands")
    terminal.enter("/whoami")
    terminal.wait_for("ann; session")
    terminal.enter("/path/to/file is no command")
    terminal.wait_for("You said: /path/to/file is no command")
    assert sorted(str(each["title"]) for each in place.sessions()) == ["Clocks and more", "Other"]


def test_no_secret_is_said_or_kept(place: Place, start) -> None:
    terminal = start("desk")
    terminal.enter("/config TOKEN s3same")
    terminal.wait_for("Nothing was kept.")
    terminal.enter("hello")
    terminal.wait_for("You said: hello")
    terminal.type("\x1b[A\x1b[A")
    terminal.type("\x04\x04")
    kept = (place.folder / "home" / "chat_history").read_text()
    assert "hello" in kept
    assert "s3same" not in kept
    (session,) = place.sessions()
    assert "s3same" not in place.ask("sessions", "history", str(session["id"]))


def test_what_was_typed_is_recalled_by_the_next_chat(place: Place, start) -> None:
    first = start("desk")
    first.enter("the first thing")
    first.wait_for("You said: the first thing")
    first.type("\x04")
    assert first.end() == 0

    second = start("desk")
    second.type("\x1b[A\r")
    second.wait_for("You said: the first thing")


def test_texts_of_models_and_tools_steer_nothing_and_forge_no_prompt(place: Place, start) -> None:
    terminal = start("desk")
    terminal.enter("evil")
    terminal.wait_for("✗")
    terminal.enter("/followup pay")
    terminal.wait_for("Allow pay?")
    terminal.enter("n")
    terminal.wait_for("The desk says")
    terminal.type("\x04")
    assert terminal.end() == 0

    plain = OURS.sub("", terminal.drawn).replace("\r", "\n")
    assert not (found := UNSAFE.search(plain)), repr(found and plain[max(0, found.start() - 80) : found.end() + 20])
    assert not [line for line in plain.split("\n") if line.startswith(FORGED)]


def test_the_terminal_is_given_back_as_it_was(place: Place, start) -> None:
    terminal = start("desk")
    assert "\x1b[?2004h" in terminal.drawn
    terminal.type("\x04")
    assert terminal.end() == 0
    assert terminal.drawn.rstrip().rfind("\x1b[?2004l") > terminal.drawn.rfind("\x1b[?2004h")


# --- without a terminal ------------------------------------------------------------------------------------------


def test_in_a_pipe_the_whole_input_is_one_message_and_the_answer_is_printed(place: Place) -> None:
    assert place.foliot("chat", "desk", stdin="one\ntwo\n") == "You said: one\ntwo\n"
    assert place.foliot("chat", "desk", "--lines", stdin="one\ntwo\n") == "You said: one\nYou said: two\n"
    (session,) = place.sessions()
    assert session["turns"] == 3


def test_in_a_pipe_a_turn_that_waits_for_a_person_ends_with_code_8(place: Place) -> None:
    told = place.foliot("chat", "desk", stdin="pay", code=8)
    assert "foliot approvals approve" in told
    (session,) = place.sessions()
    assert place.paid == []
    assert session["turn"]


def test_in_a_pipe_what_waits_behind_a_turn_that_asks_ends_with_code_8(place: Place) -> None:
    place.foliot("chat", "desk", stdin="pay", code=8)
    told = place.foliot("chat", "desk", stdin="and this", code=8)
    assert "foliot approvals approve" in told
    assert " waiting " in place.ask("sessions")
    assert json.loads(place.ask("sessions", "-o", "json"))["items"][0]["arrivals"] == 2
    assert "waits for a person" in place.foliot("chat", "desk", "--new", stdin="hi", code=0, errors=True)


def test_in_a_pipe_a_turn_that_cannot_begin_ends_with_code_1_and_one_line(place: Place) -> None:
    (place.folder / "desk.py").unlink()
    told = place.foliot("chat", "desk", stdin="work", code=1)
    assert [line.split(":")[0] for line in told.splitlines()] == ["error", "hint"]
    assert "desk" in told


def test_a_run_that_is_restarted_prints_its_answer(place: Place) -> None:
    place.foliot("run", "desk", "hello")
    (run,) = json.loads(place.ask("runs", "-o", "json"))["items"]
    assert "You said: again" in place.foliot("say", run["metadata"]["name"], "again")


def test_a_misspelt_command_is_said_to_nobody(place: Place, start) -> None:
    chat = start("desk")
    chat.enter("/modle foo")
    chat.wait_for("did you mean /model?")
    chat.enter("/steer")
    chat.wait_for("needs a text")
    chat.enter("/compact")
    chat.wait_for("nothing was said")
    chat.enter("/etc/hosts is a file")
    chat.wait_for("You said: /etc/hosts")
    chat.wait_for_end()
    chat.enter("/compact")
    chat.wait_for("nothing to compact yet")
    assert place.sessions()[0]["turns"] == 1


def test_what_waits_behind_a_turn_is_dropped_with_it(place: Place, start) -> None:
    chat = start("desk")
    chat.enter("work")
    chat.wait_for("I begin.")
    chat.enter("/followup later")
    chat.wait_for("(followup: queued)")
    chat.enter("/stop all")
    chat.wait_for_all("■ stopped", "What waited was taken out.")
    assert place.sessions()[0]["turns"] == 1


def test_in_a_pipe_events_are_json_lines_with_one_end(place: Place) -> None:
    lines = [json.loads(line) for line in place.foliot("chat", "desk", "-o", "json", stdin="hello").splitlines()]
    assert [line["type"] for line in lines].count("end") == 1
    assert lines[-1]["text"] == "You said: hello"


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (("chat", "desk"), ""),
        (("chat", "desk", "--session", "x"), "hi"),
        (("chat", "--mode", "shout", "desk"), "hi"),
        (("chat", "--resume", "--new"), "hi"),
    ],
)
def test_what_makes_no_chat_is_refused(place: Place, words: tuple[str, ...], stdin: str) -> None:
    assert "error:" in place.foliot(*words, stdin=stdin, code=2)


def test_sessions_are_listed_read_and_put_away(place: Place) -> None:
    place.foliot("chat", "desk", stdin="hello")
    id = place.ask("sessions", "list", "-o", "name").strip()
    assert "hello" in place.ask("sessions", "show", id)
    assert place.ask("sessions", "say", id, "again") == "You said: again\n"
    assert place.ask("sessions", "stop", id) == ""
    assert "hello" in place.ask("sessions", "search", "hello")
    other = place.ask("sessions", "rotate", "desk").strip()
    assert {each["id"] for each in place.sessions()} == {id, other}
    assert "archived" in place.ask("sessions", "archive", other)
    place.ask("sessions", "say", id, "more", code=4)
    place.ask("sessions", "delete", other)
    place.ask("sessions", "show", other, code=3)
