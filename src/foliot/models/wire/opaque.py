"""What a provider wants back unchanged, marked with the format it belongs to.

A run that falls back from one provider to another carries the first one's signatures in its history; sent to the
second they are refused. The mark keeps them at home.
"""

from __future__ import annotations


def mark(wire: str, value: str) -> str:
    return f"{wire}:{value}"


def unmark(wire: str, opaque: str | None) -> str | None:
    """The value, if it belongs to this format; else None."""
    if opaque is None or not opaque.startswith(f"{wire}:"):
        return None
    return opaque[len(wire) + 1 :]
