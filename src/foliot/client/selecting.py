"""Selectors as the text that `store/selectors.py` reads."""

from __future__ import annotations

from collections.abc import Sequence

from foliot.errors import UsageError
from foliot.store.base import Requirement


def selector_text(requirements: Sequence[Requirement]) -> str | None:
    """What `parse_labels` and `parse_fields` read back; None for no clause. Raises `UsageError`."""
    return ",".join(_clause(each) for each in requirements) or None


def _clause(requirement: Requirement) -> str:
    for value in requirement.values:
        if set(value) & set(",()=!") or value != value.strip():
            raise UsageError(f"{value!r} cannot stand in a selector", hint="values have no , ( ) = ! in them")
    match requirement.op:
        case "=" | "!=":
            return f"{requirement.key}{requirement.op}{requirement.values[0]}"
        case "in" | "notin":
            return f"{requirement.key} {requirement.op} ({', '.join(requirement.values)})"
        case "exists":
            return requirement.key
        case "absent":
            return f"!{requirement.key}"
