"""The operations of Foliot's own client on runs that are driven here, records, budgets, workers, tools and triggers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from foliot.client.operations import Simulation
from foliot.client.run_standing import ForkOrder, RunOrder
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
from foliot.server.describing.told import Told, form
from foliot.server.routes import audit, operations, tools, triggers, work_runs
from foliot.store.bounds import Limit
from foliot.tools.judge import PolicyQuestion

FORMS: Final[tuple[type[Struct], ...]] = (
    RunOrder,
    ForkOrder,
    Limit,
    work_runs.Settled,
    audit.Anchor,
    operations.Unlimited,
    operations.Mended,
    PolicyQuestion,
    Simulation,
    tools.ToolOrder,
    triggers.Now,
    triggers.Rotation,
    triggers.Again,
    triggers.Trial,
)
SHAPES: Final[dict[str, Schema]] = {
    "AuditRecord": shape(
        {"seq": COUNT, "hash": TEXT, "body": ANYTHING}, about="One record; `body` has the hash of the one before."
    ),
    "AuditRecords": shape({"records": listof(ref("AuditRecord"))}),
    "AuditVerified": shape(
        {"records": COUNT, "head": shape({"seq": COUNT, "hash": TEXT}), "broken": maybe(ANYTHING)},
        optional={"first": COUNT},
        about="`broken` says where the log was changed, if it was; `first` is the first record that is kept.",
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
_RUN: Final = ref("RunInfo")
_SCHEDULE: Final = ref("StoredTaskSchedule")
_WEBHOOK: Final = ref("StoredTaskWebhook")
_SOUGHT: Final = (409, 422)
_CLASH: Final = (409,)

OPERATIONS: Final[Mapping[tuple[str, str], Told]] = {
    # --- runs that are driven here
    ("post", "/v1/work/runs"): Told("beginWorkRun", _RUN, body=form(RunOrder), fails=(404, 409)),
    ("get", "/v1/work/interrupted"): Told("listInterruptedRuns", shape({"runs": listof(_RUN)})),
    ("get", "/v1/work/runs/{name}/standing"): Told(
        "getWorkRunStanding", shape({"info": _RUN, "result": ANYTHING, "seq": COUNT}), fails=_SOUGHT
    ),
    ("get", "/v1/work/runs/{name}/replay"): Told(
        "replayWorkRun",
        shape({"events": COUNT, "decided": COUNT, "ended": YES_NO, "difference": maybe(ANYTHING)}),
        fails=_SOUGHT,
    ),
    ("post", "/v1/work/runs/{name}/fork"): Told("forkWorkRun", _RUN, body=form(ForkOrder), fails=_CLASH),
    ("post", "/v1/work/runs/{name}/resume"): Told("resumeWorkRun", _RUN, fails=_SOUGHT),
    ("post", "/v1/work/runs/{name}/settle"): Told("settleWorkCall", _RUN, body=form(work_runs.Settled), fails=_CLASH),
    # --- records
    ("get", "/v1/audit"): Told("listAuditRecords", ref("AuditRecords")),
    ("get", "/v1/audit/totals"): Told("getAuditTotals", shape({"totals": listof(ANYTHING)}), fails=(422,)),
    ("get", "/v1/audit/export"): Told("exportAuditRecords", ref("AuditRecords")),
    ("post", "/v1/audit/verify"): Told("verifyAudit", ref("AuditVerified"), body=form(audit.Anchor)),
    ("get", "/v1/audit/{number}"): Told("getAuditRecord", ref("AuditRecord")),
    # --- budgets, rules, workers
    ("get", "/v1/work/budgets"): Told(
        "getBudgetStandings", shape({"standings": listof(ANYTHING), "declared": COUNT, "waiting": listof(TEXT)})
    ),
    ("get", "/v1/work/rules"): Told("getRuleDefaults", shape({"default_tool_access": {"enum": ["allow", "deny"]}})),
    ("post", "/v1/work/rules/explain"): Told(
        "explainToolCall", shape({"judgement": ref("Judged"), "declared": YES_NO}), body=form(PolicyQuestion)
    ),
    ("post", "/v1/work/rules/simulate"): Told(
        "simulateToolCalls",
        shape({"fates": listof(shape({"before": ref("Judged"), "after": ref("Judged")}))}),
        body=form(Simulation),
    ),
    ("get", "/v1/work/workers"): Told("listWorkWorkers", shape({"workers": listof(ANYTHING)})),
    ("get", "/v1/work/limits"): Told("listLimits", ref("Limits")),
    ("post", "/v1/work/limits"): Told("setLimit", ref("Limits"), body=form(Limit)),
    ("post", "/v1/work/limits/clear"): Told("clearLimit", ref("Limits"), body=form(operations.Unlimited)),
    ("get", "/v1/work/classes"): Told("listFailingClasses", ref("Classes")),
    ("post", "/v1/work/classes/mend"): Told("mendClass", ref("Classes"), body=form(operations.Mended)),
    # --- tools
    ("get", "/v1/work/tools"): Told(
        "getToolset", shape({"tools": listof(ref("ToolFacts")), "capabilities": ANYTHING}), fails=(422,)
    ),
    ("get", "/v1/work/tools/{name}"): Told("describeTool", ref("ToolFacts"), fails=(422,)),
    ("post", "/v1/work/tools/{name}/call"): Told(
        "callTool",
        shape({}, optional={"result": maybe(ANYTHING), "parked": maybe(ANYTHING), "printed": TEXT}),
        body=form(tools.ToolOrder),
        fails=(409,),
    ),
    ("post", "/v1/work/tools/{name}/test"): Told("testTool", ref("Judged"), body=form(tools.ToolOrder), fails=(409,)),
    # --- schedules and webhooks
    ("get", "/v1/work/schedules"): Told("listWorkSchedules", shape({"items": listof(_SCHEDULE)})),
    ("get", "/v1/work/schedules/{name}"): Told("getWorkSchedule", _SCHEDULE),
    ("get", "/v1/work/schedules/{name}/slots"): Told("listSlots", shape({"slots": listof(ANYTHING)})),
    ("post", "/v1/work/schedules/{name}/run"): Told(
        "runSchedule",
        shape({}, optional={"task": TEXT, "phase": TEXT, "reason": TEXT}),
        body=form(triggers.Now),
        fails=_CLASH,
    ),
    ("get", "/v1/work/webhooks"): Told("listWorkWebhooks", shape({"items": listof(_WEBHOOK)})),
    ("get", "/v1/work/webhooks/{name}"): Told("getWorkWebhook", _WEBHOOK, fails=_CLASH),
    ("post", "/v1/work/webhooks/{name}/rotate"): Told(
        "rotateWebhook", _WEBHOOK, body=form(triggers.Rotation), fails=_CLASH
    ),
    ("get", "/v1/work/webhooks/{name}/deliveries"): Told(
        "listDeliveries", shape({"deliveries": listof(ref("Delivery"))})
    ),
    ("get", "/v1/work/webhooks/{name}/deliveries/{id}"): Told("getDelivery", ref("Delivery")),
    ("post", "/v1/work/webhooks/{name}/deliveries/{id}/replay"): Told(
        "replayDelivery", shape({"task": TEXT}), body=form(triggers.Again), fails=_CLASH
    ),
    ("post", "/v1/work/webhooks/{name}/send-test"): Told(
        "sendTestDelivery", shape({"status": COUNT, "document": ANYTHING}), body=form(triggers.Trial), fails=_CLASH
    ),
}
