"""The folder where one works serves function tools, and nobody else who imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MANIFEST = """\
kind: Tool
metadata: {name: greet}
spec: {type: function, function: "desk_of_mine:greet", operation_classes: [read]}
"""
PROBE = """\
from foliot.cli.runtimes import tools_from
tools_from(["."])
try:
    import not_installed_anywhere
except ImportError:
    print("hidden")
import foliot.engine.definition.functions as functions
print(functions._imported("desk_of_mine:greet", "greet")())
"""


def folder_of(tmp_path: Path) -> Path:
    """A tool that imports its neighbour when it is loaded and another when it is called, and a trap for libraries."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "desk_of_mine.py").write_text(
        "import neighbour_of_mine\ndef greet() -> str:\n    import late_of_mine\n"
        "    return neighbour_of_mine.WORD + late_of_mine.WORD\n"
    )
    (folder / "neighbour_of_mine.py").write_text("WORD = 'hel'\n")
    (folder / "late_of_mine.py").write_text("WORD = 'lo'\n")
    for name in ("not_installed_anywhere", "aiodns", "brotlicffi", "a2wsgi", "backports"):
        (folder / f"{name}.py").write_text("open('trapped', 'a').write(__name__)\n")
    (folder / "tools.yaml").write_text(MANIFEST)
    return folder


def test_modules_of_the_folder_are_found_by_tools_and_by_each_other_alone(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (tmp_path / "probe.py").write_text(PROBE)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "probe.py")], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["hidden", "hello"], done.stderr
    assert not (folder / "trapped").exists()


def test_a_command_runs_nothing_of_the_folder_but_its_tools(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    environ = {**os.environ, "FOLIOT_HOME": str(tmp_path / "home")}
    for command in (["apply", "-f", "tools.yaml"], ["tools", "call", "greet"]):
        done = subprocess.run(
            [sys.executable, "-m", "foliot.cli", *command],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout
    assert not (folder / "trapped").exists()
