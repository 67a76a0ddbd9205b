from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from foliot.cli.main import cli


@pytest.fixture
def call(tmp_path: Path):
    def call(*words: str) -> Result:
        return CliRunner().invoke(cli, ["--home", str(tmp_path), *words])

    return call


def test_the_first_admin_is_made_on_the_machine_and_shown_once(call) -> None:
    made = call("tokens", "create", "--admin", "root")

    assert made.exit_code == 0, made.output
    text = made.stdout.strip()
    assert text.startswith("fol_")
    listed = call("tokens", "list")
    assert "root" in listed.stdout
    assert "all namespaces" in listed.stdout
    assert text.split("_", 2)[2] not in listed.stdout


def test_a_token_is_scoped_and_expires(call) -> None:
    made = call(
        "tokens", "create", "ci", "--role", "author", "--role", "operator", "--in", "team-a", "--expires", "12h"
    )
    assert made.exit_code == 0, made.output

    (told,) = json.loads(call("tokens", "list", "-o", "json").stdout)
    assert (told["name"], told["roles"], told["namespaces"]) == ("ci", ["author", "operator"], ["team-a"])
    assert told["expiresAt"] > told["createdAt"]


def test_a_revoked_token_is_gone_and_the_audit_log_says_who_did_it(call) -> None:
    call("tokens", "create", "ci")

    assert call("tokens", "revoke", "ci").exit_code == 0

    assert call("tokens", "revoke", "ci").exit_code == 3
    assert "revoked" in call("tokens", "list", "--all").stdout
    records = json.loads(call("audit", "list", "-A", "-o", "json").stdout)
    assert [record["outcome"] for record in records] == ["token_revoked", "token_created"]
    assert call("audit", "list", "-A").exit_code == 0
    assert call("audit", "verify").exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--role", "king"),
        ("--admin", "--role", "reader"),
        ("--in", "a b"),
        ("--expires", "soon"),
        ("--expires", "0s"),
    ],
)
def test_what_cannot_be_meant_is_said_and_nothing_is_made(call, words: tuple[str, ...]) -> None:
    assert call("tokens", "create", *words).exit_code == 2
    assert json.loads(call("tokens", "list", "-o", "json").stdout) == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """A server in a process of its own, and the options that lead to it as somebody who may do all."""
    home = tmp_path / "far"
    text = CliRunner().invoke(cli, ["--home", str(home), "tokens", "create", "root", "--admin"]).stdout
    (tmp_path / "token").write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOLIOT_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "foliot.cli", "server", "--port", "0", "--home", str(home)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    timer = threading.Timer(110, process.kill)
    timer.start()
    assert process.stderr is not None
    try:
        url = next(found[0] for line in process.stderr if (found := re.search(r"http://[0-9.]+:\d+", line)))
        yield "--server", url, "--token-file", str(tmp_path / "token")
    finally:
        timer.cancel()
        process.terminate()
        process.communicate(timeout=110)


def test_over_a_server_it_is_the_same(call, server: tuple[str, ...], tmp_path: Path) -> None:
    made = call(*server, "tokens", "create", "ci", "--role", "admin", "--in", "team-a", "--expires", "12h")
    assert made.exit_code == 0, made.output
    (tmp_path / "ci").write_text(made.stdout)
    as_ci = (*server[:2], "--token-file", str(tmp_path / "ci"))

    listed = call(*server, "tokens", "list")
    own = call(*as_ci, "tokens", "create", "helper", "--in", "team-a")
    more = call(*as_ci, "tokens", "create", "thief", "--admin")
    seen = json.loads(call(*as_ci, "tokens", "list", "-o", "json").stdout)
    gone = call(*as_ci, "tokens", "revoke", "ci/helper")

    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["NAME", "root", "ci"]
    assert own.exit_code == 0
    assert more.exit_code == 3, "what is not theirs to give is not there for them"
    assert [each["name"] for each in seen] == ["ci", "ci/helper"]
    assert gone.exit_code == 0, gone.output
    assert call(*server, "tokens", "revoke", "ci/helper").exit_code == 3
    assert call(*server, "tokens", "create", "ci").exit_code == 4


def test_whoever_started_the_server_needs_no_token_on_its_machine(
    call, server: tuple[str, ...], tmp_path: Path
) -> None:
    url = server[:2]

    mine = call("--home", str(tmp_path / "far"), *url, "tokens", "list", "-o", "json")
    anothers = call("--home", str(tmp_path / "near"), *url, "tokens", "list")

    assert [each["name"] for each in json.loads(mine.stdout)] == ["root"], mine.output
    assert anothers.exit_code != 0
    assert "FOLIOT_HOME" in anothers.stderr
