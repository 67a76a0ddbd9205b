"""Presets of delegation in files beside a manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from foliot.resources.presets import LARGEST, read_presets
from foliot.resources.problems import ManifestError
from foliot.resources.reader import parse_text, read_manifests

GOOD = "---\ndescription: Looks at {name}.\ntools: [read]\ntimeout: 10m\n---\nLook closely.\n"
AGENT = """
apiVersion: foliot.dev/v1
kind: Agent
metadata: {{name: boss}}
spec:
  model_ref: m
  tools: [delegate, read]
  delegation:
    presets_from: {folders}
    presets:
      - {{name: own, description: Of the manifest.}}
"""


def write(folder: Path, name: str, text: str = "") -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{name}.md").write_text(text or GOOD.replace("{name}", name))
    return folder / f"{name}.md"


def manifest(folder: Path, folders: str = "[low, high]") -> Path:
    path = folder / "agent.yaml"
    path.write_text(AGENT.format(folders=folders))
    return path


def test_folders_are_read_with_the_manifest_in_rising_priority(tmp_path: Path) -> None:
    write(tmp_path / "low", "scout")
    write(tmp_path / "low", "both", "---\ndescription: low\n---\n")
    write(tmp_path / "high", "both", "---\ndescription: high\ntools: []\n---\n")
    write(tmp_path / "high", "own")
    write(tmp_path / "high", ".hidden", "nothing at all")
    bundle = read_manifests([manifest(tmp_path)])

    assert bundle.findings == []
    declared = bundle.documents[0]["spec"]["delegation"]
    assert "presets_from" not in declared
    assert {each["name"]: each["description"] for each in declared["presets"]} == {
        "own": "Of the manifest.",
        "both": "high",
        "scout": "Looks at scout.",
    }
    scout = next(each for each in declared["presets"] if each["name"] == "scout")
    assert scout == {
        "name": "scout",
        "description": "Looks at scout.",
        "tools": ["read"],
        "timeout": "10m",
        "prompt": "Look closely.",
    }
    assert next(each for each in declared["presets"] if each["name"] == "both")["tools"] == []


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("Look.", 1, "there is no front matter"),
        ("---\ndescription: x\n", 3, "the front matter is not closed"),
        ("---\nname: x\n---\n", 2, "description is required"),
        ("---\n---\n", 2, "description is required"),
        ("---\ndescription: x\ntimeout: soon\n---\n", 3, "timeout"),
        ("---\ndescription: x\nmodle: y\n---\n", 3, "unknown field"),
        ("---\ndescription: x\ntools: 3\n---\n", 3, "tools"),
        ("---\ndescription: [\n---\n", 2, "is not closed"),
        ("---\n- a\n---\n", 2, "not a mapping"),
        ("---\nname: a b\ndescription: x\n---\n", 2, "name"),
        ("---\ndescription: x\nprompt: y\n---\n", 2, "behind the front matter"),
        ("x" * (LARGEST + 1), None, "more than"),
    ],
)
def test_a_file_that_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, line: int | None, told: str) -> None:
    path = write(tmp_path / "low", "bad", text)
    with pytest.raises(ManifestError) as refused:
        read_presets(tmp_path / "low")
    (finding,) = refused.value.findings
    assert (finding.file, finding.line) == (str(path), line)
    assert told in str(finding)


def test_a_bad_file_keeps_the_manifest_from_being_applied(tmp_path: Path) -> None:
    write(tmp_path / "low", "bad", "Look.")
    bundle = read_manifests([manifest(tmp_path, "low")])
    with pytest.raises(ManifestError, match="there is no front matter"):
        bundle.raise_for_errors()


@pytest.mark.parametrize("folder", ["../outside", "/etc", "link", "missing", "file.md"])
def test_no_folder_outside_of_that_of_the_manifest_is_read(tmp_path: Path, folder: str) -> None:
    home = tmp_path / "home"
    write(home, "file")
    write(tmp_path / "outside", "secret")
    (home / "link").symlink_to(tmp_path / "outside")
    bundle = read_manifests([manifest(home, f"[{folder}]")])
    (finding,) = bundle.errors
    assert finding.field == "spec.delegation.presets_from[0]"
    assert finding.line == 9
    assert "secret" not in str(bundle.documents)


def test_a_link_in_a_folder_does_not_lead_out_of_it(tmp_path: Path) -> None:
    write(tmp_path / "outside", "secret")
    (tmp_path / "low").mkdir()
    (tmp_path / "low" / "secret.md").symlink_to(tmp_path / "outside" / "secret.md")
    with pytest.raises(ManifestError, match="leads out of its folder"):
        read_presets(tmp_path / "low")


def test_a_manifest_from_the_network_reads_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "low", "scout")
    monkeypatch.chdir(tmp_path)
    (finding,) = parse_text(AGENT.format(folders="[low]"), "agent.yaml").errors
    assert "is read where the manifest is a file" in str(finding)
