"""Every operation: its name for generated clients, what it takes, what it answers, and how it can fail.

A row is added with a route. Who may call what is not told here: see permissions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from foliot.resources.kinds import KINDS, Kind
from foliot.server.describing import access, operating
from foliot.server.describing.events import HAPPENED, RUN_EVENTS, TASK_CHANGES, TASK_EVENTS, WORK_EVENTS, changes
from foliot.server.describing.schema import ANYTHING, TEXT, Schema, listof, ref
from foliot.server.describing.told import Body, Told, form
from foliot.server.openai.requests import ChatRequest, ResponsesRequest
from foliot.server.routes import approvals, runs, tasks, work_runs, work_tasks
from foliot.work.base import Command

Place: TypeAlias = tuple[str, str]

_ANY: Final[Schema] = {"oneOf": [ref(name) for name in KINDS]}
_BUNDLE: Final = Body({"anyOf": [_ANY, ref("ManifestList")]}, "manifest")
_TASK: Final = ref("StoredTask")
# With these a delivery to a webhook is refused in a shape of its own.
_REFUSED: Final = ("400", "401", "403", "404", "409", "413", "422", "429", "500")
_APPROVAL: Final = ref("StoredToolApproval")
_ACT: Final = form(work_tasks.Act)


def _named(kind: Kind) -> str:
    return "".join(word.capitalize() for word in kind.plural.split("-"))


def _deleted(kind: Kind) -> Told:
    if kind.name == "McpServer":  # answers with its name, as it always did
        return Told("deleteMcpServer", ref("Deleted"), fails=(409, 412))
    return Told(f"delete{kind.name}", codes=("204",), fails=(409, 412))


def _made(kind: Kind) -> Told:
    body = Body(ref(f"{kind.name}Body"), "manifest")
    answer = ref(f"Stored{kind.name}")
    return Told(f"create{kind.name}", answer, codes=("200", "201"), body=body, fails=(404, 409, 412), tagged=True)


# The routes of every kind.
RESOURCES: Final[Mapping[Place, Callable[[Kind], Told]]] = {
    ("get", "/v1/{kind}"): lambda kind: Told(f"list{_named(kind)}", ref(f"{kind.name}List")),
    ("post", "/v1/{kind}"): _made,
    ("get", "/v1/{kind}/{name}"): lambda kind: Told(
        f"get{kind.name}", ref(f"Stored{kind.name}"), codes=("200", "304"), tagged=True
    ),
    ("put", "/v1/{kind}/{name}"): lambda kind: Told(
        f"replace{kind.name}",
        ref(f"Stored{kind.name}"),
        body=Body(ref(f"{kind.name}Body"), "manifest"),
        fails=(409, 412, 428),
        tagged=True,
    ),
    ("patch", "/v1/{kind}/{name}"): lambda kind: Told(
        f"patch{kind.name}", ref(f"Stored{kind.name}"), body=Body(ANYTHING), fails=(409, 412), tagged=True
    ),
    ("delete", "/v1/{kind}/{name}"): _deleted,
    ("get", "/v1/{kind}/{name}/status"): lambda kind: Told(
        f"get{kind.name}Status", ref(f"Stored{kind.name}"), tagged=True
    ),
    ("put", "/v1/{kind}/{name}/status"): lambda kind: Told(
        f"replace{kind.name}Status",
        ref(f"Stored{kind.name}"),
        body=Body(ANYTHING),
        fails=(409, 412, 428),
        tagged=True,
    ),
    ("get", "/v1/{kind}/watch"): lambda kind: Told(
        f"watch{_named(kind)}", events=changes(f"Stored{kind.name}"), fails=(410,)
    ),
}

OPERATIONS: Final[Mapping[Place, Told]] = {
    # --- health and the server itself
    ("get", "/healthz"): Told("getHealthz", ref("Health")),
    ("get", "/livez"): Told("getLivez", ref("Health")),
    ("get", "/readyz"): Told("getReadyz", ref("Health"), others={"503": ref("Health")}),
    ("get", "/v1/health"): Told("getHealth", ref("DeepHealth"), others={"503": ref("DeepHealth")}),
    ("get", "/metrics"): Told("getMetrics", TEXT, media="text/plain"),
    ("get", "/v1/version"): Told("getVersion", ref("Version")),
    ("get", "/v1/namespaces"): Told("listNamespaces", ref("Namespaces")),
    ("get", "/v1/capabilities"): Told("listCapabilities", ref("Capabilities")),
    # --- who one is
    **access.OPERATIONS,
    # --- what whoever runs an installation asks for
    **operating.OPERATIONS,
    # --- tasks
    ("get", "/v1/tasks"): Told("listTasks", ref("TaskList")),
    ("post", "/v1/tasks"): Told(
        "createTask",
        _TASK,
        codes=("200", "201"),
        body=Body(ref("TaskBody"), "manifest"),
        fails=(404, 409, 412),
        tagged=True,
    ),
    ("get", "/v1/tasks/watch"): Told("watchTasks", events=TASK_CHANGES, fails=(410,)),
    ("get", "/v1/tasks/{name}"): Told("getTask", _TASK, tagged=True),
    ("put", "/v1/tasks/{name}"): Told(
        "replaceTask", _TASK, body=Body(ref("TaskBody"), "manifest"), fails=(409, 412, 428), tagged=True
    ),
    ("get", "/v1/tasks/{name}/status"): Told("getTaskStatus", _TASK, tagged=True),
    ("put", "/v1/tasks/{name}/status"): Told(
        "replaceTaskStatus", _TASK, body=Body(ANYTHING), fails=(409, 412, 428), tagged=True
    ),
    ("get", "/v1/tasks/{name}/events"): Told("followTask", events=TASK_EVENTS),
    ("get", "/v1/tasks/{name}/messages"): Told("listTaskMessages", ref("TaskMessages")),
    ("get", "/v1/tasks/{name}/metrics"): Told("getTaskMetrics", ref("TaskMetrics")),
    ("get", "/v1/tasks/{name}/logs"): Told("getTaskLogs", ref("Logs")),
    ("get", "/v1/tasks/{name}/runs"): Told("listTaskRuns", ref("TaskRuns")),
    ("get", "/v1/tasks/{name}/trace"): Told("getTaskTrace", ref("TaskTrace")),
    ("get", "/v1/tasks/{name}/why"): Told("explainTask", ref("TaskExplanation")),
    ("post", "/v1/tasks/{name}/cancel"): Told("cancelTask", _TASK, body=form(tasks.Reason), fails=(409,), tagged=True),
    ("post", "/v1/tasks/{name}/requeue"): Told(
        "requeueTask", _TASK, body=form(tasks.Requeue), fails=(409,), tagged=True
    ),
    ("post", "/v1/tasks/{name}/archive"): Told("archiveTask", _TASK, fails=(409,), tagged=True),
    # --- runs
    ("get", "/v1/runs"): Told("listRuns", ref("RunList")),
    ("get", "/v1/runs/{run_id}"): Told("getRun", ref("Run")),
    ("get", "/v1/runs/{run_id}/journal"): Told("getRunJournal", ref("Journal")),
    ("get", "/v1/runs/{run_id}/events"): Told("followRun", events=RUN_EVENTS),
    ("get", "/v1/runs/{run_id}/trace"): Told("getRunTrace", ref("RunTrace")),
    ("post", "/v1/runs/{run_id}/cancel"): Told("cancelRun", ref("Run"), body=form(runs.Reason), fails=(409,)),
    ("post", "/v1/runs/{run_id}/input"): Told(
        "sayToRun", ref("Run"), codes=("202",), body=form(runs.Said), fails=(409,)
    ),
    ("post", "/v1/runs/{run_id}/answer"): Told(
        "answerRun", ref("Run"), codes=("202",), body=form(runs.Answered), fails=(409,)
    ),
    # --- what waits for consent, and what comes signed
    ("post", "/v1/tool-approvals/{name}/approve"): Told(
        "approveToolCall", _APPROVAL, body=form(approvals.Comment), fails=(409,), tagged=True
    ),
    ("post", "/v1/tool-approvals/{name}/deny"): Told(
        "denyToolCall", _APPROVAL, body=form(approvals.Comment), fails=(409,), tagged=True
    ),
    ("post", "/v1/tool-approvals/{name}/edit"): Told(
        "editToolCall", _APPROVAL, body=form(approvals.Edited), fails=(409,), tagged=True
    ),
    ("post", "/v1/webhook-deliveries/{endpoint_id}"): Told(
        "deliverToWebhook",
        ref("DeliveryAnswer"),
        codes=("200", "202"),
        body=Body(ANYTHING, required=False),
        others=dict.fromkeys(_REFUSED, ref("DeliveryAnswer")),
    ),
    ("post", "/v1/tool-callbacks/{request_id}"): Told(
        "pushToolResult", ref("Taken"), codes=("202",), body=Body(ANYTHING, required=False), fails=(410,)
    ),
    # --- agents, memories, workers
    ("get", "/v1/agents/{name}/logs"): Told("getAgentLogs", ref("Logs")),
    ("get", "/v1/memories/{name}/entries"): Told("listMemoryEntries", ref("MemoryEntries")),
    ("get", "/v1/workers"): Told("listWorkers", ref("WorkerList")),
    ("get", "/v1/workers/{name}"): Told("getWorker", ref("StoredWorker"), tagged=True),
    # --- resources of all kinds
    ("post", "/v1/apply"): Told("applyManifests", ref("Applied"), body=_BUNDLE, fails=(404, 409)),
    ("get", "/v1/resources"): Told("listResources", ref("ResourceList"), fails=(422,)),
    ("get", "/v1/resources/watch"): Told("watchResources", events=changes("StoredResource"), fails=(410,)),
    ("get", "/v1/events/watch"): Told("watchEvents", events=HAPPENED, fails=(410,)),
    # --- as clients of OpenAI call it
    ("get", "/v1/models"): Told("listModels", ref("ModelList")),
    ("get", "/v1/models/{model}"): Told("getModel", ref("Model")),
    ("post", "/v1/chat/completions"): Told(
        "createChatCompletion",
        ref("ChatCompletion"),
        body=form(ChatRequest),
        events={"": ref("ChatCompletionChunk")},
        fails=(409,),
    ),
    ("post", "/v1/responses"): Told(
        "createResponse",
        ref("Response"),
        body=form(ResponsesRequest),
        events={"response.*": ref("ResponseEvent")},
        fails=(409,),
    ),
    ("get", "/v1/responses/{response_id}"): Told(
        "getResponse", ref("Response"), events={"response.*": ref("ResponseEvent")}, fails=(409,)
    ),
    ("get", "/v1/responses/{response_id}/input_items"): Told("listInputItems", ref("InputItemList")),
    ("delete", "/v1/responses/{response_id}"): Told("deleteResponse", ref("DeletedResponse"), fails=(409,)),
    ("post", "/v1/responses/{response_id}/cancel"): Told("cancelResponse", ref("Response"), fails=(409,)),
    # --- work, as Foliot's own client asks for it
    ("post", "/v1/work/declared"): Told(
        "acceptDeclaredTasks", listof(ref("TakenWire")), body=_BUNDLE, fails=(404, 409)
    ),
    ("post", "/v1/work/tasks"): Told(
        "submitWork", ref("Accepted"), codes=("200", "201"), body=form(Command), fails=(409,)
    ),
    ("get", "/v1/work/tasks"): Told("listWork", ref("TaskPage"), fails=(422,)),
    ("get", "/v1/work/tasks/{name}"): Told("getWork", ref("TaskInfo"), fails=(409, 422)),
    ("delete", "/v1/work/tasks/{name}"): Told("deleteWork", codes=("204",), fails=(409,)),
    ("post", "/v1/work/tasks/{name}/cancel"): Told("cancelWork", ref("TaskInfo"), body=_ACT, fails=(409,)),
    ("post", "/v1/work/tasks/{name}/archive"): Told("archiveWork", ref("TaskInfo"), body=_ACT, fails=(409,)),
    ("post", "/v1/work/tasks/{name}/requeue"): Told("requeueWork", ref("TaskInfo"), body=_ACT, fails=(409,)),
    ("get", "/v1/work/tasks/{name}/story"): Told("getWorkStory", ref("StoryWire")),
    ("get", "/v1/work/tasks/{name}/why"): Told("explainWork", ref("TaskExplanation")),
    ("get", "/v1/work/tasks/{name}/records"): Told("listWorkRecords", listof(ref("FactWire"))),
    ("get", "/v1/work/tasks/{name}/happenings"): Told("listWorkHappenings", ref("BatchWire"), fails=(422,)),
    ("get", "/v1/work/tasks/{name}/watch"): Told("watchWork", events=WORK_EVENTS, fails=(422,)),
    ("get", "/v1/work/runs"): Told("listWorkRuns", listof(ref("RunInfo")), fails=(422,)),
    ("get", "/v1/work/runs/{name}"): Told("getWorkRun", ref("RunInfo"), fails=(409, 422)),
    ("get", "/v1/work/runs/{name}/facts"): Told("listWorkRunFacts", listof(ref("FactWire")), fails=(409, 422)),
    ("get", "/v1/work/runs/{name}/why"): Told("explainWorkRun", ref("Explanation"), fails=(409, 422)),
    ("post", "/v1/work/runs/{name}/cancel"): Told("cancelWorkRun", ref("RunInfo"), body=_ACT, fails=(409,)),
    ("post", "/v1/work/runs/{name}/answer"): Told(
        "answerWorkRun", ref("RunInfo"), body=form(work_runs.Reply), fails=(409,)
    ),
    ("get", "/v1/work/approvals"): Told("listWorkApprovals", listof(_APPROVAL)),
    ("post", "/v1/work/approvals"): Told(
        "grantWork", _APPROVAL, codes=("201",), body=form(work_runs.Grant), fails=(409,)
    ),
    ("get", "/v1/work/approvals/{name}"): Told("getWorkApproval", _APPROVAL, fails=(409, 422)),
    ("post", "/v1/work/approvals/{name}/decide"): Told(
        "decideWorkApproval", ref("Decided"), body=form(work_runs.Verdict), fails=(409,)
    ),
    ("post", "/v1/work/approvals/{name}/revoke"): Told("revokeWorkGrant", _APPROVAL, body=_ACT, fails=(409,)),
    ("get", "/v1/work/questions"): Told("listWorkQuestions", listof(ref("OpenQuestion"))),
}


def otherwise(method: str, path: str) -> Told:
    """For a route without a row: a name by rule, and nothing known of its answer."""
    words = [word.strip("{}") for word in path.removeprefix("/v1").replace("-", "/").split("/") if word]
    name = method + "".join(word[:1].upper() + word[1:] for word in words)
    codes = ("200",) if method == "get" else ("200", "201", "202", "204")
    return Told(name, {}, codes=codes, fails=(404, 408, 409, 410, 412, 415, 422))


FORMS: Final = (
    *access.FORMS,
    *operating.FORMS,
    tasks.Reason,
    tasks.Requeue,
    runs.Said,
    runs.Answered,
    approvals.Comment,
    approvals.Edited,
    work_tasks.Act,
    work_runs.Reply,
    work_runs.Grant,
    work_runs.Verdict,
    ChatRequest,
    ResponsesRequest,
    Command,
)
