"""Every fenced example in the README and the docs runs: Python in a process of its own, YAML through the reader.

An example that connects to NATS is answered by a server of tools that believes signed calls only.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from foliot.resources.reader import parse_text
from foliot.tools.function import tool
from foliot.tools.nats_worker.callers import BusCallerEntry, new_callers
from tests.tools.serving.bus import linked, served

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


ON_NATS = "nats.connect("
# Of examples in Python: they run programs in a sandbox, which not every machine can make.
IN_FENCE = re.compile(r"^    (sandbox|execution_policy)=", re.MULTILINE)


def examples(language: str, *, on_nats: bool = False) -> list[object]:
    found = []
    for page in PAGES:
        for match in FENCE.finditer(page.read_text(encoding="utf-8")):
            if match[1] == language and (ON_NATS in match[2]) == on_nats:
                line = page.read_text(encoding="utf-8")[: match.start()].count("\n") + 1
                marks = [pytest.mark.fence] if IN_FENCE.search(match[2]) else []
                found.append(pytest.param(match[2], id=f"{page.relative_to(ROOT)}:{line}", marks=marks))
    return found


def test_there_are_examples_to_run() -> None:
    assert examples("python")
    assert examples("yaml")
    assert examples("python", on_nats=True)


@pytest.mark.parametrize("source", examples("python"))
def test_python_examples_run(source: str, tmp_path: Path) -> None:
    assert _printed(source, tmp_path)


@pytest.mark.parametrize("source", examples("python", on_nats=True))
async def test_python_examples_call_tools_over_nats(source: str, tmp_path: Path, nats_url: str) -> None:
    @tool
    def search(q: str) -> str:
        """Look something up."""
        return f"found {q}"

    key = base64.b64encode(os.urandom(32)).decode()
    callers = new_callers({"desk": BusCallerEntry(key=key)})
    async with linked(nats_url) as link, served(link, search, callers=callers):
        printed = await asyncio.to_thread(_printed, source, tmp_path, NATS_URL=nats_url, DESK_KEY=key)
    assert printed == "found clocks"


def _printed(source: str, folder: Path, **variables: str) -> str:
    environment = {**os.environ, "FOLIOT_HOME": str(folder / "home"), **variables}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


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
