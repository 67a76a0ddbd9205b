"""`foliot run` as a real process: killed, interrupted, piped, and on a terminal of its own."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from foliot.store.journal.database import SqlJournal
from foliot.store.sqlite.database import SqliteDatabase

MANIFEST = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: desk-model}
spec:
  provider: scripted
  default_model: scripted
  script:
    - {say: "Looking.", call: {look: {}}}
    - {call: {pay: {amount: 5}}}
    - {say: "Paid: {last_result}."}
---
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: look}
spec: {type: function, function: "desk_tools:look", effect: read}
---
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: pay}
spec: {type: function, function: "desk_tools:pay", effect: once}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: desk}
spec: {model_ref: desk-model, tools: [look, pay]}
"""
# A tool holds still while the file of its name with `.hold` is there, and says so by making one with `.held`.
TOOLS = """\
import asyncio
from pathlib import Path


async def hold(name):
    for _ in range(60_000):
        if not Path(name + ".hold").exists():
            return
        Path(name + ".held").touch()
        await asyncio.sleep(0.01)


async def look() -> str:
    await hold("look")
    return "all is well"


async def pay(amount: int) -> str:
    with open("ledger.txt", "a") as ledger:
        ledger.write(f"{amount}\\n")
    await hold("pay")
    return f"{amount} euros"
"""
PATIENCE = 60.0


class Desk:
    """A folder with the manifest and its tools, and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("FOLIOT_", "COV", "NO_COLOR"))
        }
        self.environ |= {"FOLIOT_HOME": str(folder / "home"), "TERM": "xterm-256color", "COLUMNS": "80"}
        (folder / "desk.yaml").write_text(MANIFEST)
        (folder / "desk_tools.py").write_text(TOOLS)

    def start(self, *words: str, safe: bool = False, **options) -> subprocess.Popen[str]:
        """`safe` starts it as the installed script is, without the current folder in front of all libraries."""
        return subprocess.Popen(
            [sys.executable, *(["-P"] if safe else []), "-m", "foliot.cli", *words],
            cwd=self.folder,
            env=self.environ,
            text=True,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )

    def foliot(self, *words: str, safe: bool = False) -> tuple[int, str, str]:
        with self.start(*words, safe=safe) as process:
            out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    def hold(self, tool: str) -> None:
        (self.folder / f"{tool}.hold").touch()

    def free(self, tool: str) -> None:
        (self.folder / f"{tool}.hold").unlink()

    def held(self, tool: str) -> Callable[[], bool]:
        return (self.folder / f"{tool}.held").exists

    @property
    def ledger(self) -> list[str]:
        path = self.folder / "ledger.txt"
        return path.read_text().splitlines() if path.exists() else []

    def claim(self, run_id: str, worker: str) -> None:
        """Have somebody hold a run, as a worker does that was faster."""

        async def claim() -> None:
            database = await SqliteDatabase.open(self.folder / "home" / "foliot.db")
            try:
                now = time.time()
                await SqlJournal(database).claim(run_id, worker=worker, now=now, until=now + 60)
            finally:
                await database.close()

        asyncio.run(claim())

    def events(self, run_id: str) -> list[str]:
        return self.query("SELECT type FROM event WHERE run = (SELECT key FROM run WHERE id = ?) ORDER BY seq", run_id)

    def query(self, query: str, *values: str) -> list[str]:
        import apsw

        database = apsw.Connection(str(self.folder / "home" / "foliot.db"))
        found = [str(row[0]) for row in database.execute(query, values)]
        database.close()
        return found


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


CHIEF = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: chief-model}
spec:
  provider: scripted
  default_model: scripted
  script: [{call: {"agent:desk": {input: pay}}}, {say: "{last_result}"}]
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: chief}
spec: {model_ref: chief-model, tools: ["agent:desk"]}
"""


