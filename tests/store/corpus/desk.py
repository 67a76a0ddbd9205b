"""The tools of the stores in this folder. What they do to the world is a line in the file that DESK_LEDGER names.

DESK_HOLD names a folder: a tool that finds a file there with its own name says so in the ledger and then waits for its
process to be killed. So a store can be made with calls in it that began and never ended.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def _note(what: str) -> None:
    with Path(os.environ["DESK_LEDGER"]).open("a", encoding="utf-8") as ledger:
        ledger.write(f"{what}\n")


def _hold(name: str) -> None:
    folder = os.environ.get("DESK_HOLD")
    if folder and (Path(folder) / name).exists():
        _note(f"holding {name}")
        time.sleep(3600)


def look(order: str) -> dict[str, object]:
    """Look up an order.

    Args:
        order: Its number.
    """
    _hold("look")
    # Long enough to be kept as content of its own, outside the journal.
    return {"order": order, "history": [f"line {number} of order {order}" for number in range(4000)]}


def pay(order: str, amount: float) -> str:
    """Pay money back.

    Args:
        order: The number of the order.
        amount: How much.
    """
    _note(f"paid {order}")
    _hold("pay")
    return f"paid {amount:.2f} for {order}"


def fail(order: str) -> str:
    """Fail, always.

    Args:
        order: The number of an order.
    """
    raise ValueError(f"the register does not open for {order}")
