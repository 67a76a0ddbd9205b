from __future__ import annotations

import json
from pathlib import Path

import pytest

PASSWORD = "correct horse battery"


def made(foliot, name: str, *words: str, password: str = PASSWORD):
    return foliot("users", "create", name, *words, "--password-stdin", stdin=f"{password}\n")


def test_the_first_admin_is_made_on_the_machine_and_the_password_is_nowhere_to_be_read(foliot, home: Path) -> None:
    said = made(foliot, "Ada", "--admin")

    assert (said.code, said.out) == (0, "")
    assert "User ada: admin in all namespaces." in said.err
    (told,) = json.loads(foliot("users", "list", "-o", "json").out)
    assert (told["name"], told["roles"]) == ("ada", {"*": ["admin"]})
    for file in home.rglob("*"):
        assert file.is_dir() or PASSWORD.encode() not in file.read_bytes()


def test_a_password_is_asked_for_twice_on_a_terminal(foliot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foliot.cli.commands.users.is_terminal", lambda _: True)

    said = foliot("users", "create", "ada", stdin=f"{PASSWORD}\nsomething else entirely\n{PASSWORD}\n{PASSWORD}\n")

    assert said.code == 0, said.err
    assert "do not match" in said.err
    assert PASSWORD not in said.out + said.err


def test_where_nobody_can_be_asked_that_is_said(foliot) -> None:
    said = foliot("users", "create", "ada")

    assert said.code == 2
    assert "--password-stdin" in said.err


@pytest.mark.parametrize(
    ("words", "password", "code"),
    [
        (("--role", "king"), PASSWORD, 2),
        (("--admin", "--in", "a"), PASSWORD, 2),
        (("--in", "a b"), PASSWORD, 2),
        ((), "short", 2),
        ((), "", 2),
        ((), "I am lovelace myself", 2),
    ],
)
def test_what_cannot_be_meant_is_said_and_nothing_is_made(
    foliot, words: tuple[str, ...], password: str, code: int
) -> None:
    said = made(foliot, "lovelace", *words, password=password)

    assert said.code == code
    assert "Traceback" not in said.err
    assert json.loads(foliot("users", "list", "-o", "json").out) == []


def test_a_password_that_is_no_text_is_refused(foliot) -> None:
    said = foliot("users", "create", "ada", "--password-stdin", stdin=b"\xff\xfe not text at all\n")

    assert said.code == 2


@pytest.mark.parametrize("name", ["a b", "-a", "a/b", "é", ""])
def test_a_name_that_cannot_be_one_is_refused(foliot, name: str) -> None:
    assert foliot("users", "create", "--password-stdin", "--", name, stdin=f"{PASSWORD}\n").code == 2


def test_accounts_are_changed_disabled_and_enabled_and_the_audit_log_says_so(foliot) -> None:
    assert made(foliot, "ada", "--role", "author", "--in", "team-a").code == 0
    assert made(foliot, "ada").code == 4

    assert foliot("users", "grant", "ada", "--role", "reader", "--role", "approver", "--in", "team-b").code == 0
    assert foliot("users", "reset", "ADA", "--password-stdin", stdin="another good one\n").code == 0
    assert foliot("users", "disable", "ada").code == 0
    assert "disabled" in foliot("users", "list").out
    assert foliot("users", "enable", "ada").code == 0

    (told,) = json.loads(foliot("users", "list", "-o", "json").out)
    assert told["roles"] == {"team-b": ["reader", "approver"]}
    records = json.loads(foliot("audit", "list", "-A", "-o", "json").out)
    assert [record["outcome"] for record in reversed(records)] == [
        "user_created",
        "user_granted",
        "password_reset",
        "user_disabled",
        "user_enabled",
    ]
    assert "another good one" not in json.dumps(records)
    assert foliot("audit", "verify").code == 0


def test_who_is_not_there_is_not_found(foliot) -> None:
    for words in (("grant", "eve"), ("disable", "eve"), ("enable", "eve")):
        assert foliot("users", *words).code == 3
    assert foliot("users", "reset", "eve", "--password-stdin", stdin=f"{PASSWORD}\n").code == 3


def test_a_setup_token_is_made_while_there_is_no_account(foliot) -> None:
    said = foliot("users", "setup-token", "--expires", "10m")

    assert said.code == 0
    assert said.out.startswith("fos_")
    assert foliot("users", "setup-token", "--expires", "soon").code == 2
    made(foliot, "ada")
    assert foliot("users", "setup-token").code == 4


def test_accounts_are_kept_on_the_store_and_not_through_a_server(foliot) -> None:
    assert foliot("--server", "http://127.0.0.1:9", "users", "list").code == 2