@pytest.mark.parametrize(
    ("words", "heard"),
    [(("run", "chief", "pay"), "Cancelling"), (("task", "run", "chief", "pay", "--here"), "asked to stop")],
)
def test_the_first_ctrl_c_lets_nothing_begin_in_a_sub_agent(desk: Desk, words: tuple[str, ...], heard: str) -> None:
    """The payment is what the sub-agent would do next, as soon as it is let."""
    (desk.folder / "chief.yaml").write_text(CHIEF)
    assert desk.foliot("apply", "-f", "desk.yaml", "-f", "chief.yaml")[0] == 0
    desk.hold("look")
    with desk.start(*words) as process:
        wait_until(desk.held("look"), process)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        for line in process.stderr:
            if heard in line:
                break
        desk.free("look")
        _, err = process.communicate(timeout=PATIENCE)

    assert process.returncode == 130, err
    assert desk.ledger == []
    (sub,) = desk.query("SELECT id FROM run WHERE agent = 'desk'")
    happened = desk.events(sub)
    assert happened[-1] == "run.cancelled"
    assert (happened.count("step.started"), happened.count("tool.started")) == (1, 1)


def killed_while(desk: Desk, tool: str, run_id: str = "r1") -> None:
    """Run until `tool` is under way, and kill -9 the process."""
    desk.hold(tool)
    with desk.start("run", "desk.yaml", "pay", "--id", run_id) as process:
        wait_until(desk.held(tool), process)
        process.kill()
        process.communicate(timeout=PATIENCE)
    desk.free(tool)


def test_a_run_killed_in_a_reading_tool_goes_on_by_itself_and_pays_once(desk: Desk) -> None:
    killed_while(desk, "look")
    assert "interrupted" in desk.foliot("runs")[1]
    traced = desk.foliot("trace", "r1")[1].splitlines()
    assert traced[0].startswith("desk  r1  interrupted · ")
    assert any("look" in line and "cut off: whoever ran it is gone" in line for line in traced)
    assert traced[-1] == "└─ … interrupted: `foliot resume r1` goes on with it"

    code, out, err = desk.foliot("resume")

    assert (code, out) == (0, "Paid: 5 euros.\n"), err
    assert "goes on where it was" in err
    assert desk.ledger == ["5"]
    assert desk.foliot("replay", "r1")[0] == 0
    assert "look was started twice: nobody knew how it had ended" in desk.foliot("why", "r1")[1]


def test_starting_the_same_id_again_after_a_kill_goes_on_too(desk: Desk) -> None:
    killed_while(desk, "look")

    code, out, _ = desk.foliot("run", "desk", "pay", "--id", "r1")

    assert (code, out) == (0, "Paid: 5 euros.\n")
    assert desk.events("r1").count("model.responded") == 3


@pytest.mark.parametrize(
    ("decision", "answer", "payments"),
    [
        (("happened", "--result", "5 euros, says the bank"), "Paid: 5 euros, says the bank.\n", 1),
        (("run",), "Paid: 5 euros.\n", 2),
    ],
)
def test_a_payment_cut_off_by_a_kill_waits_for_a_person(desk: Desk, decision, answer, payments) -> None:
    killed_while(desk, "pay")

    code, out, err = desk.foliot("resume", "r1")
    assert (code, out) == (8, "")
    assert "nobody knows whether pay took effect: amount=5" in err
    typed = [line for line in err.splitlines() if "foliot settle r1" in line]
    assert len(typed) == 3
    assert len({line.index("  # ") for line in typed}) == 1  # one under the other
    assert desk.ledger == ["5"]  # never repeated silently
    assert "waits: unknown_effect" in desk.foliot("runs")[1]
    assert "what it returned" in desk.foliot("why", "r1")[1]

    code, out, err = desk.foliot("settle", "r1", "pay", *decision)

    assert (code, out) == (0, answer), err
    assert len(desk.ledger) == payments
    traced = desk.foliot("trace", "r1")[1]
    assert ("by decision" in traced) == ("--result" in decision)
    assert "stopped" not in traced


