"""Folders of skills: what applies them and what checks them read the same."""

from __future__ import annotations

import json
from pathlib import Path

from foliot.resources.skill_files import read_skills
from foliot.resources.syntax.manifest_files import SourceFile, read_sources

TEXT = "---\nname: {}\ndescription: Does it.\n---\nOne.\n"


def test_apply_and_check_read_the_same_skills_of_a_folder(tmp_path: Path) -> None:
    for place, name in (
        ("good/SKILL.md", "good"),
        ("node_modules/pkg/SKILL.md", "pkg"),
        ("__pycache__/x/SKILL.md", "x"),
        (".hidden/h/SKILL.md", "h"),
        ("rooty.md", "rooty"),
        ("deep/below.md", "below"),
    ):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(TEXT.format(name))
    (tmp_path / "README.md").write_text("# No skill\n")
    (tmp_path / "link.md").symlink_to(tmp_path / "deep/below.md")

    checked = {document["metadata"]["name"] for _, document in read_skills(str(tmp_path))[0]}
    sources = read_sources([str(tmp_path)], stdin=None, recursive=True)
    applied = {json.loads(each.data)["metadata"]["name"] for each in sources if isinstance(each, SourceFile)}

    assert applied == checked == {"good", "rooty"}
