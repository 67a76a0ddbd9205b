"""Names that Foliot keeps for itself: labels, annotations and status that decide something, and so cannot be chosen.

What stands here is refused wherever somebody else writes it: in the metadata of resources, with runs and tasks, and in
the status of kinds whose status steers. Foliot's own parts write them through the store, not through these checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, cast

from foliot.errors import Denied, InvalidInput

PREFIXES: Final = ("foliot.dev/", "openai.com/")
OWN: Final = "foliot.dev/"

# The names below `foliot.dev/` that people may set: none of them gives anybody anything.
#   managed-by   on what `apply` made. It lets the resource be pruned, by somebody who may delete it anyway.
#   loadtest     marks the tasks of a load test.
MANAGED_BY: Final = "foliot.dev/managed-by"
OPEN: Final = frozenset({MANAGED_BY, "foliot.dev/loadtest"})

# Kept for Foliot, and what each would let somebody do:
#   user, by, caller, via, request, session    be shown, or gone on with, as somebody else
#   task, run                                  have a run or an approval count as part of other work
#   task-schedule*, task-webhook*, webhook-*   have a task count as made by a trigger
#   mcp-server, mcp-generated                  have a Tool looked after, and deleted, as one of an MCP server

# Kinds whose status decides something, and what. It is written by Foliot alone; `PUT …/status` refuses it.
STEERING: Final[Mapping[str, str]] = {
    "Channel": "the address that messages are taken at",
    "McpServer": "when a server is asked for its tools again",
    "Task": "whether work is done",
    "TaskHook": "which event was last dealt with",
    "TaskSchedule": "which tasks are under way",
    "TaskWebhook": "the address that deliveries are taken at",
    "Tool": "whether people are told that a tool is kept from use",
    "ToolApproval": "whether a call was approved",
    "Worker": "who may be given work",
}


def check_asked(kind: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, which: str) -> None:
    """Raises `Denied` when somebody writes a question: a ToolApproval that is no standing grant, by its spec.

    People decide by what it shows, so a run alone asks, by its journal.
    """
    if kind == "ToolApproval" and any(spec is not None and not spec.get("standing") for spec in (before, after)):
        raise Denied(
            f"{which}: a question is asked by a run, and by nobody else",
            hint="`foliot approvals approve` or `deny` decides it; `foliot approvals grant` approves in advance",
        )


def check_answered(kind: str, stored: Mapping[str, Any], now: str, which: str) -> None:
    """Raises `Denied` when somebody deletes a question that waits: its votes would be lost. `now` is a stamp."""
    spec, status = stored["spec"], stored["status"]
    if kind != "ToolApproval" or spec.get("standing") or not spec.get("run") or status.get("phase") != "Pending":
        return
    if now < (status.get("expires_at") or "9"):
        raise Denied(f"{which} waits for a decision", hint="`foliot approvals deny` refuses the call")


def is_reserved(name: str) -> bool:
    """Whether a label or annotation of this name is Foliot's own."""
    return name.startswith(PREFIXES) and name not in OPEN


def check_labels(labels: Iterable[str], *, what: str = "label") -> None:
    """Raises `InvalidInput` for a label of a run or task that its caller cannot choose."""
    if taken := sorted(name for name in labels if is_reserved(name)):
        raise InvalidInput(
            f"the {what} {taken[0][:80]!r} cannot be given", hint=f"labels of {' and '.join(PREFIXES)} are Foliot's own"
        )


def keep_reserved(given: dict[str, Any], stored: Mapping[str, Any] | None, which: str) -> dict[str, Any]:
    """The metadata `given` with the reserved labels and annotations that are `stored`, whether or not it has them.

    Raises `InvalidInput` for one that is not stored so. `which` names the resource in the error.
    """
    kept = dict(given)
    for part in ("labels", "annotations"):
        before = _texts(stored.get(part) if stored is not None else None)
        after = _texts(given.get(part))
        for name, value in after.items():
            if name.startswith(OWN) and is_reserved(name) and before.get(name) != value:
                raise InvalidInput(
                    f"{which}: metadata.{part} cannot set {name[:80]!r}",
                    hint=f"names of {OWN} are Foliot's own; leave it out",
                )
        own = {name: value for name, value in before.items() if name.startswith(OWN) and is_reserved(name)}
        if own:
            kept[part] = {**after, **own}
    return kept


def _texts(part: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", part) if isinstance(part, dict) else {}


# --- spelling --------------------------------------------------------------------------------------------------------

# The spellings of one field name: `token_url`, `tokenUrl`, `tokenURL`.

_ACRONYMS = frozenset({"url", "id", "usd"})
_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@cache
def snake(name: str) -> str:
    """`tokenURL` -> `token_url`; a name in snake_case stays as it is."""
    return _BOUNDARY.sub("_", name).lower()


@cache
def camel(name: str) -> str:
    """`token_url` -> `tokenUrl`."""
    first, *rest = snake(name).split("_")
    return first + "".join(part.capitalize() for part in rest)


@cache
def spellings(name: str) -> tuple[str, ...]:
    """Every accepted spelling of a field, snake_case first, none twice."""
    first, *rest = snake(name).split("_")
    loud = first + "".join(part.upper() if part in _ACRONYMS else part.capitalize() for part in rest)
    return tuple(dict.fromkeys((snake(name), camel(name), loud)))


# --- names of tools in rules -----------------------------------------------------------------------------------------

_SPACES: Final = re.compile(r"[\s/\\-]")


def tool_token(text: str) -> str:
    """`Web-Search` and `web_search` are the same tool to a rule. Dots stay."""
    return _SPACES.sub("_", text.strip().lower()).strip("_:")
