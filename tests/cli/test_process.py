"""The command line as a process of its own: what it loads, pipes, signals, colours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

FOLIOT = [sys.executable, "-m", "foliot.cli"]
HEAVY = (
    *("pydantic", "rich", "aiohttp", "asyncpg", "cryptography", "yaml", "nats"),
    *("foliot.kernel.messages", "foliot.runtime.inside", "foliot.client.http", "foliot.tools.base"),
)


@pytest.fixture
def environ(home: Path) -> dict[str, str]:
    return dict(os.environ)


def run(environ: dict[str, str], *words: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [*FOLIOT, *map(str, words)]
    return subprocess.run(command, env=environ, input=stdin, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.parametrize("words", [["--help"], ["get", "agents"], ["get", "agents", "-o", "yaml"], ["version"]])
def test_nothing_heavy_is_loaded_to_show_help_or_a_list(environ, words):
    code = (
        "import json, sys; sys.argv = ['foliot', *sys.argv[1:]]\n"
        "from foliot.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: code = end.code\n"
        "print(json.dumps([code, [m for m in " + repr(HEAVY) + " if m in sys.modules]]), file=sys.stderr)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=environ, capture_output=True, text=True, timeout=110
    )

    assert json.loads(done.stderr.splitlines()[-1]) == [0, []]


def test_help_does_not_even_load_asyncio_or_the_store(environ):
    code = "import sys\nfrom foliot.cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
    code += "sys.exit(any(m in sys.modules for m in ('asyncio', 'apsw', 'foliot.store.resources.database')))"

    assert (
        subprocess.run([sys.executable, "-c", code], env=environ, stdout=subprocess.DEVNULL, timeout=110).returncode
        == 0
    )


def test_exit_codes_reach_the_shell(environ, manifest):
    assert run(environ, "apply", "-f", manifest).returncode == 0
    assert run(environ, "get", "agent", "writer").returncode == 0
    assert run(environ, "get", "agent", "nobody").returncode == 3
    assert run(environ, "diff", "-f", manifest).returncode == 0
    assert run(environ, "nonsense").returncode == 2
    assert run(environ, "apply", "-f", "nowhere.yaml").returncode == 3


def test_no_colour_goes_into_a_pipe_and_force_color_brings_it_back(environ, manifest):
    plain = run(environ, "apply", "-f", manifest)
    forced = run({**environ, "FORCE_COLOR": "1"}, "apply", "-f", manifest)
    refused = run({**environ, "FORCE_COLOR": "1", "NO_COLOR": "1"}, "apply", "-f", manifest)

    assert "\x1b[" not in plain.stdout + plain.stderr
    assert "\x1b[" in forced.stdout
    assert "\x1b[" not in refused.stdout


def test_a_reader_that_leaves_ends_the_command_quietly(environ, manifest):
    run(environ, "apply", "-f", manifest)
    read, write = os.pipe()
    os.close(read)  # nobody will ever read: the first write fails

    with os.fdopen(write, "wb") as gone:
        command = [*FOLIOT, "get", "agents"]
        done = subprocess.run(command, env=environ, stdout=gone, stderr=subprocess.PIPE, text=True, timeout=110)

    assert done.returncode == 141
    assert done.stderr == ""


def test_a_watch_prints_changes_of_other_processes_and_ends_with_ctrl_c(environ, manifest):
    run(environ, "apply", "-f", manifest)
    command = [*FOLIOT, "get", "agents", "-w"]
    watch = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    guard = threading.Timer(110, watch.kill)
    guard.start()
    try:
        assert watch.stdout is not None
        listed = [watch.stdout.readline().split() for _ in range(3)]
        run(environ, "delete", "agent", "editor")
        deleted = watch.stdout.readline().split()
        watch.send_signal(signal.SIGINT)
        rest, errors = watch.communicate()
    finally:
        guard.cancel()
        watch.kill()
        watch.wait()

    assert listed[0][:2] == ["CHANGE", "NAME"]
    assert [row[0] for row in listed[1:]] == ["editor", "writer"]
    assert deleted[:2] == ["deleted", "editor"]
    assert rest == ""
    assert "Traceback" not in errors
    assert watch.returncode == 130


def test_standard_input_is_a_manifest(environ, manifest):
    done = run(environ, "apply", "-f", "-", stdin=manifest.read_text())

    assert done.returncode == 0
    assert "agent/writer created" in done.stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [("foliot des", "describe"), ("foliot get agent-s", "agent-systems"), ("foliot get agent/w", "agent/writer")],
)
def test_the_shell_is_offered_commands_kinds_and_names(environ, manifest, line, offered):
    run(environ, "apply", "-f", manifest)
    asked = {"_FOLIOT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    script = "from foliot.cli.main import main; main()"

    done = subprocess.run(
        [sys.executable, "-c", script], env={**environ, **asked}, capture_output=True, text=True, timeout=110
    )

    assert f"plain,{offered}" in done.stdout.splitlines()


def test_completing_without_a_usable_store_offers_nothing_and_says_nothing(environ):
    asked = {"_FOLIOT_COMPLETE": "bash_complete", "COMP_WORDS": "foliot get agent/", "COMP_CWORD": "2"}
    script = "from foliot.cli.main import main; main()"

    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**environ, **asked, "FOLIOT_STORE": "mysql://x"},
        capture_output=True,
        text=True,
        timeout=110,
    )

    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_data_reaches_a_pipe_byte_for_byte() -> None:
    data = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \u202e"
    code = "import sys; from foliot.cli.terminal import emit; emit(sys.argv[1])"

    done = subprocess.run([sys.executable, "-c", code, data], capture_output=True, check=True, timeout=60)

    assert done.stdout.decode() == data + "\n"
