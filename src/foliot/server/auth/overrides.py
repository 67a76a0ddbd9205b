"""The rule on what a caller may change of an agent for one run or session: its model and its prompt.

What an agent is told and whom it asks is declared by authors; whoever has work done takes it as it is.
"""

from __future__ import annotations

from foliot.errors import Denied
from foliot.server.auth.identity import EVERYWHERE, HIDDEN, Caller


def check_override(caller: Caller, namespace: str, *, model: str | None, prompt: str | None = None) -> None:
    """Raises `Denied` unless the caller may have another model or prompt; None, or a blank model, is its own."""
    if not model and prompt is None:
        return
    caller.require("author", namespace, missing=HIDDEN)
    if model and ":" in model and not caller.may("admin", EVERYWHERE):
        raise Denied(
            "a model named as provider:model is asked with the key of this server",
            hint="name a ModelEndpoint, or ask the operator of this installation (admin of all namespaces)",
        )
