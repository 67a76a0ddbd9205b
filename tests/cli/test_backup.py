"""`foliot backup` and `foliot restore`, as they are typed."""

from __future__ import annotations

import json

import pytest


def test_a_store_goes_into_a_file_and_comes_back(foliot, team, tmp_path) -> None:
    said = foliot("backup", tmp_path / "b.tar")
    assert said.code == 0, said.err
    assert "3 resources" in said.out
    assert foliot("delete", "agent/writer").code == 0

    refused = foliot("restore", tmp_path / "b.tar")
    assert refused.code == 4
    assert "--force" in refused.err

    said = foliot("restore", tmp_path / "b.tar", "--force")
    assert said.code == 0, said.err
    assert "before-restore" in said.err
    assert "agent/writer" in foliot("get", "agents", "-o", "name").out


def test_the_key_is_not_in_it_and_it_says_so(foliot, tmp_path, home) -> None:
    assert foliot("create", "secret", "mine", "--from-literal", "a=b").code == 0
    said = foliot("backup", tmp_path / "b.tar")
    assert "not in it" in said.err
    assert str(home / "secret.key") in said.err


def test_a_restore_says_whether_the_key_is_here(foliot, tmp_path, home) -> None:
    assert foliot("create", "secret", "mine", "--from-literal", "a=b").code == 0
    assert foliot("backup", tmp_path / "b.tar").code == 0
    file = home / "secret.key"
    there = foliot("restore", tmp_path / "b.tar", "--check")
    assert (there.code, f"which is in {file}" in there.err) == (0, True), there.err
    (kid,) = json.loads(foliot("restore", tmp_path / "b.tar", "--check", "-o", "json").out)["keys"]

    for _ in range(2):  # the second forgets the key of the backup's
        assert foliot("secrets", "rotate-key", "--forget-retired").code == 0
    for words in (["--check"], ["--force"]):
        said = foliot("restore", tmp_path / "b.tar", *words)
        assert said.code == 6, said.err
        assert f"need key {kid}, which this home does not have: {file} has keys " in said.err
    file.unlink()
    told = foliot("restore", tmp_path / "b.tar", "--check", "-o", "json")
    assert (told.code, json.loads(told.out)["missingKeys"]) == (6, [kid])
    said = foliot("restore", tmp_path / "b.tar", "--check")
    assert (said.code, f"there is no key file at {file}" in said.err) == (6, True), said.err
    assert not file.exists()


def test_programs_get_json(foliot, team, tmp_path) -> None:
    told = json.loads(foliot("backup", tmp_path / "b.tar", "-o", "json").out)
    assert told["file"] == str(tmp_path / "b.tar")
    checked = json.loads(foliot("restore", tmp_path / "b.tar", "--check", "-o", "json").out)
    assert checked["sha256"] == told["sha256"]
    assert checked["store"] is None


def test_a_backup_that_is_not_there_is_not_found(foliot, tmp_path) -> None:
    assert foliot("restore", tmp_path / "none.tar").code == 3


def test_a_store_that_was_put_back_by_hand_is_renewed_when_told_to(foliot, team) -> None:
    def version() -> str:
        return json.loads(foliot("get", "agent/writer", "-o", "json").out)["metadata"]["resourceVersion"]

    before = version()
    assert foliot("restore", "--renew", stdin="n\n").code == 130
    assert version() == before

    said = foliot("restore", "--renew", "--yes")
    assert said.code == 0, said.err
    assert f"versions go on at {version()}" in said.out
    assert int(version()) > int(before) + 10**9
    told = json.loads(foliot("restore", "--renew", "-y", "-o", "json").out)
    assert told["resourceVersion"] == version()


def test_renewing_takes_no_backup_and_restoring_needs_one(foliot, team, tmp_path) -> None:
    for words in (["restore"], ["restore", "--renew", tmp_path / "b.tar"], ["restore", "--renew", "--check"]):
        assert foliot(*words, "--yes").code == 2
    assert foliot("--store", tmp_path / "none.db", "restore", "--renew", "-y").code == 3


@pytest.mark.services
def test_a_database_of_postgres_is_renewed_too(foliot, postgres_url) -> None:
    said = foliot("--store", postgres_url, "restore", "--renew", "--yes")
    assert said.code == 0, said.err
    assert "versions go on at" in said.out
