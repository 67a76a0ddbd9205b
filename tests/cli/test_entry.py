"""The first moment of a process: Ctrl-C while it loads, and standard streams that somebody has closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FOLIOT = [sys.executable, "-m", "foliot.cli"]
# A library that tells when it is being loaded, and stays there.
STUCK = "import os, signal\nos.write(2, b'loading')\nwhile True: signal.pause()\n"
COMMANDS = [["version"], ["validate", "-"], ["run", "nobody"]]
CLOSED = ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"]


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "FOLIOT_HOME": str(folder / "home"), **more}


@pytest.mark.parametrize(("module", "command"), [("click", ["version"]), ("click", ["up"])])
def test_an_interrupt_while_it_loads_is_no_traceback(module: str, command: list[str], tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(STUCK)
    env = environment(tmp_path, PYTHONPATH=str(tmp_path))
    pipe = subprocess.PIPE
    with subprocess.Popen([*FOLIOT, *command], env=env, stdout=pipe, stderr=pipe, cwd=tmp_path) as process:
        assert process.stderr is not None
        told = process.stderr.read(len(b"loading"))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert told == b"loading"

    assert (out, err) == (b"", b"")
    assert process.returncode in (-signal.SIGINT, 130), "a shell says 130 of both"


def test_a_process_that_is_told_to_ignore_interrupts_does(tmp_path: Path) -> None:
    script = f"trap '' INT; kill -INT $$; exec {' '.join(FOLIOT)} version"
    done = subprocess.run(["bash", "-c", script], env=environment(tmp_path), capture_output=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("command", COMMANDS)
def test_closed_streams_are_no_fault(command: list[str], tmp_path: Path) -> None:
    """The command does what it does with an empty input, and where nobody reads."""

    def run(how: str) -> subprocess.CompletedProcess[bytes]:
        script = f"{' '.join([*FOLIOT, *command])} {how}"
        return subprocess.run(["bash", "-c", script], env=environment(tmp_path), capture_output=True, timeout=60)

    usual = run("</dev/null")
    for closed in CLOSED:
        done = run(closed if "<" in closed else f"</dev/null {closed}")
        silent = " >&-" in f" {closed}", "2>&-" in closed

        assert done.returncode == usual.returncode, (closed, done.stderr)
        assert done.stdout == (b"" if silent[0] else usual.stdout), closed
        assert done.stderr == (b"" if silent[1] else usual.stderr), closed


def test_nothing_else_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """A database that is opened as number 1 would be printed into."""
    code = (
        "from foliot.cli.entry import fill_streams; fill_streams(); import os, sys\n"
        "opened = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)\n"
        "print('words', flush=True); print('more', file=sys.stderr, flush=True)\n"
        "os.write(opened, b'%d' % opened if sys.stdin.read() == '' else b'')\n"
    )
    file = tmp_path / "database"
    script = f"exec {sys.executable} -c \"$0\" '{file}' <&- >&- 2>&-"
    subprocess.run(["bash", "-c", script, code], check=True, timeout=60)

    assert int(file.read_text()) > 2
