"""The name under which Foliot is installed, and what is said when another project's package has its place."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from foliot.version import DISTRIBUTION, install_command
from foliot_runtime import REPAIR

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# `src` has the errors and the hints, written out or made by `install_command`.
FOLDERS = ("src", "docs", "examples", "deploy", "benchmarks", ".ci")
SHOWN = (*FOLDERS, "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml", "Makefile")
OTHER_NAME = re.compile(
    r"\b(?:re)?install\s+(?:-\S+\s+)*['\"]?foliot(?!-runtime)\b(?!/)|(?<![\w.-])foliot\[\s*[a-z-]+[\],]"
)
# An environment where `foliot` is installed after `foliot-runtime`: it has our modules, and their `__init__.py`.
FOREIGN = {"imports": "TICK = 1\n", "breaks": "from foliot.engine import Engine\n"}


def shown_files() -> list[Path]:
    found = [ROOT / name for name in SHOWN]
    below = [each for folder in found if folder.is_dir() for each in folder.rglob("*")]
    return [each for each in (*found, *below) if each.is_file() and "__pycache__" not in each.parts]


@pytest.mark.parametrize(
    "line",
    [
        "pip install foliot",
        "pip install -U 'foliot[all]'",
        "install foliot[wasm]",
        "uv pip install foliot",
        "reinstall foliot",
    ],
)
def test_the_search_finds_the_other_name(line: str) -> None:
    assert OTHER_NAME.search(line)
    assert not OTHER_NAME.search(line.replace("foliot", DISTRIBUTION))


def test_nothing_says_to_install_the_other_distribution() -> None:
    files = shown_files()
    assert len(files) > 1000
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()[:120]}"
        for path in files
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if OTHER_NAME.search(line)
    ]
    assert found == []


def test_the_project_has_the_name_that_hints_say() -> None:
    assert PROJECT["project"]["name"] == DISTRIBUTION
    assert PROJECT["project"]["scripts"] == {"foliot": "foliot_runtime:main"}
    assert f"{DISTRIBUTION}[all]" in install_command("all")


def environment(folder: Path, *, init: str | None, entry_points: str = "") -> dict[str, str]:
    """Put our modules into a folder, with another `__init__.py` and another distribution's metadata beside them."""
    package = folder / "foliot"
    package.mkdir()
    for each in (ROOT / "src/foliot").iterdir():
        if each.name not in ("__init__.py", "__pycache__"):
            (package / each.name).symlink_to(each)
    (folder / "foliot_runtime.py").symlink_to(ROOT / "src/foliot_runtime.py")
    (package / "__init__.py").write_text((ROOT / "src/foliot/__init__.py").read_text() if init is None else init)
    metadata = folder / "foliot-3.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: foliot\nVersion: 3.1\n")
    (metadata / "entry_points.txt").write_text(entry_points)
    assert Distribution.at(metadata).metadata["Name"] == PathDistribution(metadata).metadata["Name"] == "foliot"
    return {**os.environ, "PYTHONPATH": str(folder), "FOLIOT_HOME": str(folder / "home"), "NO_COLOR": "1"}


def run(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from foliot_runtime import main; main()", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, cwd=env["PYTHONPATH"])


@pytest.mark.parametrize("init", [None, *FOREIGN.values()], ids=["beside", *FOREIGN])
def test_a_failed_command_begins_with_the_foreign_package(init: str | None, tmp_path: Path) -> None:
    failed = run(environment(tmp_path, init=init), "describe", "agent", "nobody")

    assert failed.returncode in (2, 3)
    first = failed.stderr.splitlines()[0]
    assert re.match(r"(warning|error): the distribution foliot 3\.1 is installed: another project's", first)
    assert REPAIR in failed.stderr
    assert "Traceback" not in failed.stderr


def test_doctor_tells_the_foreign_package(tmp_path: Path) -> None:
    env = environment(tmp_path, init=FOREIGN["imports"])
    found = {each["check"]: each for each in json.loads(run(env, "doctor", "-o", "json").stdout)["findings"]}

    assert found["packages.foliot"]["level"] == "error"
    assert found["packages.foliot"]["hint"] == REPAIR


def test_an_installation_under_the_former_name_is_ours(tmp_path: Path) -> None:
    env = environment(tmp_path, init=None, entry_points="[console_scripts]\nfoliot = foliot.cli.entry:main\n")
    failed = run(env, "describe", "agent", "nobody")

    assert (failed.returncode, failed.stderr.splitlines()[0][:6]) == (3, "error:")


def test_what_an_uninstalled_package_took_along_is_told(tmp_path: Path) -> None:
    """`pip uninstall foliot` also removes our `__init__.py`, which its own had replaced."""
    env = environment(tmp_path, init="")
    (tmp_path / "foliot-3.1.dist-info/METADATA").unlink()
    (tmp_path / "foliot-3.1.dist-info/entry_points.txt").unlink()
    (tmp_path / "foliot-3.1.dist-info").rmdir()
    failed = run(env, "describe", "agent", "nobody")

    assert failed.stderr.startswith("warning: the package foliot was replaced or removed in part: ")
