"""The tools of a refund desk whose larger payments need consent. The ledger is a file: count for yourself."""

from __future__ import annotations

import json
import os
from pathlib import Path

from foliot import Invocation

ORDERS = {
    "B-2001": {"item": "espresso machine", "paid": 860.00, "customer": "ada@example.com"},
    "B-2002": {"item": "milk jug", "paid": 24.50, "customer": "bob@example.com"},
}


def ledger() -> Path:
    """Where payments are written down: DESK_LEDGER, or ledger.jsonl where you are."""
    return Path(os.environ.get("DESK_LEDGER", "ledger.jsonl"))


def find_order(order: str) -> dict[str, object]:
    """Look up an order.

    Args:
        order: Its number, such as B-2001.
    """
    if order not in ORDERS:
        raise LookupError(f"there is no order {order}")
    return {"order": order, **ORDERS[order]}


def pay_refund(order: str, amount: float, call: Invocation) -> dict[str, object]:
    """Pay money back to the customer.

    Args:
        order: The order's number.
        amount: How much, in euros.
    """
    payment = {"order": order, "amount": amount, "run": call.run_id, "approval": call.grant}
    with ledger().open("a", encoding="utf-8") as file:
        file.write(json.dumps(payment) + "\n")
    return {"paid": amount, "receipt": f"R-{order}"}
