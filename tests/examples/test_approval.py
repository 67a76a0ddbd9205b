"""The gated refund: a run that waits in one terminal, and is decided from another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "approval"
PATIENCE = 90.0
LETTER = "Order B-2001 arrived broken. I want my money back."


class Shop:
    """The example with a home and a ledger of its own."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger.jsonl"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOLIOT_")}
        self.environ = kept | {"FOLIOT_HOME": str(folder / "home"), "DESK_LEDGER": str(self.ledger), "USER": "ann"}
        self.elsewhere = folder

    def start(self, *words: str, cwd: Path = EXAMPLE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "foliot.cli", *words],
            cwd=cwd,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def foliot(self, *words: str, cwd: Path = EXAMPLE) -> tuple[int, str, str]:
        with self.start(*words, cwd=cwd) as process:
            out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    def begin(self, *words: str) -> tuple[int, str, str]:
        return self.foliot("run", "agent.yaml", LETTER, "--id", "r1", "--no-wait", *words)

    def pending(self) -> list[dict[str, object]]:
        code, out, err = self.foliot("approvals", "list", "--phase", "pending", "-o", "json", cwd=self.elsewhere)
        assert code == 0, err
        return json.loads(out)["items"]

    def approval(self) -> str:
        """The name of the one approval that waits."""
        (document,) = self.pending()
        return document["metadata"]["name"]  # pyright: ignore[reportIndexIssue] - plain JSON

    @property
    def paid(self) -> list[float]:
        return (
            [json.loads(row)["amount"] for row in self.ledger.read_text().splitlines()] if self.ledger.exists() else []
        )


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.05)


def waits(shop: Shop) -> bool:
    """Whether a process stays with the run and hears the answer."""
    return any(document["status"].get("attended_by") for document in shop.pending())  # pyright: ignore[reportAttributeAccessIssue] - plain JSON


def test_a_small_refund_passes_without_a_question(shop: Shop) -> None:
    code, out, err = shop.foliot("run", "agent.yaml", "Order B-2002 is chipped.")
    assert code == 0, err
    assert "The jug is refunded" in out
    assert shop.paid == [24.5]


def test_a_run_waits_in_one_terminal_and_goes_on_when_another_approves(shop: Shop) -> None:
    with shop.start("run", "agent.yaml", LETTER, "--id", "r1", "--wait") as first:
        until(lambda: waits(shop))
        name = shop.approval()
        code, _, err = shop.foliot("approvals", "approve", name, "--comment", "fine", cwd=shop.elsewhere)
        out, told = first.communicate(timeout=PATIENCE)

    assert code == 0, err
    assert "goes on where it is driven" in err
    assert first.returncode == 0, told
    assert f"waiting for approval: foliot approvals approve {name}" in told
    assert "approval: approve, by ann" in told
    assert "R-B-2001" in out
    assert shop.paid == [860.0]


def test_without_anybody_who_waits_the_command_that_decides_goes_on_with_the_run(shop: Shop) -> None:
    code, _, err = shop.begin()
    assert code == 8, err
    name = shop.approval()
    assert f"foliot approvals approve {name}" in err

    code, out, err = shop.foliot("approvals", "approve", name)

    assert code == 0, err
    assert "R-B-2001" in out
    assert shop.paid == [860.0]
    code, _, err = shop.foliot("approvals", "deny", name, "--as", "bob")
    assert code == 4
    assert "decided before: approved by ann" in err


def test_show_says_what_would_be_done_why_and_how_it_came_to_that(shop: Shop) -> None:
    shop.begin()
    code, out, err = shop.foliot("approvals", "show", shop.approval()[:6], cwd=shop.elsewhere)

    assert code == 0, err
    assert '"amount": 860.0' in out
    assert "refunds over 500 euros need a second pair of eyes (ToolPermission/large-refunds)" in out
    assert "It cost 860 euros, and all of it should go back." in out


def test_a_denied_refund_is_not_paid_and_the_model_is_told(shop: Shop) -> None:
    shop.begin()
    code, out, err = shop.foliot("approvals", "deny", shop.approval(), "--comment", "ask the shop")

    assert code == 0, err
    assert "not approved by ann: ask the shop" in out
    assert shop.paid == []


def test_an_edited_refund_pays_the_other_amount(shop: Shop) -> None:
    shop.begin()
    name = shop.approval()
    code, _, err = shop.foliot("approvals", "edit", name, "--arguments", '{"order": "B-2001", "amount": "lots"}')
    assert code == 2
    assert "amount" in err
    code, out, err = shop.foliot("approvals", "edit", name, "--arguments", '{"order": "B-2001", "amount": 430.0}')

    assert code == 0, err
    assert "A person changed the arguments" in out
    assert shop.paid == [430.0]


def test_an_editor_changes_the_arguments(shop: Shop) -> None:
    shop.begin()
    shop.environ["EDITOR"] = "sed -i s/860/86/"
    code, _, err = shop.foliot("approvals", "edit", shop.approval())
    assert code == 0, err
    assert shop.paid == [86.0]


def test_killed_while_it_waits_it_goes_on_with_whoever_decides(shop: Shop) -> None:
    with shop.start("run", "agent.yaml", LETTER, "--id", "r1", "--wait") as first:
        until(lambda: waits(shop))
        first.send_signal(signal.SIGKILL)
        first.communicate(timeout=PATIENCE)

    code, out, err = shop.foliot("approvals", "approve", shop.approval())

    assert code == 0, err
    assert "R-B-2001" in out
    assert shop.paid == [860.0]


def test_decided_while_nobody_drives_it_the_run_pays_once_when_it_is_resumed(shop: Shop) -> None:
    shop.begin()
    code, _, err = shop.foliot("approvals", "approve", shop.approval(), "--no-resume", cwd=shop.elsewhere)
    assert code == 0, err
    assert shop.paid == []

    code, out, err = shop.foliot("resume", "r1")
    assert code == 0, err
    assert "R-B-2001" in out
    assert shop.foliot("resume", "r1")[0] == 0
    assert shop.paid == [860.0]


def test_where_its_tools_are_not_the_decision_stands_and_the_run_is_left(shop: Shop) -> None:
    shop.begin()
    code, _, err = shop.foliot("approvals", "approve", shop.approval(), cwd=shop.elsewhere)
    assert code == 8
    assert "cannot go on from here" in err
    assert "foliot resume r1" in err

    assert shop.foliot("resume", "r1")[0] == 0
    assert shop.paid == [860.0]


def test_a_standing_grant_pays_without_a_question_until_it_is_used_up_or_revoked(shop: Shop) -> None:
    shop.foliot("apply", "-f", "agent.yaml")
    granted = shop.foliot(
        *("approvals", "grant", "--tool", "pay_refund", "--agent", "careful-desk"),
        *("--when", "args.amount < 900.0", "--until", "2h", "--max-uses", "1"),
    )
    assert granted[0] == 0, granted[2]
    assert shop.foliot("run", "agent.yaml", LETTER, "--no-wait")[0] == 0
    assert shop.foliot("run", "agent.yaml", LETTER, "--no-wait")[0] == 8
    assert shop.paid == [860.0]

    _, out, _ = shop.foliot("approvals", "grant", "--tool", "pay_refund", "--until", "1h")
    name = out.split()[0]
    assert shop.foliot("approvals", "revoke", name)[0] == 0
    assert shop.foliot("run", "agent.yaml", LETTER, "--no-wait")[0] == 8
    _, listed, _ = shop.foliot("approvals", "list")
    assert listed.count("Pending") == 2
    assert "revoked by ann" in shop.foliot("approvals", "show", name)[1]
