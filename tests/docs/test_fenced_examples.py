"""Every fenced example in the README and the docs runs: Python in a process of its own, YAML through the reader."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from foliot.resources.reader import parse_text

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples(language: str) -> list[object]:
    found = []
    for page in PAGES:
        for match in FENCE.finditer(page.read_text(encoding="utf-8")):
            if match[1] == language:
                line = page.read_text(encoding="utf-8")[: match.start()].count("\n") + 1
                found.append(pytest.param(match[2], id=f"{page.relative_to(ROOT)}:{line}"))
    return found


def test_there_are_examples_to_run() -> None:
    assert examples("python")
    assert examples("yaml")


@pytest.mark.parametrize("source", examples("python"))
def test_python_examples_run(source: str, tmp_path: Path) -> None:
    environment = {**os.environ, "FOLIOT_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("source", examples("yaml"))
def test_manifest_examples_are_valid(source: str) -> None:
    if "kind:" not in source:
        assert yaml.safe_load(source)  # a part of a manifest: at least YAML
        return
    bundle = parse_text(source, "example.yaml")
    assert [str(finding) for finding in bundle.errors] == []


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", text)
    assert [target for target in targets if not (page.parent / target).exists()] == []
