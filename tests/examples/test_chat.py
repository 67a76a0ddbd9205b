"""The guide: talked with at a terminal, and in a pipe, from its own folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "chat"


def foliot(home: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOLIOT_")}
    return subprocess.run(
        [sys.executable, "-m", "foliot.cli", *words],
        cwd=EXAMPLE,
        env=kept | {"FOLIOT_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=90,
    )


def test_the_guide_looks_things_up_and_asks_before_it_books(tmp_path: Path) -> None:
    answered = foliot(tmp_path, "chat", "agent.yaml", stdin="How is the weather?")
    assert (answered.returncode, answered.stdout) == (0, "In Lisbon it is sunny, 24 degrees.\n"), answered.stderr

    asks = foliot(tmp_path, "chat", "guide", stdin="Book a table, please.")
    assert asks.returncode == 8, asks.stderr
    assert "foliot approvals approve" in asks.stderr

    session = foliot(tmp_path, "sessions", "list", "-o", "name").stdout.strip()
    history = foliot(tmp_path, "sessions", "history", session)
    assert "In Lisbon it is sunny" in history.stdout
    assert "How is the weather?" in foliot(tmp_path, "sessions", "search", "weather").stdout
