"""What Foliot's own client is answered about records, budgets, workers, tools and triggers."""

from __future__ import annotations

from typing import Final

from foliot.server.describing.schema import (
    ANYTHING,
    COUNT,
    MAYBE_TEXT,
    NUMBER,
    TEXT,
    YES_NO,
    Schema,
    listof,
    maybe,
    ref,
    shape,
)

SHAPES: Final[dict[str, Schema]] = {
    "AuditRecord": shape(
        {"seq": COUNT, "hash": TEXT, "body": ANYTHING}, about="One record; `body` has the hash of the one before."
    ),
    "AuditRecords": shape({"records": listof(ref("AuditRecord"))}),
    "AuditVerified": shape(
        {"records": COUNT, "head": shape({"seq": COUNT, "hash": TEXT}), "broken": maybe(ANYTHING)},
        optional={"first": COUNT, "missing": listof(TEXT)},
        about="`broken` says where the log was changed, if it was; `first` is the first record that is kept; `missing` "
        "are finished calls (`RUN/CALL`) that the journals tell of and the log does not.",
    ),
    "Limits": shape({"limits": listof(ref("Limit"))}),
    "Classes": shape({"classes": listof(ANYTHING)}),
    "ToolFacts": shape(
        {"name": TEXT, "from": TEXT, "available": YES_NO},
        optional={"problem": TEXT, "type": TEXT, "effect": TEXT, "description": TEXT, "rules": listof(TEXT)},
        about="A tool; `problem` says why it cannot be called.",
    ),
    "Delivery": shape(
        {"id": TEXT, "at": NUMBER, "outcome": TEXT, "status": COUNT, "size": COUNT, "digest": TEXT},
        optional={"task": TEXT, "reason": TEXT, "detail": TEXT, "event": TEXT, "headers": TEXT, "body": MAYBE_TEXT},
        about="What was delivered to a webhook. `body` is in base64, and kept only of what was signed.",
    ),
    "Judged": shape({"outcome": {"enum": ["allow", "ask", "deny"]}, "decided": ANYTHING, "verdicts": listof(ANYTHING)}),
}
