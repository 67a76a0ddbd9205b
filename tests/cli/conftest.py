"""The real command line, in process, on a home folder of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from click.testing import CliRunner

from foliot.cli.main import cli as root


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str


class Foliot(Protocol):
    def __call__(self, *words: str | Path, stdin: str | bytes | None = None) -> Said: ...


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder that no other test sees, and none of the caller's settings."""
    import os

    for name in list(os.environ):
        if name.startswith("FOLIOT_") and not name.startswith("FOLIOT_TEST_"):
            monkeypatch.delenv(name)
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    monkeypatch.setenv("FOLIOT_HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def foliot(home: Path) -> Foliot:
    def run(*words: str | Path, stdin: str | bytes | None = None) -> Said:
        result = CliRunner().invoke(root, [str(word) for word in words], input=stdin, prog_name="foliot")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Said(result.exit_code, result.stdout, result.stderr)

    return run


AGENT = """\
apiVersion: foliot.dev/v1
kind: Agent
metadata:
  name: {name}
  labels: {{team: docs}}
spec:
  model_ref: brain
  prompt: {prompt}
"""
MODEL = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: brain, labels: {team: docs}}
spec:
  provider: scripted
  default_model: scripted
  script: [{say: hello}]
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A file with a model and two agents."""
    path = tmp_path / "team.yaml"
    agents = (AGENT.format(name="writer", prompt="Write."), AGENT.format(name="editor", prompt="Edit."))
    path.write_text("---\n".join([MODEL, *agents]))
    return path


@pytest.fixture
def team(foliot: Foliot, manifest: Path) -> Path:
    """The manifest, applied."""
    said = foliot("apply", "-f", manifest)
    assert said.code == 0, said.err
    return manifest