def test_a_decision_says_who_goes_on_with_it_when_a_worker_was_faster(desk: Desk) -> None:
    killed_while(desk, "pay")
    assert desk.foliot("resume", "r1")[0] == 8
    desk.claim("r1", "vm/7/4711/1")

    code, out, err = desk.foliot("settle", "r1", "pay", "happened")

    assert (code, out) == (0, ""), err
    assert "Decided: happened." in err
    assert "Run r1 goes on where it is driven: process 4711 on vm has it." in err


def test_a_decision_can_be_made_before_anybody_took_the_run_up(desk: Desk) -> None:
    killed_while(desk, "pay")

    code, _, err = desk.foliot("settle", "r1", "pay", "fail", "--reason", "ask the bank")

    assert code == 1
    assert "ask the bank" in err
    assert desk.events("r1")[-1] == "run.failed"
    assert "decision: end the run (ask the bank)" in desk.foliot("why", "r1")[1]


def test_a_killed_run_can_be_cancelled(desk: Desk) -> None:
    killed_while(desk, "look")

    code, out, _ = desk.foliot("cancel", "r1", "--reason", "changed my mind")

    assert (code, out) == (0, "r1 cancelled\n")
    assert "changed my mind" in desk.foliot("why", "r1")[1]
    assert desk.ledger == []


def test_several_killed_runs_are_taken_up_together(desk: Desk) -> None:
    killed_while(desk, "look", "r1")
    (desk.folder / "look.held").unlink()
    killed_while(desk, "look", "r2")

    code, out, err = desk.foliot("resume")

    assert code == 0, err
    assert "Taking up 2 interrupted runs." in err
    assert sorted(line.split()[1] for line in out.splitlines()) == ["r1", "r2"]
    assert desk.ledger == ["5", "5"]


def test_a_run_that_is_driven_is_left_to_its_process(desk: Desk) -> None:
    desk.hold("look")
    with desk.start("run", "desk.yaml", "pay", "--id", "r1") as process:
        wait_until(desk.held("look"), process)
        assert desk.foliot("resume")[2] == "No interrupted runs in namespace default.\n"
        code, _, err = desk.foliot("resume", "r1")
        assert code == 4
        assert f"run r1 is at work: process {process.pid} on " in err
        assert "`foliot cancel r1` ends it" in err
        assert "It is at work: calling look" in desk.foliot("why", "r1")[1]

        code, out, _ = desk.foliot("cancel", "r1", "--reason", "enough")
        assert (code, "asked to stop" in out) == (0, True)

        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "cancelled" in err
    assert desk.events("r1")[-1] == "run.cancelled"


def test_ctrl_c_cancels_the_run(desk: Desk) -> None:
    desk.hold("pay")
    with desk.start("run", "desk.yaml", "pay", "--id", "r1") as process:
        wait_until(desk.held("pay"), process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)

    assert (process.returncode, out) == (130, "")
    assert "Cancelling" in err
    assert "Traceback" not in err
    assert desk.events("r1")[-1] == "run.cancelled"


def test_ctrl_c_does_not_wait_for_a_tool_that_blocks_its_thread(desk: Desk) -> None:
    blocking = """
import time
from pathlib import Path


def look() -> str:
    for _ in range(60_000):
        Path("look.held").touch()
        time.sleep(0.01)
    return "late"
"""
    (desk.folder / "desk_tools.py").write_text(TOOLS.replace("async def look", "async def other") + blocking)
    with desk.start("run", "desk.yaml", "pay", "--id", "r1") as process:
        wait_until(desk.held("look"), process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)

    assert process.returncode == 130
    assert desk.events("r1")[-1] == "run.cancelled"


def test_json_lines_of_a_process_parse_while_it_runs(desk: Desk) -> None:
    desk.hold("look")
    with desk.start("run", "desk.yaml", "pay", "--json") as process:
        assert process.stdout is not None
        types: list[str] = []
        for line in process.stdout:
            types.append(json.loads(line)["type"])
            if types[-1] == "tool.started" and "tool.finished" not in types:
                desk.free("look")
        process.communicate(timeout=PATIENCE)

    assert process.returncode == 0
    assert types[0] == "run.created"
    assert types[-2:] == ["run.succeeded", "result"]


