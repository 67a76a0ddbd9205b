"""Skills on disk: what is sound becomes a document, and every file that is not is named with what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foliot.resources.reader import read_manifests
from foliot.resources.skill_files import (
    LARGEST_FILE,
    MOST_FILES,
    builtin_skills,
    find_skills,
    read_skill,
    read_skills,
)
from foliot.resources.skill_trust import digest_of_skill, in_quarantine
from foliot.resources.validate import validate_document

GOOD = "---\nname: pdf-forms\ndescription: Fills forms.\n---\n# Forms\n\nRun scripts/fill.py.\n"


def skill(root: Path, text: str = GOOD, name: str = "pdf-forms", **files: str) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(text)
    for path, content in files.items():
        (folder / path).write_text(content)
    return folder


def complaints(folder: Path) -> list[str]:
    document, findings = read_skill(str(folder))
    assert document is None
    return [str(finding) for finding in findings if finding.severity == "error"]


def test_a_folder_becomes_a_document_that_is_valid(tmp_path: Path) -> None:
    folder = skill(tmp_path)
    (folder / "scripts").mkdir()
    (folder / "scripts/fill.py").write_bytes(b"print()\r\n")

    document, findings = read_skill(str(folder))

    assert findings == []
    assert document is not None
    assert document["metadata"] == {"name": "pdf-forms"}
    assert document["spec"] == {
        "description": "Fills forms.",
        "body": "# Forms\n\nRun scripts/fill.py.\n",
        "files": {"scripts/fill.py": "print()\n"},
    }
    assert validate_document(document)[1] == []


def test_apply_reads_folders_of_skills_beside_manifests_and_none_of_their_files_as_manifests(tmp_path: Path) -> None:
    skill(tmp_path / "skills", **{"config.yaml": "kind: Agent\nmetadata: {name: evil}\n"})
    (tmp_path / "memory.yaml").write_text("kind: Memory\nmetadata: {name: m}\n")

    bundle = read_manifests([tmp_path])

    assert bundle.errors == []
    assert [item.key for item in bundle.items] == [("Memory", "default", "m"), ("Skill", "default", "pdf-forms")]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# no front matter", "does not begin with front matter"),
        ("---\nname: pdf-forms\n", "does not begin with front matter"),
        ("---\nname: pdf-forms\n---\nx", "description: it is required"),
        ("---\ndescription: '  '\n---\n", "description: it is required"),
        (f"---\ndescription: {'x' * 1025}\n---\n", "1,025 characters, and there may be 1,024"),
        ("---\nname: PDF\ndescription: d\n---\n", "'PDF' cannot be the name of a skill"),
        ("---\nname: a--b\ndescription: d\n---\n", "cannot be the name"),
        ("---\nname: pdf-f\u043erms\ndescription: d\n---\n", "cannot be the name"),
        ("---\nname: ../etc\ndescription: d\n---\n", "cannot be the name"),
        ("---\nname: other\ndescription: d\n---\n", "its folder or file is called 'pdf-forms'"),
        ("---\ndescription: d\nstatus: ready\n---\n", "'ready' is no status"),
        ("---\ndescription: d\ncreated-at: yesterday\n---\n", "created-at: expected a time"),
        ("---\ndescription: d\ndisable-model-invocation: maybe\n---\n", "expected true or false"),
        ("---\n- a\n- b\n---\n", "no mapping"),
        ("---\ndescription: [unclosed\n---\n", "line 2"),
        ("---\ndescription: a\ndescription: b\n---\n", "description"),
        ("---\na: &a [1,1]\nb: &b [*a,*a]\ndescription: !!python/object:os.system d\n---\n", "SKILL.md"),
    ],
)
def test_what_is_wrong_with_front_matter_is_said(tmp_path: Path, text: str, complaint: str) -> None:
    found = complaints(skill(tmp_path, text))

    assert any(complaint in each for each in found), found


def test_links_are_refused_and_never_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("sesame")
    folder = skill(tmp_path)
    (folder / "leak.md").symlink_to(secret)
    (folder / "inner").symlink_to("/etc")

    found = complaints(folder)

    assert len(found) == 2
    assert all("is a symbolic link" in each for each in found)


def test_a_link_in_the_place_of_the_text_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(GOOD)
    folder = tmp_path / "pdf-forms"
    folder.mkdir()
    (folder / "SKILL.md").symlink_to(tmp_path / "secret")

    assert "is a symbolic link" in complaints(folder)[0]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("image.png", b"\x89PNG\x00\x01", "is no text in UTF-8"),
        ("latin.txt", b"caf\xe9", "is no text in UTF-8"),
        ("huge.txt", b"x" * (LARGEST_FILE + 1), "has more than 262,144 bytes"),
        ("a b.md", b"x", "this name cannot be"),
        ("caf\u00e9.md", b"x", "this name cannot be"),
        ("evil\u202egpj.md", b"x", "this name cannot be"),
        ("-rf", b"x", "this name cannot be"),
        ("skill.md", b"x", "differ only in case"),
        ("x" * 201, b"x", "this name cannot be"),
    ],
)
def test_files_that_no_skill_has_are_named(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    folder = skill(tmp_path)
    (folder / name).write_bytes(content)

    assert any(complaint in each for each in complaints(folder))


def test_a_pipe_is_refused_and_does_not_hold_up(tmp_path: Path) -> None:
    folder = skill(tmp_path)
    os.mkfifo(folder / "pipe")

    assert "neither a file nor a folder" in complaints(folder)[0]


def test_too_many_files_are_refused_before_all_of_them_are_read(tmp_path: Path) -> None:
    folder = skill(tmp_path)
    for number in range(MOST_FILES + 50):
        (folder / f"f{number:04}").write_text("x")

    found = complaints(folder)

    assert "more than 100 files" in found[0]


def test_many_files_that_are_too_much_together_are_refused(tmp_path: Path) -> None:
    folder = skill(tmp_path)
    for number in range(4):
        (folder / f"f{number}").write_text("x" * 200_000)

    assert "a skill may have 524,288" in complaints(folder)[0]


def test_folders_too_deep_are_refused(tmp_path: Path) -> None:
    folder = skill(tmp_path)
    deep = folder / "/".join("d" * 12)
    deep.mkdir(parents=True)
    (deep / "a.md").write_text("x")

    assert complaints(folder)


def test_hidden_files_are_left_out_with_a_word(tmp_path: Path) -> None:
    folder = skill(tmp_path)
    (folder / ".git").mkdir()

    document, findings = read_skill(str(folder))

    assert document is not None
    assert [finding.severity for finding in findings] == ["warning"]


def test_skills_are_found_in_folders_and_as_single_files(tmp_path: Path) -> None:
    skill(tmp_path / "deep")
    (tmp_path / "notes.md").write_text("---\ndescription: Notes.\n---\nhello")
    (tmp_path / "README.md").write_text("# Skills")
    (tmp_path / "node_modules/x").mkdir(parents=True)
    (tmp_path / "node_modules/x/SKILL.md").write_text(GOOD)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden/SKILL.md").write_text(GOOD)

    documents, findings = read_skills(str(tmp_path))

    assert sorted(document["metadata"]["name"] for _, document in documents) == ["notes", "pdf-forms"]
    assert [finding.message for finding in findings] == ["has no front matter, so it is no skill"]


def test_of_two_skills_of_one_name_the_first_is_taken_and_the_other_named(tmp_path: Path) -> None:
    skill(tmp_path / "a")
    skill(tmp_path / "b", GOOD + "more")

    documents, findings = read_skills(str(tmp_path))

    assert len(documents) == 1
    assert "there is another skill 'pdf-forms'" in findings[0].message


def test_a_link_round_to_its_own_folder_ends(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to(tmp_path)
    skill(tmp_path)

    found, findings = find_skills(str(tmp_path))

    assert found == [str(tmp_path / "pdf-forms")]
    assert "is not followed" in findings[0].message


def test_the_digest_tells_every_byte_that_a_model_could_see(tmp_path: Path) -> None:
    document, _ = read_skill(str(skill(tmp_path, **{"a.md": "one"})))
    assert document is not None
    known = digest_of_skill(document)

    for change in (
        {"description": "Fills forms!"},
        {"body": "# Forms\n\nRun scripts/fill.py. \n"},
        {"files": {"a.md": "two"}},
        {"files": {"b.md": "one"}},
        {"status": "draft"},
        {"name": "other"},
    ):
        assert digest_of_skill({**document, "spec": {**document["spec"], **change}}) != known
    for change in ({"allow": known}, {"origin": "x"}, {"created_at": "2026-01-01T00:00:00Z"}, {"status": "active"}):
        assert digest_of_skill({**document, "spec": {**document["spec"], **change}}) == known


def test_skills_of_the_package_are_sound_and_not_in_quarantine() -> None:
    for document in builtin_skills().values():
        assert not in_quarantine(document)


def test_a_stored_skill_is_in_quarantine_until_its_very_digest_is_allowed() -> None:
    by = {"uid": "u", "declaredBy": {"user": "eve", "operator": False}}
    document = {"kind": "Skill", "metadata": {"name": "s", **by}, "spec": {"description": "d", "body": "b"}}
    allowed = {**document, "spec": {**document["spec"], "allow": digest_of_skill(document)}}

    assert in_quarantine(document)
    assert not in_quarantine(allowed)
    assert in_quarantine({**allowed, "spec": {**allowed["spec"], "body": "b "}})
