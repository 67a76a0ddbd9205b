"""The tools of the guide: plain Python functions."""

from __future__ import annotations

import time


def weather(place: str) -> str:
    """The weather now.

    Args:
        place: A town.
    """
    time.sleep(0.5)  # long enough to say something meanwhile
    return "sunny, 24 degrees" if place == "Lisbon" else "not known"


def book_table(name: str, seats: int) -> str:
    """Book a table.

    Args:
        name: The restaurant.
        seats: For how many.
    """
    return f"A table for {seats} at {name} is booked."
