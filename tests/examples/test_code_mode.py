"""The clerk that writes a program: run, asked, killed, and resumed, as a newcomer would do it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pydantic_monty")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "code-mode"
PATIENCE = 90.0
ORDER = "Refund everything that came late this week."


class Shop:
    """The example with a home and a ledger of its own."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger.jsonl"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOLIOT_")}
        self.environ = kept | {"FOLIOT_HOME": str(folder / "home"), "SHOP_LEDGER": str(self.ledger), "USER": "ann"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "foliot.cli", *words]
        return subprocess.Popen(
            command,
            cwd=EXAMPLE,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def foliot(self, *words: str) -> str:
        with self.start(*words) as process:
            out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        return out

    def approval(self) -> str:
        """The name of the one approval that waits, as soon as there is one."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if found := json.loads(self.foliot("approvals", "list", "--phase", "pending", "-o", "json"))["items"]:
                return found[0]["metadata"]["name"]
        raise AssertionError("nothing waits")

    @property
    def paid(self) -> list[str]:
        return [json.loads(row)["order"] for row in self.ledger.read_text().splitlines()]


@pytest.mark.slow
def test_a_program_waits_for_consent_survives_a_kill_and_pays_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.start("run", "agent.yaml", ORDER, "--id", "r1") as first:
        approval = shop.approval()
        why = shop.foliot("why", "r1")
        first.send_signal(signal.SIGKILL)
    assert "its program, run sub-" in why
    assert "pay_refund" in why
    assert shop.paid == ["C-6", "C-12", "C-18"]
    shop.foliot("approvals", "approve", approval, "--no-resume")

    assert "20 orders, 4 late\n=> 545.0" in shop.foliot("resume", "r1")
    assert shop.paid == ["C-6", "C-12", "C-18", "C-20"]
    trace = shop.foliot("trace", "r1")
    assert "code 25 calls" in trace
    assert "│  │  ├─ ✓ find_order" in trace


@pytest.mark.slow
def test_a_program_that_waits_is_left_by_the_command_and_ends_where_it_is_approved(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.start("run", "agent.yaml", ORDER, "--id", "r1", "--no-wait") as left:
        _, told = left.communicate(timeout=PATIENCE)
    assert left.returncode == 8
    assert "It waits for an approval of pay_refund" in told

    assert "20 orders, 4 late\n=> 545.0" in shop.foliot("approvals", "approve", shop.approval())
    assert shop.paid == ["C-6", "C-12", "C-18", "C-20"]
