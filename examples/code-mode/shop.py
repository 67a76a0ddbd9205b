"""The tools of the clerk: plain Python functions. The ledger is a file, so that you can count the payments yourself."""

from __future__ import annotations

import json
import os
from pathlib import Path

from foliot import Invocation

ORDERS = {
    f"C-{number}": {"paid": 12.5 * (number % 7 + 1), "days": 9 if number % 6 == 0 else 3} for number in range(1, 20)
} | {"C-20": {"paid": 320.0, "days": 12}}


def ledger() -> Path:
    """Where payments are written down: SHOP_LEDGER, or ledger.jsonl where you are."""
    return Path(os.environ.get("SHOP_LEDGER", "ledger.jsonl"))


def list_orders(when: str) -> list[str]:
    """List the numbers of orders.

    Args:
        when: A time, such as "this week".
    """
    return list(ORDERS)


def find_order(order: str) -> dict[str, object]:
    """Look an order up: what was paid, and how many days it took to arrive.

    Args:
        order: Its number, such as C-7.
    """
    return {"order": order, **ORDERS[order]}


def pay_refund(order: str, amount: float, call: Invocation) -> str:
    """Pay money back.

    Args:
        order: The number of the order.
        amount: How much, in euros.
    """
    with ledger().open("a", encoding="utf-8") as file:
        file.write(json.dumps({"order": order, "amount": amount, "run": call.run_id}) + "\n")
    return f"{amount:.2f} euros are on their way"
