"""What an installation can do, by names that do not change: for programs that ask before they try."""

from __future__ import annotations

from typing import Any, Final

CAPABILITIES: Final = {
    "core.api.crud": "resources of every kind, with versions, selectors and paging",
    "core.api.watch": "streams that go on where they broke off",
    "core.runtime.sequential": "runs one after the other",
    "core.runtime.message_driven": "systems of agents, done by any number of workers",
    "core.governance.agent_roles": "rules for every tool call",
    "core.governance.approvals": "calls that wait for consent, bound to their arguments",
    "core.auth.tokens": "tokens with roles by namespace",
    "core.auth.sessions": "accounts with passwords, sessions of browsers, identity providers",
    "core.self_host": "one process, one file",
}
# Clients ask for these too, and are told that they are not here.
MISSING: Final = {"core.ui.baseline": "a console in the browser"}


def listed_capabilities() -> list[dict[str, Any]]:
    """All of them, those that are missing too."""
    return [
        {"id": name, "enabled": name not in MISSING, "description": text, "source": "foliot"}
        for name, text in (CAPABILITIES | MISSING).items()
    ]
