"""Contexts: servers by name, whose tokens nobody sees, and what is stronger than what."""

from __future__ import annotations

import json
import stat

import pytest

TOKEN = "fol_0123456789ab_" + "s" * 43
URL = "https://foliot.example"


@pytest.fixture
def prod(foliot):
    said = foliot("config", "set-context", "prod", "--server", URL, "-n", "team-a", "--token-stdin", stdin=TOKEN)
    assert said.code == 0, said.err
    return foliot


def shown(foliot, *words: str) -> dict[str, dict[str, str]]:
    said = foliot(*words, "config", "show", "-o", "json")
    assert said.code == 0, said.err
    return json.loads(said.out)


def test_a_context_is_kept_for_its_owner_only_and_its_token_is_never_shown(prod, home):
    path = home / "contexts.json"

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert TOKEN in path.read_text()
    for words in (["get-contexts"], ["get-contexts", "-o", "json"], ["show"], ["show", "-o", "json"]):
        said = prod("--context", "prod", "config", *words)
        assert said.code == 0, said.err
        assert TOKEN not in said.out + said.err


def test_a_file_that_others_can_read_is_refused(prod, home):
    (home / "contexts.json").chmod(0o644)

    said = prod("config", "get-contexts")

    assert said.code == 2
    assert "chmod 600" in said.err


def test_a_damaged_file_is_named_and_not_quoted(prod, home):
    (home / "contexts.json").write_text(TOKEN)

    said = prod("get", "agents")

    assert said.code == 2
    assert "contexts.json is damaged" in said.err
    assert TOKEN not in said.err


def test_contexts_are_listed_used_and_deleted(prod):
    assert prod("config", "current-context").out == ""
    assert prod("config", "use-context", "prod").code == 0
    assert prod("config", "current-context").out.strip() == "prod"
    assert prod("config", "get-contexts", "-o", "name").out.split() == ["prod"]
    assert "*" in prod("config", "get-contexts").out
    assert prod("config", "use-context", "--none").code == 0
    assert prod("config", "current-context").out == ""
    assert prod("config", "delete-context", "prod").code == 0
    assert prod("config", "get-contexts", "-o", "name").out == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["use-context", "nothing"], 3),
        (["delete-context", "nothing"], 3),
        (["use-context"], 2),
        (["set-context", "other"], 2),
        (["set-context", "other", "--server", "ftp://x"], 2),
        (["set-context", "other", "--server", "https://ann:secret@host"], 2),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(prod, home, words, code):
    before = (home / "contexts.json").read_bytes()

    said = prod("config", *words)

    assert said.code == code
    assert "secret@" not in said.err
    assert (home / "contexts.json").read_bytes() == before


def test_where_each_value_came_from_is_told(prod):
    prod("config", "use-context", "prod")

    settings = shown(prod)

    assert settings["server"]["value"] == URL
    assert settings["server"]["origin"].startswith("context prod in ")
    assert settings["namespace"]["value"] == "team-a"
    assert settings["token"]["value"] == "********"


def test_a_server_or_a_store_that_is_named_is_stronger_and_gets_no_token_of_a_context(prod, monkeypatch, tmp_path):
    prod("config", "use-context", "prod")

    other = shown(prod, "--server", "https://other.example")
    assert (other["server"]["value"], other["token"]["value"]) == ("https://other.example", "")
    assert other["namespace"]["value"] == "default"
    assert shown(prod, "--store", str(tmp_path / "x.db"))["server"]["value"] == ""

    monkeypatch.setenv("FOLIOT_SERVER", "https://third.example")
    assert shown(prod)["server"]["value"] == "https://third.example"
    assert shown(prod, "--store", str(tmp_path / "x.db"))["server"]["value"] == ""
    assert shown(prod, "--context", "prod")["server"]["value"] == URL


def test_flags_and_environment_are_stronger_than_the_rest_of_a_context(prod, monkeypatch):
    prod("config", "use-context", "prod")
    monkeypatch.setenv("FOLIOT_TOKEN", "another")

    settings = shown(prod, "-n", "team-b")

    assert settings["namespace"]["value"] == "team-b"
    assert settings["token"]["origin"] == "environment FOLIOT_TOKEN"


def test_another_server_forgets_the_token(prod, home):
    prod("config", "set-context", "prod", "--server", "https://moved.example")

    assert TOKEN not in (home / "contexts.json").read_text()


def test_two_places_at_once_are_refused(foliot):
    said = foliot("--server", URL, "--store", "x.db", "get", "agents")

    assert said.code == 2
    assert "two places" in said.err


def test_the_group_has_the_verbs_of_kubectl_under_short_names(prod, home):
    assert prod("context", "list", "-o", "name").out.split() == ["prod"]
    assert prod("context", "use", "prod").code == 0
    here = prod("context", "show")
    assert f"{URL}  (from context prod in {home / 'contexts.json'})" in here.out
    assert "team-a" in here.out
    assert TOKEN not in here.out + prod("context", "show", "prod", "-o", "json").out
    assert json.loads(prod("context", "show", "prod", "-o", "json").out)["token"] == "kept here"
    assert prod("context", "set", "prod", "-n", "team-b").code == 0
    assert "team-b" in prod("context", "show", "prod").out
    assert prod("context", "use", "--none").code == 0
    assert "store:" in prod("context", "show").out
    assert prod("context", "delete", "prod").code == 0
    assert prod("context", "show", "prod").code == 3


def test_what_is_shown_says_what_is_stronger(prod, monkeypatch):
    prod("context", "use", "prod")
    monkeypatch.setenv("FOLIOT_SERVER", "https://other.example")
    monkeypatch.setenv("FOLIOT_TOKEN", TOKEN)

    by_environment = prod("context", "show")
    by_flag = prod("--server", "https://third.example", "context", "show")
    by_store = prod("--store", "sqlite:///here.db", "context", "show")

    assert "https://other.example  (from environment FOLIOT_SERVER)" in by_environment.out
    assert "from environment FOLIOT_TOKEN" in by_environment.out
    assert "https://third.example  (from flag --server)" in by_flag.out
    assert "here.db  (from flag --store)" in by_store.out
    assert TOKEN not in by_environment.out + by_flag.out + by_store.out
