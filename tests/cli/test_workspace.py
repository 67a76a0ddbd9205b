"""`foliot workspace` shows, compares and exports the files of a run, on a store and on a server."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from foliot.engine.definition.backends import can_fence
from foliot.engine.workspaces.history import leads_out

pytestmark = pytest.mark.skipif(not can_fence(), reason="bubblewrap is not here")
MANIFEST = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: brain}
spec:
  provider: scripted
  default_model: scripted
  script:
    turns:
      - call: {bash: {command: "echo one > a; mkdir -p empty d; echo x > d/b; chmod 755 d/b"}}
      - call: {bash: {command: "true"}}
      - call: {bash: {command: "echo two > a; rm d/b; ln -s a l; ln -s ../../etc/passwd out; ln -s /etc abs"}}
      - say: done
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: clerk}
spec: {model_ref: brain, prompt: Go., tools: [bash]}
"""


def furnish(folder: Path) -> None:
    (folder / "team.yaml").write_text(MANIFEST)


@pytest.fixture
def run_id(applied: Any) -> str:
    said = applied("run", "clerk", "go", "-o", "json")
    assert said.code == 0, said.err
    return json.loads(said.out.splitlines()[-1])["run"]


def test_the_steps_that_changed_files_are_listed(applied: Any, run_id: str) -> None:
    items = json.loads(applied("workspace", "list", run_id, "-o", "json").out)["items"]

    assert [(each["step"], each["files"]) for each in items] == [(1, 4), (3, 6)]
    assert "STEP" in applied("workspace", "list", run_id).out


def test_what_a_step_changed_is_shown(applied: Any, run_id: str) -> None:
    assert applied("workspace", "diff", run_id, "--at", "3").out.splitlines() == [
        "M a",
        "A abs",
        "D d/b",
        "A l",
        "A out",
    ]
    assert applied("workspace", "diff", run_id, "--at", "2").out == ""
    lines = applied("workspace", "diff", run_id, "--at", "3", "--since", "1", "--content").out.splitlines()
    assert lines[:6] == ["M a", "--- a/a", "+++ b/a", "@@ -1 +1 @@", "-one", "+two"]
    assert applied("workspace", "diff", run_id, "--at", "9").code == 3


def test_an_archive_holds_the_files_of_a_step_and_nothing_that_leads_out(
    applied: Any, run_id: str, tmp_path: Path
) -> None:
    said = applied("workspace", "export", run_id, "--to", tmp_path / "last.tar")
    applied("workspace", "export", run_id, "--at", "1", "--to", tmp_path / "first.tar")

    assert said.code == 0, said.err
    assert "abs" in said.err
    with tarfile.open(tmp_path / "last.tar") as last:
        assert last.getnames() == ["a", "d", "empty", "l"]
        last.extractall(tmp_path / "out", filter="data")
    assert (tmp_path / "out/l").read_text() == "two\n"
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "first.tar").read_bytes())) as first:
        assert first.getmember("d/b").mode == 0o755


def test_the_files_of_a_step_are_put_into_an_empty_folder_only(applied: Any, run_id: str, tmp_path: Path) -> None:
    said = applied("workspace", "restore", run_id, "--to", tmp_path / "back")

    assert said.code == 0, said.err
    assert sorted(os.listdir(tmp_path / "back")) == ["a", "d", "empty", "l"]
    assert os.readlink(tmp_path / "back/l") == "a"
    assert [line for line in said.err.splitlines() if line.startswith("Left out")] == [
        "Left out the link abs: it leads out of the workspace.",
        "Left out the link out: it leads out of the workspace.",
    ]
    assert "Restored 4 files" in said.err
    again = applied("workspace", "restore", run_id, "--at", "1", "--to", tmp_path / "back")
    assert again.code == 2
    assert (tmp_path / "back/a").read_text() == "two\n"


@pytest.mark.parametrize(
    ("path", "target", "out"),
    [("a", "b", False), ("d/a", "../b", False), ("d/a", "../../b", True), ("a", "..", True), ("a", "/b", True)],
)
def test_links_that_lead_out_are_known(path: str, target: str, out: bool) -> None:
    assert leads_out(path, target) is out
