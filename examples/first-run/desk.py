"""The tools of the refund desk: plain Python functions.

What each one does to the world is declared in agent.yaml: `read` changes nothing, `idempotent` may be repeated,
`once` must never happen twice. The ledger is a file, so that you can count the payments yourself.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from foliot import Invocation

ORDERS = {
    "A-1007": {"item": "kettle", "paid": 49.90, "delivered_days_ago": 9, "customer": "ada@example.com"},
    "A-1008": {"item": "armchair", "paid": 320.00, "delivered_days_ago": 64, "customer": "bob@example.com"},
}


def ledger() -> Path:
    """Where payments are written down: DESK_LEDGER, or ledger.jsonl where you are."""
    return Path(os.environ.get("DESK_LEDGER", "ledger.jsonl"))


def find_order(order: str) -> dict[str, object]:
    """Look up an order.

    Args:
        order: Its number, such as A-1007.
    """
    time.sleep(0.3)
    if order not in ORDERS:
        raise LookupError(f"there is no order {order}")
    return {"order": order, **ORDERS[order]}


def check_policy(delivered_days_ago: int, paid: float) -> str:
    """What the refund policy says.

    Args:
        delivered_days_ago: Days since the parcel arrived.
        paid: What the customer paid, in euros.
    """
    time.sleep(0.2)
    return "refund in full" if delivered_days_ago <= 30 else "no refund after 30 days"


def pay_refund(order: str, amount: float, call: Invocation) -> dict[str, object]:
    """Pay money back to the customer.

    Args:
        order: The order's number.
        amount: How much, in euros.
    """
    time.sleep(0.6)  # a payment provider takes its time
    payment = {"order": order, "amount": amount, "run": call.run_id, "key": call.idempotency_key}
    with ledger().open("a", encoding="utf-8") as file:
        file.write(json.dumps(payment) + "\n")
    return {"paid": amount, "receipt": f"R-{order}"}


def read_ledger(order: str, call: Invocation) -> list[float]:
    """What this run has paid for an order, by the ledger.

    Args:
        order: The order's number.
    """
    time.sleep(0.2)
    if not ledger().exists():
        return []
    rows = [json.loads(row) for row in ledger().read_text(encoding="utf-8").splitlines()]
    return [row["amount"] for row in rows if row["order"] == order and row["run"] == call.run_id]


def send_note(to: str, text: str) -> str:
    """Write to the customer. Sending the same note again does no harm.

    Args:
        to: The address.
        text: What to say.
    """
    time.sleep(0.3)
    return f"sent to {to}"
