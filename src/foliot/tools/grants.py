"""What an approval is bound to, and how a gate finds out whether a call has one.

An approval covers one call of one run with exactly the arguments that somebody looked at. A standing grant covers the
calls of a tool, perhaps of one agent only, until it ends or is used up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

from foliot.resources.digest import canonical_json
from foliot.tools.base import Invocation


def arguments_digest(arguments: Mapping[str, Any]) -> str:
    """`sha256:<hex>` of the canonical JSON: the same for the same arguments, however they were written."""
    return f"sha256:{hashlib.sha256(canonical_json(arguments)).hexdigest()}"


def approval_id(call: Invocation, digest: str) -> str:
    """The id of the approval that a call needs: always the same for it, and never that of another call or arguments."""
    bound = "\x00".join((call.namespace, call.run_id, call.call_id, call.tool, digest))
    return f"ta-{hashlib.sha256(bound.encode()).hexdigest()[:16]}"


class Grants(Protocol):
    """Looks answers up. Both raise when they cannot be looked up, and a gate that raises refuses the call."""

    async def covers(self, call: Invocation, digest: str) -> bool:
        """Whether `call.grant` is the id of an approval that was given to this very call with these arguments."""
        ...

    async def standing(self, call: Invocation) -> str | None:
        """The name of a standing grant that covers the call, which counts as one use of it; None when there is none.

        Asking again for the same call (after a crash) finds the same grant and is not another use.
        """
        ...
