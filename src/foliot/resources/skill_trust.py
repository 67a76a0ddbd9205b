"""The trust in a skill: its digest, and whether it is in quarantine.

A model follows a skill as it follows its prompt. So a skill is in quarantine, and in no prompt, until somebody with the
role `approver` allows exactly its digest (`spec.allow`). A changed byte is another digest. What the operator of the
installation declares himself needs no other word, unless it came from elsewhere (`spec.origin`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from foliot.resources.digest import canonical_json
from foliot.resources.powers import declared_by_operator

QUARANTINED: Final = "Quarantined"


def skill_digest(spec: Mapping[str, Any], name: str) -> str:
    """Returns the digest of a skill: of all that a model could be shown of it, under the name that it has there.

    In whose runs it is offered is a part of it: a skill that was allowed for one user is not allowed for another.
    """
    seen: dict[str, Any] = {
        "name": spec.get("name") or name,
        "description": spec.get("description", ""),
        "status": spec.get("status") or "active",
        "disable_model_invocation": bool(spec.get("disable_model_invocation")),
        "body": spec.get("body", ""),
        "files": dict(spec.get("files") or {}),
    }
    if user := spec.get("user"):
        seen["user"] = user
    return f"sha256:{hashlib.sha256(canonical_json(seen)).hexdigest()}"


def digest_of_skill(document: Mapping[str, Any]) -> str:
    """Returns the digest of a Skill document."""
    return skill_digest(document.get("spec") or {}, document["metadata"]["name"])


def in_quarantine(document: Mapping[str, Any]) -> bool:
    """Whether a Skill must not reach a model, because what it says now is not allowed."""
    spec: Mapping[str, Any] = document.get("spec") or {}
    if spec.get("allow"):
        return spec["allow"] != digest_of_skill(document)
    return bool(spec.get("origin")) or not declared_by_operator(document)
