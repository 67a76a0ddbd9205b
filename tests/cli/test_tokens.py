from __future__ import annotations

import json
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
    assert text.rpartition("_")[2] not in listed.stdout


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
