"""The real command line, in process, on a home folder of its own."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from click.testing import CliRunner

from foliot.cli.logs import ToStderr
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
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home folder that no other test sees, and none of the caller's settings. Modules of tools that lie beside it are
    forgotten afterwards: the next test may have others of the same name. The log goes again where it went before."""
    log = logging.getLogger()
    handlers, level = list(log.handlers), log.level
    for name in list(os.environ):
        if name.startswith("FOLIOT_") and not name.startswith("FOLIOT_TEST_"):
            monkeypatch.delenv(name)
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    monkeypatch.setenv("FOLIOT_HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    yield folder
    log.handlers[:] = [each for each in log.handlers if each in handlers or not isinstance(each, ToStderr)]
    log.setLevel(level)
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(f"{tmp_path}{os.sep}"):
            del sys.modules[name]


@pytest.fixture
def foliot(home: Path) -> Foliot:
    def run(*words: str | Path, stdin: str | bytes | None = None) -> Said:
        result = CliRunner().invoke(root, [str(word) for word in words], input=stdin, prog_name="foliot")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Said(result.exit_code, result.stdout, result.stderr)

    return run


# --- one suite, two clients ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Up:
    """`foliot up` in a process of its own, in a folder of its own, and a token for it."""

    url: str
    folder: Path
    token: Path


@dataclass(frozen=True)
class Asked:
    """The command line in a namespace of its own, on the store or on a server. `folder` is where the work is done."""

    foliot: Foliot
    where: tuple[str | Path, ...]
    space: str
    folder: Path
    far: bool

    def __call__(self, *words: str | Path, stdin: str | bytes | None = None) -> Said:
        return self.foliot(*self.where, *words, stdin=stdin)


@pytest.fixture(scope="module")
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One server for all tests of a module: what they do is in namespaces of their own."""
    folder = tmp_path_factory.mktemp("far")
    request.module.furnish(folder)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FOLIOT_")}
    words = [sys.executable, "-m", "foliot.cli", "--home", str(folder / "home")]
    made = [*words, "tokens", "create", "ann", "--admin", "-o", "json"]
    token = subprocess.run(
        made, cwd=folder, env=environ, capture_output=True, text=True, check=True, timeout=110
    ).stdout
    (folder / "token").write_text(json.loads(token)["token"])
    process = subprocess.Popen(
        [*words, "up", "--port", "0"],
        cwd=folder,
        env=environ,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield Up(_address(process), folder, folder / "token")
    finally:
        process.terminate()
        try:
            process.communicate(timeout=110)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _address(process: subprocess.Popen[str]) -> str:
    timer = threading.Timer(110, process.kill)
    timer.start()
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"http://[0-9.]+:\d+", line):
                # Whatever else it says is read, or it would stop when the pipe is full.
                threading.Thread(target=process.stderr.read, daemon=True).start()
                return found[0]
    finally:
        timer.cancel()
    raise AssertionError("foliot up did not start")


@pytest.fixture(params=["store", "server"])
def ask(request: pytest.FixtureRequest, foliot: Foliot, tmp_path: Path) -> Asked:
    """The command line on the store of the test, or on the server of the module, which it has a token for.

    The module has a function `furnish` that writes what is needed into a folder: manifests, and modules of tools.
    """
    request.module.furnish(tmp_path)
    space = f"n{secrets.token_hex(4)}"
    if request.param == "store":
        return Asked(foliot, ("-n", space), space, tmp_path, far=False)
    up: Up = request.getfixturevalue("up")
    where = ("--server", up.url, "--token-file", up.token, "-n", space)
    return Asked(foliot, where, space, up.folder, far=True)


@pytest.fixture
def applied(ask: Asked) -> Asked:
    """The same, with the manifests of the module applied."""
    said = ask("apply", "-f", "team.yaml", "--allow-missing")
    assert said.code == 0, said.err
    return ask


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