def test_a_reader_that_leaves_ends_the_command_quietly(desk: Desk) -> None:
    command = f"{sys.executable} -m foliot.cli run desk.yaml pay 2>/dev/null | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=desk.folder, env=desk.environ, capture_output=True, text=True, timeout=PATIENCE
    )

    assert done.returncode in (0, 141)
    assert done.stderr == ""


def on_a_terminal(desk: Desk, *words: str, stdout: int | None = None) -> tuple[int, str]:
    """Run on a terminal of 60 columns; all that was drawn on it."""
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    desk.environ.pop("COLUMNS", None)
    drawn = bytearray()
    process = desk.start(*words, stdin=slave, stdout=slave if stdout is None else stdout, stderr=slave)
    os.close(slave)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        ready, _, _ = select.select([master], [], [], 0.1)
        if ready:
            try:
                drawn += os.read(master, 65536)
            except OSError:  # how Linux says that nobody holds the other end any more
                break
        elif process.poll() is not None:
            break
    process.wait(PATIENCE)
    os.close(master)
    return process.returncode, drawn.decode()


def settled(drawn: str) -> str:
    """What stays on the screen: without colours, and without the lines that were drawn over."""
    import re

    lines: list[str] = []
    for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn).replace("\r\n", "\n").split("\n"):
        lines.append(line.split("\r")[-1].rstrip())
    return "\n".join(lines)


def test_on_a_terminal_the_answer_appears_once_among_the_steps(desk: Desk) -> None:
    code, drawn = on_a_terminal(desk, "run", "desk.yaml", "pay")

    assert code == 0
    assert "\x1b[" in drawn
    screen = settled(drawn)
    assert screen.count("✓ look") == 1
    assert screen.count("✓ pay amount=5") == 1
    assert screen.rstrip().splitlines()[-1].strip() != "Paid: 5 euros."
    assert "✓ succeeded" in screen


def test_no_color_is_kept_on_a_terminal(desk: Desk) -> None:
    import re

    _, drawn = on_a_terminal(desk, "run", "desk.yaml", "pay", "--no-color")

    colours = re.findall(r"\x1b\[(?:3[0-7]|9[0-7])(?:;\d+)*m", drawn)
    assert colours == []


def test_a_piped_answer_is_not_drawn_on_the_terminal(desk: Desk) -> None:
    answer = desk.folder / "answer.txt"
    with answer.open("w") as file:
        code, drawn = on_a_terminal(desk, "run", "desk.yaml", "pay", stdout=file.fileno())

    assert code == 0
    assert answer.read_text() == "Paid: 5 euros.\n"
    assert "Paid: 5 euros." not in settled(drawn)
    assert "✓ pay amount=5" in settled(drawn)


def test_rich_is_not_loaded_without_a_terminal(desk: Desk) -> None:
    code = (
        "import sys; from foliot.cli.main import cli\n"
        "try: cli.main(['run', 'desk.yaml', 'pay'])\n"
        "except SystemExit: sys.exit('rich' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=desk.folder,
        env=desk.environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert (done.returncode, done.stdout) == (0, "Paid: 5 euros.\n"), done.stderr


@pytest.mark.parametrize("safe", [True, False])
def test_what_lies_where_one_works_is_never_taken_for_a_library(desk, safe):
    """Tools are imported from the current folder and from that of the manifests; libraries are not."""
    folder = desk.folder / "manifests"
    folder.mkdir()
    (desk.folder / "desk.yaml").rename(folder / "desk.yaml")
    (desk.folder / "desk_tools.py").rename(folder / "desk_tools.py")
    for library in ("json", "yaml", "msgspec", "secrets", "pydantic", "jsonschema_rs", "uuid", "click", "inspect"):
        for place in (folder, desk.folder):
            (place / f"{library}.py").write_text(f"raise SystemExit('{library}.py was imported')\n")

    code, out, err = desk.foliot("run", "desk", "-f", "manifests/desk.yaml", "hello", safe=safe)

    assert (code, out.strip()) == (0, "Paid: 5 euros."), err
