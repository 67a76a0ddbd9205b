"""The routes of the server: one row for each method and path says everything about it that is not its handler.

A row has who may call it and where (`RouteRule`), what the description of the API says of it (`Operation`), and, for a
POST, what an `Idempotency-Key` means (`KeyRule`). The guard, the idempotency keys, the description and the registration
of handlers all read it here, so they cannot disagree. A handler without a row does not start, nor a row without a
handler.

Parameters of paths, queries and headers are in the signatures of the handlers, which check them. Forms of bodies are
named by their place and loaded for the description alone: handlers import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from foliot.resources.kinds import KINDS, Kind
from foliot.server.auth.rules import (
    ANYONE,
    CONSENT,
    DECLARE,
    LISTED,
    LOOK,
    OPERATE,
    PROBED,
    PUBLIC,
    READ,
    STEER,
    WRITE,
    RouteRule,
)
from foliot.server.openapi.events import (
    HAPPENED,
    RUN_EVENTS,
    SESSION_EVENTS,
    TASK_CHANGES,
    TASK_EVENTS,
    WORK_EVENTS,
    changes,
)
from foliot.server.openapi.operation import Body, Operation, form
from foliot.server.openapi.schema import ANYTHING, COUNT, TEXT, YES_NO, Schema, listof, maybe, ref, shape


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The meaning of an `Idempotency-Key` for a POST. `kept`: its answer is kept under the key of its caller.

    A request may be broken off when its server dies: whether it was done is then not known. With `again` it is done
    again when it is asked again, because what it does cannot be done twice; all others say that it is not known. Where
    answers are not kept, `why` says why.
    """

    kept: bool
    again: bool = False
    why: str = ""


KEPT: Final = KeyRule(kept=True)
# Done twice is done once: it sets something, names what it makes, or finds that it was done before.
AGAIN: Final = KeyRule(kept=True, again=True)


def apart(why: str) -> KeyRule:
    """Return the rule of a route for which the header means something else, or nothing."""
    return KeyRule(kept=False, why=why)


@dataclass(frozen=True, slots=True)
class RouteRow:
    """One route. The `operation` of a route for all kinds is made for each kind; None for one that is not described."""

    rule: RouteRule
    operation: Operation | Callable[[Kind], Operation] | None = None
    key: KeyRule | None = None

    def described(self, kind: Kind | None = None) -> Operation:
        """Return what is told of the route, for this kind if it is one for all kinds."""
        operation = self.operation
        if callable(operation):
            assert kind is not None, "asked for one kind at a time"
            return operation(kind)
        assert operation is not None, "a route that is described has an operation"
        return operation


_NAMESPACE: Final = ("namespace",)
_ANY: Final[Schema] = {"oneOf": [ref(name) for name in KINDS]}
_BUNDLE: Final = Body({"anyOf": [_ANY, ref("ManifestList")]}, "manifest")
_TASK: Final = ref("StoredTask")
# With these a delivery to a webhook is refused in a shape of its own.
_REFUSED: Final = ("400", "401", "403", "404", "409", "413", "422", "429", "500")
_APPROVAL: Final = ref("StoredToolApproval")
_RUN: Final = ref("Run")
_SCHEDULE: Final = ref("StoredTaskSchedule")
_WEBHOOK: Final = ref("StoredTaskWebhook")
_SOUGHT: Final = (409, 422)
_CLASH: Final = (409,)


def _page(name: str) -> Schema:
    return shape({"items": listof(ref(name))}, optional={"continue": TEXT})


def _named(kind: Kind) -> str:
    return "".join(word.capitalize() for word in kind.plural.split("-"))


def _deleted(kind: Kind) -> Operation:
    if kind.name == "McpServer":  # answers with its name, as it always did
        return Operation("deleteMcpServer", ref("Deleted"), fails=(409, 412))
    return Operation(f"delete{kind.name}", codes=("204",), fails=(409, 412))


def _made(kind: Kind) -> Operation:
    body = Body(ref(f"{kind.name}Body"), "manifest")
    answer = ref(f"Stored{kind.name}")
    return Operation(f"create{kind.name}", answer, codes=("200", "201"), body=body, fails=(404, 409, 412), tagged=True)


ROUTES: Final[Mapping[tuple[str, str], RouteRow]] = {
    # --- health and the server itself
    ("GET", "/healthz"): RouteRow(PROBED, Operation("getHealthz", ref("Health"), others={"503": ref("Health")})),
    ("GET", "/livez"): RouteRow(PROBED, Operation("getLivez", ref("Health"))),
    ("GET", "/readyz"): RouteRow(PROBED, Operation("getReadyz", ref("Health"), others={"503": ref("Health")})),
    ("GET", "/metrics"): RouteRow(RouteRule("everywhere"), Operation("getMetrics", TEXT, media="text/plain")),
    ("GET", "/v1/health"): RouteRow(
        ANYONE, Operation("getHealth", ref("DeepHealth"), others={"503": ref("DeepHealth")})
    ),
    ("GET", "/"): RouteRow(PUBLIC, Operation("getRoot", ref("Root"))),
    ("GET", "/v1/version"): RouteRow(PUBLIC, Operation("getVersion", ref("Version"))),
    ("GET", "/openapi.json"): RouteRow(ANYONE),
    ("GET", "/v1/namespaces"): RouteRow(ANYONE, Operation("listNamespaces", ref("Namespaces"))),
    ("GET", "/v1/capabilities"): RouteRow(ANYONE, Operation("listCapabilities", ref("Capabilities"))),
    ("GET", "/v1/workers"): RouteRow(ANYONE, Operation("listWorkers", ref("WorkerList"))),
    ("GET", "/v1/workers/{name}"): RouteRow(ANYONE, Operation("getWorker", ref("StoredWorker"), tagged=True)),
    # --- who one is: what is public here is how one comes to be known
    ("GET", "/v1/auth/me"): RouteRow(ANYONE, Operation("getMe", ref("Me"))),
    ("GET", "/v1/auth/config"): RouteRow(PUBLIC, Operation("getLoginConfig", ref("LoginConfig"))),
    ("GET", "/v1/auth/local"): RouteRow(
        PUBLIC, Operation("introduceServer", shape({"boot": TEXT, "expires_at": COUNT, "proof": TEXT}), fails=(404,))
    ),
    ("POST", "/v1/auth/setup"): RouteRow(
        PUBLIC,
        Operation("setUp", ref("Me"), codes=("201",), body=form("server.routes.auth:SetUp"), fails=(403, 409, 415)),
        apart("public, and can be done once"),
    ),
    ("POST", "/v1/auth/login"): RouteRow(
        PUBLIC,
        Operation("logIn", ref("Me"), body=form("server.routes.auth:Login"), fails=(401, 403, 409, 415)),
        apart("public: each login is a session of its own, whose cookie is told once"),
    ),
    ("POST", "/v1/auth/logout"): RouteRow(
        PUBLIC, Operation("logOut", ref("LoggedOut"), fails=(403,)), apart("public, and done twice is done once")
    ),
    ("GET", "/v1/auth/oidc/login"): RouteRow(PUBLIC, Operation("beginOidcLogin", codes=("303",))),
    ("GET", "/v1/auth/oidc/callback"): RouteRow(
        RouteRule("public", query=("code", "error", "iss", "state"), others=True),
        Operation("endOidcLogin", codes=("303",), fails=(401, 403)),
    ),
    ("POST", "/v1/auth/change-password"): RouteRow(
        ANYONE,
        Operation(
            "changePassword", ref("PasswordChanged"), body=form("server.routes.auth:ChangePassword"), fails=(409,)
        ),
        apart("ends the session that it came in, and needs the password as it was before"),
    ),
    ("POST", "/v1/auth/admin/reset-password"): RouteRow(
        RouteRule("everywhere", "admin"),
        Operation("resetPassword", ref("PasswordChanged"), body=form("server.routes.auth:ResetPassword")),
        apart("done twice is done once; nothing that was made with a password is kept"),
    ),
    ("GET", "/v1/users"): RouteRow(RouteRule("everywhere", "admin"), Operation("listUsers", ref("UserList"))),
    ("POST", "/v1/users"): RouteRow(
        RouteRule("everywhere", "admin"),
        Operation("createUser", ref("User"), codes=("201",), body=form("server.routes.users:NewUser"), fails=(409,)),
        apart("a name is taken once; nothing that was made with a password is kept"),
    ),
    ("PUT", "/v1/users/{username}/roles"): RouteRow(
        RouteRule("everywhere", "admin"),
        Operation("setUserRoles", ref("User"), body=form("server.routes.users:UserRoles"), fails=(409,)),
    ),
    ("POST", "/v1/users/{username}/disable"): RouteRow(
        RouteRule("everywhere", "admin"), Operation("disableUser", ref("User"), fails=(409,)), AGAIN
    ),
    ("POST", "/v1/users/{username}/enable"): RouteRow(
        RouteRule("everywhere", "admin"), Operation("enableUser", ref("User"), fails=(409,)), AGAIN
    ),
    ("GET", "/v1/tokens"): RouteRow(RouteRule("listed", "admin"), Operation("listTokens", ref("TokenList"))),
    ("POST", "/v1/tokens"): RouteRow(
        RouteRule("inside", "admin"),
        Operation(
            "createToken", ref("NewTokenText"), codes=("201",), body=form("server.routes.tokens:NewToken"), fails=(409,)
        ),
        apart("the text of a token is told once and kept nowhere; its name is taken once"),
    ),
    ("DELETE", "/v1/tokens/{token_id}"): RouteRow(RouteRule("inside", "admin"), Operation("revokeToken", ref("Token"))),
    # --- tasks
    ("GET", "/v1/tasks"): RouteRow(LISTED, Operation("listTasks", ref("TaskList"))),
    ("POST", "/v1/tasks"): RouteRow(
        LOOK,
        Operation(
            "createTask",
            _TASK,
            codes=("200", "201"),
            body=Body(ref("TaskBody"), "manifest"),
            fails=(404, 409, 412),
            tagged=True,
        ),
        apart("the task itself has the key, for as long as there is the task"),
    ),
    ("GET", "/v1/tasks/{name}"): RouteRow(READ, Operation("getTask", _TASK, tagged=True)),
    ("PUT", "/v1/tasks/{name}"): RouteRow(
        OPERATE,
        Operation("replaceTask", _TASK, body=Body(ref("TaskBody"), "manifest"), fails=(409, 412, 428), tagged=True),
    ),
    ("GET", "/v1/tasks/{name}/status"): RouteRow(READ, Operation("getTaskStatus", _TASK, tagged=True)),
    ("PUT", "/v1/tasks/{name}/status"): RouteRow(
        OPERATE, Operation("replaceTaskStatus", _TASK, body=Body(ANYTHING), fails=(409, 412, 428), tagged=True)
    ),
    ("GET", "/v1/tasks/{name}/events"): RouteRow(READ, Operation("followTask", events=TASK_EVENTS)),
    ("GET", "/v1/tasks/{name}/messages"): RouteRow(READ, Operation("listTaskMessages", ref("TaskMessages"))),
    ("GET", "/v1/tasks/{name}/metrics"): RouteRow(READ, Operation("getTaskMetrics", ref("TaskMetrics"))),
    ("GET", "/v1/tasks/{name}/logs"): RouteRow(READ, Operation("getTaskLogs", ref("Logs"))),
    ("GET", "/v1/tasks/{name}/runs"): RouteRow(READ, Operation("listTaskRuns", ref("TaskRuns"))),
    ("GET", "/v1/tasks/{name}/trace"): RouteRow(READ, Operation("getTaskTrace", ref("TaskTrace"))),
    ("GET", "/v1/tasks/{name}/why"): RouteRow(READ, Operation("explainTask", ref("TaskExplanation"))),
    ("POST", "/v1/tasks/{name}/cancel"): RouteRow(
        OPERATE,
        Operation("cancelTask", _TASK, body=form("server.routes.tasks:Reason"), fails=(409,), tagged=True),
        AGAIN,
    ),
    ("POST", "/v1/tasks/{name}/retry"): RouteRow(
        OPERATE,
        Operation("retryTask", _TASK, body=form("server.routes.tasks:RetryOrder"), fails=(409,), tagged=True),
        KEPT,
    ),
    ("POST", "/v1/tasks/{name}/requeue"): RouteRow(
        OPERATE,
        Operation(
            "requeueTask",
            _TASK,
            body=form("server.routes.tasks:RetryOrder"),
            fails=(409,),
            tagged=True,
            deprecated=True,
        ),
        KEPT,
    ),
    ("POST", "/v1/tasks/{name}/archive"): RouteRow(
        OPERATE, Operation("archiveTask", _TASK, fails=(409,), tagged=True), AGAIN
    ),
    # --- runs
    ("GET", "/v1/runs"): RouteRow(LISTED, Operation("listRuns", ref("RunList"))),
    ("GET", "/v1/runs/{run_id}"): RouteRow(LOOK, Operation("getRun", ref("Run"), fails=_CLASH)),
    ("GET", "/v1/runs/{run_id}/journal"): RouteRow(LOOK, Operation("getRunJournal", ref("Journal"))),
    ("GET", "/v1/runs/{run_id}/events"): RouteRow(LOOK, Operation("followRun", events=RUN_EVENTS)),
    ("GET", "/v1/runs/{run_id}/trace"): RouteRow(LOOK, Operation("getRunTrace", ref("RunTrace"))),
    ("GET", "/v1/runs/{run_id}/results"): RouteRow(LOOK, Operation("listRunResults", ref("RunResults"))),
    ("GET", "/v1/runs/{run_id}/results/{call_id:path}"): RouteRow(LOOK, Operation("readRunResult", ref("ResultPage"))),
    ("GET", "/v1/runs/{run_id}/content/{digest}"): RouteRow(LOOK, Operation("getRunContent", ref("RunContent"))),
    ("POST", "/v1/runs/{run_id}/cancel"): RouteRow(
        STEER, Operation("cancelRun", ref("Run"), body=form("server.routes.tasks:Reason"), fails=(409,)), AGAIN
    ),
    ("POST", "/v1/runs/{run_id}/say"): RouteRow(
        STEER,
        Operation("sayToRun", ref("SaidToRun"), codes=("202",), body=form("server.routes.runs:Said"), fails=(409,)),
        AGAIN,
    ),
    ("POST", "/v1/runs/{run_id}/input"): RouteRow(
        STEER,
        Operation(
            "inputToRun",
            ref("SaidToRun"),
            codes=("202",),
            body=form("server.routes.runs:Said"),
            fails=(409,),
            deprecated=True,
        ),
        AGAIN,
    ),
    ("POST", "/v1/runs/{run_id}/answer"): RouteRow(
        STEER,
        Operation("answerRun", ref("Run"), codes=("202",), body=form("server.routes.runs:Answered"), fails=(409,)),
        AGAIN,
    ),
    # --- sessions; whose a session is, and who else may read it, is asked when it is known
    ("GET", "/v1/sessions"): RouteRow(READ, Operation("listSessions", _page("Session"))),
    ("POST", "/v1/sessions"): RouteRow(
        STEER,
        Operation(
            "createSession",
            ref("Session"),
            codes=("201",),
            body=form("runtime.answers:SessionOrder"),
            fails=(404, 409),
        ),
        KEPT,
    ),
    ("POST", "/v1/sessions/resolve"): RouteRow(
        STEER,
        Operation("resolveSession", ref("Session"), body=form("runtime.answers:SessionOrder"), fails=(404,)),
        AGAIN,
    ),
    ("POST", "/v1/sessions/rotate"): RouteRow(
        STEER,
        Operation(
            "rotateSession", ref("Session"), codes=("201",), body=form("runtime.answers:SessionOrder"), fails=(404,)
        ),
        KEPT,
    ),
    ("POST", "/v1/sessions/invalidate"): RouteRow(
        STEER,
        Operation("invalidateSessions", codes=("204",), body=form("runtime.answers:InvalidateOrder")),
        AGAIN,
    ),
    ("GET", "/v1/active-session"): RouteRow(
        READ, Operation("getActiveSession", shape({"session": maybe(ref("Session"))}))
    ),
    ("GET", "/v1/session-search"): RouteRow(
        READ, Operation("searchSessions", shape({"items": listof(ref("Found"))}), fails=(404,))
    ),
    ("GET", "/v1/sessions/{session_id}"): RouteRow(LOOK, Operation("getSession", ref("Session"))),
    ("GET", "/v1/sessions/{session_id}/history"): RouteRow(
        LOOK, Operation("getSessionHistory", shape({"items": listof(ref("TurnView"))}))
    ),
    ("GET", "/v1/sessions/{session_id}/inputs"): RouteRow(
        LOOK, Operation("listSessionInputs", shape({"items": listof(ref("Input"))}))
    ),
    ("POST", "/v1/sessions/{session_id}/change"): RouteRow(
        STEER,
        Operation("changeSession", ref("Session"), body=form("server.routes.sessions:SessionChange"), fails=(409,)),
        AGAIN,
    ),
    ("POST", "/v1/sessions/{session_id}/archive"): RouteRow(STEER, Operation("archiveSession", ref("Session")), AGAIN),
    ("POST", "/v1/sessions/{session_id}/delete"): RouteRow(
        STEER, Operation("deleteSession", codes=("204",), fails=(409,)), AGAIN
    ),
    ("POST", "/v1/sessions/{session_id}/say"): RouteRow(
        STEER,
        Operation(
            "sayToSession", ref("SessionSaid"), codes=("202",), body=form("runtime.answers:SayOrder"), fails=(409,)
        ),
        AGAIN,
    ),
    ("POST", "/v1/sessions/{session_id}/regenerate"): RouteRow(
        STEER,
        Operation(
            "regenerateAnswer",
            ref("SessionSaid"),
            codes=("202",),
            body=form("server.routes.sessions:RegenerateOrder"),
            fails=(409,),
        ),
        KEPT,
    ),
    ("POST", "/v1/sessions/{session_id}/select-branch"): RouteRow(
        STEER,
        Operation("selectSessionBranch", ref("Session"), body=form("server.routes.sessions:BranchOrder"), fails=(409,)),
        AGAIN,
    ),
    ("POST", "/v1/sessions/{session_id}/compact"): RouteRow(
        STEER, Operation("compactSession", ref("SessionSaid"), codes=("202",), fails=(409,)), KEPT
    ),
    ("POST", "/v1/sessions/{session_id}/resume"): RouteRow(
        STEER, Operation("resumeSession", ref("Session"), fails=_SOUGHT), AGAIN
    ),
    ("POST", "/v1/sessions/{session_id}/stop"): RouteRow(
        STEER,
        Operation(
            "stopSession", shape({"stopped": YES_NO}), body=form("server.routes.sessions:StopOrder"), fails=(409,)
        ),
        AGAIN,
    ),
    ("GET", "/v1/sessions/{session_id}/stream"): RouteRow(LOOK, Operation("followSession", events=SESSION_EVENTS)),
    # --- folders; whose a folder is, is asked by the caller's name
    ("GET", "/v1/folders"): RouteRow(READ, Operation("listFolders", _page("UserFolder"))),
    ("GET", "/v1/folders/{agent}"): RouteRow(READ, Operation("getFolder", ref("UserFolder"))),
    ("GET", "/v1/folders/{agent}/content/{digest}"): RouteRow(READ, Operation("getFolderContent", ref("RunContent"))),
    ("POST", "/v1/folders/{agent}/delete"): RouteRow(
        LOOK,
        Operation("deleteFolder", codes=("204",), body=form("runtime.answers:FolderOrder"), fails=(404,)),
        AGAIN,
    ),
    # --- what waits for consent, and what comes signed
    ("POST", "/v1/tool-approvals/{name}/approve"): RouteRow(
        CONSENT,
        Operation(
            "approveToolCall", _APPROVAL, body=form("server.routes.approvals:Comment"), fails=(409,), tagged=True
        ),
        AGAIN,
    ),
    ("POST", "/v1/tool-approvals/{name}/deny"): RouteRow(
        CONSENT,
        Operation("denyToolCall", _APPROVAL, body=form("server.routes.approvals:Comment"), fails=(409,), tagged=True),
        AGAIN,
    ),
    ("POST", "/v1/tool-approvals/{name}/edit"): RouteRow(
        CONSENT,
        Operation("editToolCall", _APPROVAL, body=form("server.routes.approvals:Edited"), fails=(409,), tagged=True),
        AGAIN,
    ),
    ("POST", "/v1/webhook-deliveries/{endpoint_id}"): RouteRow(
        PROBED,
        Operation(
            "deliverToWebhook",
            ref("DeliveryAnswer"),
            codes=("200", "202"),
            body=Body(ANYTHING, required=False),
            others=dict.fromkeys(_REFUSED, ref("DeliveryAnswer")),
        ),
        apart("public: a delivery is known by the id that its sender gave it"),
    ),
    ("POST", "/v1/channel-messages/{namespace}/{name}"): RouteRow(
        PROBED,
        Operation(
            "sayOnChannel",
            ref("ChannelAnswer"),
            codes=("202",),
            body=Body(ANYTHING, required=False),
            others=dict.fromkeys((*_REFUSED, "503"), ref("ChannelAnswer")),
        ),
        apart("public: a message is known by the id that its sender gave it, and signed"),
    ),
    ("POST", "/v1/tool-callbacks/{request_id:path}"): RouteRow(
        PUBLIC,
        Operation(
            "pushToolResult", ref("ResultTaken"), codes=("202",), body=Body(ANYTHING, required=False), fails=(410,)
        ),
        apart("public: a result is taken once by the id of its call"),
    ),
    # --- as clients of OpenAI call it
    ("GET", "/v1/models"): RouteRow(
        RouteRule("listed", query=_NAMESPACE, others=True), Operation("listModels", ref("ModelList"))
    ),
    ("GET", "/v1/models/{model:path}"): RouteRow(
        RouteRule("inside", query=_NAMESPACE, others=True), Operation("getModel", ref("Model"))
    ),
    ("POST", "/v1/chat/completions"): RouteRow(
        RouteRule("inside", "operator", query=_NAMESPACE, others=True),
        Operation(
            "createChatCompletion",
            ref("ChatCompletion"),
            body=form("server.openai.requests:ChatRequest"),
            events={"": ref("ChatCompletionChunk")},
            fails=(409,),
        ),
        apart("the run itself has the key; its answer may be a stream"),
    ),
    ("POST", "/v1/responses"): RouteRow(
        RouteRule("inside", "operator", query=_NAMESPACE, others=True),
        Operation(
            "createResponse",
            ref("Response"),
            body=form("server.openai.requests:ResponsesRequest"),
            events={"response.*": ref("ResponseEvent")},
            fails=(409,),
        ),
        apart("the run itself has the key; its answer may be a stream"),
    ),
    ("POST", "/v1/responses/input_tokens"): RouteRow(
        RouteRule("inside", "operator", query=_NAMESPACE, others=True),
        Operation("countInputTokens", ref("InputTokens"), body=form("server.openai.requests:ResponsesRequest")),
        apart("changes nothing"),
    ),
    ("GET", "/v1/responses/{response_id}"): RouteRow(
        RouteRule("inside", others=True),
        Operation("getResponse", ref("Response"), events={"response.*": ref("ResponseEvent")}, fails=(409,)),
    ),
    ("GET", "/v1/responses/{response_id}/input_items"): RouteRow(
        RouteRule("inside", others=True), Operation("listInputItems", ref("InputItemList"))
    ),
    ("DELETE", "/v1/responses/{response_id}"): RouteRow(
        RouteRule("inside", "operator", others=True), Operation("deleteResponse", ref("DeletedResponse"), fails=(409,))
    ),
    ("POST", "/v1/responses/{response_id}/cancel"): RouteRow(
        RouteRule("inside", "operator", others=True), Operation("cancelResponse", ref("Response"), fails=(409,)), AGAIN
    ),
    # --- work, as Foliot's own client asks for it
    ("GET", "/v1/resources"): RouteRow(LISTED, Operation("listResources", ref("ResourceList"), fails=(422,))),
    ("POST", "/v1/tasks/declared"): RouteRow(
        RouteRule("inside", "operator"),
        Operation("acceptDeclaredTasks", listof(ref("TakenWire")), body=_BUNDLE, fails=(404, 409)),
        AGAIN,
    ),
    ("POST", "/v1/tasks/submit"): RouteRow(
        STEER,
        Operation(
            "submitTask", _TASK, codes=("200", "201"), body=form("work.tasks.base:Command"), fails=(409,), tagged=True
        ),
        apart("the task itself has the key, for as long as there is the task"),
    ),
    ("POST", "/v1/tasks/{name}/delete"): RouteRow(
        OPERATE, Operation("deleteEndedTask", codes=("204",), fails=(409,)), AGAIN
    ),
    ("GET", "/v1/tasks/{name}/story"): RouteRow(READ, Operation("getTaskStory", ref("StoryWire"))),
    ("GET", "/v1/tasks/{name}/records"): RouteRow(READ, Operation("listTaskRecords", listof(ref("FactWire")))),
    ("GET", "/v1/tasks/{name}/changes"): RouteRow(READ, Operation("listTaskChanges", ref("BatchWire"), fails=(422,))),
    ("GET", "/v1/tasks/{name}/watch"): RouteRow(READ, Operation("watchTask", events=WORK_EVENTS, fails=(422,))),
    ("POST", "/v1/runs"): RouteRow(
        STEER, Operation("startRun", _RUN, body=form("runtime.answers:RunOrder"), fails=(404, 409)), AGAIN
    ),
    ("GET", "/v1/interrupted-runs"): RouteRow(LISTED, Operation("listInterruptedRuns", ref("RunList"), fails=(422,))),
    ("GET", "/v1/unknown-calls"): RouteRow(LISTED, Operation("listUnknownCalls", ref("DoubtPage"), fails=(422,))),
    ("GET", "/v1/runs/{run_id}/state"): RouteRow(LOOK, Operation("getRunState", ref("RunState"), fails=_SOUGHT)),
    ("GET", "/v1/runs/{run_id}/fork"): RouteRow(LOOK, Operation("getForkPoint", ref("Fork"), fails=_SOUGHT)),
    ("GET", "/v1/runs/{run_id}/replay"): RouteRow(
        LOOK,
        Operation(
            "replayRun",
            ref("Replayed"),
            fails=_SOUGHT,
        ),
    ),
    ("POST", "/v1/runs/{run_id}/fork"): RouteRow(
        STEER, Operation("forkRun", _RUN, body=form("runtime.answers:ForkOrder"), fails=_CLASH), AGAIN
    ),
    ("POST", "/v1/runs/{run_id}/resume"): RouteRow(STEER, Operation("resumeRun", _RUN, fails=_SOUGHT), AGAIN),
    ("POST", "/v1/runs/{run_id}/settle"): RouteRow(
        STEER, Operation("settleRunCall", _RUN, body=form("server.routes.runs:Settled"), fails=_CLASH), AGAIN
    ),
    ("GET", "/v1/runs/{run_id}/why"): RouteRow(LOOK, Operation("explainRun", ref("Explanation"), fails=(409, 422))),
    ("POST", "/v1/tool-approvals/grants"): RouteRow(
        CONSENT,
        Operation(
            "grantToolCalls",
            _APPROVAL,
            codes=("201",),
            body=form("server.routes.approvals:Grant"),
            fails=(409,),
            tagged=True,
        ),
        KEPT,
    ),
    ("POST", "/v1/tool-approvals/{name}/revoke"): RouteRow(
        CONSENT,
        Operation(
            "revokeToolGrant", _APPROVAL, body=form("server.routes.approvals:Revoked"), fails=(409,), tagged=True
        ),
        AGAIN,
    ),
    ("GET", "/v1/questions"): RouteRow(
        LISTED,
        Operation(
            "listQuestions",
            shape({"items": listof(ref("OpenQuestion"))}, optional={"continue": TEXT}),
            fails=(404, 422),
        ),
    ),
    # --- records: of the namespaces that the caller can see; the log as a whole concerns the installation
    ("GET", "/v1/audit"): RouteRow(LISTED, Operation("listAuditRecords", ref("AuditRecords"))),
    ("GET", "/v1/audit/totals"): RouteRow(
        LISTED, Operation("getAuditTotals", shape({"totals": listof(ANYTHING)}), fails=(422,))
    ),
    ("GET", "/v1/audit/export"): RouteRow(
        RouteRule("everywhere", "operator"), Operation("exportAuditRecords", ref("AuditRecords"))
    ),
    ("POST", "/v1/audit/verify"): RouteRow(
        RouteRule("everywhere", "operator"),
        Operation("verifyAudit", ref("AuditVerified"), body=form("server.routes.audit:Anchor")),
        apart("changes nothing"),
    ),
    ("GET", "/v1/audit/{number}"): RouteRow(LOOK, Operation("getAuditRecord", ref("AuditRecord"))),
    # --- budgets, workers and their limits, tools, schedules and webhooks, as Foliot's own client asks for them
    ("GET", "/v1/budget-usage"): RouteRow(
        READ,
        Operation("getBudgetUsage", ref("Budgets")),
    ),
    ("GET", "/v1/policies/defaults"): RouteRow(ANYONE, Operation("getRuleDefaults", ref("RuleDefaults"))),
    ("POST", "/v1/policies/explain"): RouteRow(
        READ,
        Operation(
            "explainToolCall",
            ref("PolicyAnswer"),
            body=form("tools.governance.judge:PolicyQuestion"),
        ),
        apart("changes nothing"),
    ),
    ("POST", "/v1/policies/simulate"): RouteRow(
        READ,
        Operation(
            "simulateToolCalls",
            ref("Fates"),
            body=form("runtime.answers:Simulation"),
        ),
        apart("changes nothing"),
    ),
    ("GET", "/v1/limits"): RouteRow(RouteRule("everywhere"), Operation("listLimits", ref("Limits"))),
    ("POST", "/v1/limits"): RouteRow(
        RouteRule("everywhere", "admin"),
        Operation("setLimit", ref("Limits"), body=form("store.queue.limits:Limit")),
        AGAIN,
    ),
    ("POST", "/v1/limits/clear"): RouteRow(
        RouteRule("everywhere", "admin"),
        Operation("clearLimit", ref("Limits"), body=form("server.routes.operations:Unlimited")),
        AGAIN,
    ),
    ("GET", "/v1/run-classes"): RouteRow(RouteRule("everywhere"), Operation("listFailingClasses", ref("Classes"))),
    ("POST", "/v1/run-classes/mend"): RouteRow(
        RouteRule("everywhere", "operator"),
        Operation("mendClass", ref("Classes"), body=form("server.routes.operations:Mended")),
        AGAIN,
    ),
    ("GET", "/v1/all-tools"): RouteRow(
        READ,
        Operation("listAllTools", ref("Toolset"), fails=(422,)),
    ),
    ("GET", "/v1/all-tools/{name}"): RouteRow(READ, Operation("describeTool", ref("ToolFacts"), fails=(422,))),
    ("POST", "/v1/tools/{name}/call"): RouteRow(
        OPERATE,
        Operation(
            "callTool",
            ref("Called"),
            body=form("server.routes.tools:ToolOrder"),
            fails=(409,),
        ),
        KEPT,
    ),
    ("POST", "/v1/tools/{name}/test"): RouteRow(
        READ,
        Operation("testTool", ref("Judgement"), body=form("server.routes.tools:ToolOrder"), fails=(409,)),
        apart("changes nothing"),
    ),
    ("GET", "/v1/mcp-servers/{name}/tools"): RouteRow(
        OPERATE, Operation("listOfferedTools", shape({"tools": listof(ANYTHING)}), fails=(409,))
    ),
    ("POST", "/v1/mcp-servers/{name}/accept"): RouteRow(
        RouteRule("named", "admin"),
        Operation(
            "acceptOfferedTool",
            shape({"tool": TEXT, "digest": TEXT}),
            body=form("server.routes.tools:Acceptance"),
            fails=(409,),
        ),
        AGAIN,
    ),
    ("GET", "/v1/task-schedules/{name}/slots"): RouteRow(
        READ, Operation("listSlots", shape({"slots": listof(ref("Slot"))}))
    ),
    ("POST", "/v1/task-schedules/{name}/run"): RouteRow(
        OPERATE,
        Operation(
            "runSchedule",
            ref("Fired"),
            body=form("server.routes.triggers:Now"),
            fails=_CLASH,
        ),
        KEPT,
    ),
    ("POST", "/v1/task-webhooks/{name}/rotate"): RouteRow(
        RouteRule("named", "author"),
        Operation("rotateWebhook", _WEBHOOK, body=form("server.routes.triggers:Rotation"), fails=_CLASH),
        KEPT,
    ),
    ("GET", "/v1/task-webhooks/{name}/deliveries"): RouteRow(
        READ, Operation("listDeliveries", shape({"deliveries": listof(ref("WebhookDelivery"))}))
    ),
    ("GET", "/v1/task-webhooks/{name}/deliveries/{id}"): RouteRow(
        OPERATE, Operation("getDelivery", ref("WebhookDelivery"))
    ),
    ("POST", "/v1/task-webhooks/{name}/deliveries/{id}/replay"): RouteRow(
        OPERATE,
        Operation("replayDelivery", shape({"task": TEXT}), body=form("server.routes.triggers:Again"), fails=_CLASH),
        KEPT,
    ),
    ("GET", "/v1/channels/{name}/deliveries"): RouteRow(
        READ, Operation("listChannelDeliveries", shape({"deliveries": listof(ref("ChannelDelivery"))}))
    ),
    ("POST", "/v1/channels/{name}/deliveries/{key}/retry"): RouteRow(
        OPERATE, Operation("retryChannelDelivery", shape({"key": COUNT}), fails=_CLASH), KEPT
    ),
    ("GET", "/v1/channel-links"): RouteRow(
        READ, Operation("listChannelLinks", shape({"links": listof(ref("ChannelLink"))}))
    ),
    ("POST", "/v1/channel-links"): RouteRow(
        OPERATE,
        Operation("linkChannel", ref("ChannelLink"), body=form("server.routes.triggers:LinkCode"), fails=_CLASH),
        apart("a code can be entered once"),
    ),
    ("POST", "/v1/channel-links/{id}/delete"): RouteRow(
        READ, Operation("unlinkChannel", codes=("204",), fails=(404,)), AGAIN
    ),
    ("POST", "/v1/task-hooks/{name}/events"): RouteRow(
        OPERATE,
        Operation(
            "reportSourceChange",
            shape({"event": TEXT, "made": TEXT}),
            body=form("server.routes.triggers:SourceChange"),
            fails=_CLASH,
        ),
        KEPT,
    ),
    ("POST", "/v1/task-webhooks/{name}/send-test"): RouteRow(
        OPERATE,
        Operation(
            "sendTestDelivery",
            ref("Sent"),
            body=form("server.routes.triggers:Trial"),
            fails=_CLASH,
        ),
        KEPT,
    ),
    # --- as MCP clients call it; what a tool needs is asked when it is called
    ("GET", "/mcp"): RouteRow(RouteRule("named", query=_NAMESPACE)),
    ("POST", "/mcp"): RouteRow(
        RouteRule("named", query=_NAMESPACE),
        None,
        apart("a protocol of its own, with the key among the arguments of a tool"),
    ),
    ("DELETE", "/mcp"): RouteRow(RouteRule("named", query=_NAMESPACE)),
    # --- what agents said, and what they keep
    ("GET", "/v1/agents/defaults"): RouteRow(ANYONE, Operation("getAgentDefaults", ref("AgentDefaults"))),
    ("GET", "/v1/agents/{name}/logs"): RouteRow(READ, Operation("getAgentLogs", ref("Logs"))),
    ("GET", "/v1/memories/{name}/entries"): RouteRow(READ, Operation("listMemoryEntries", ref("MemoryEntries"))),
    # --- resources of every kind
    ("POST", "/v1/apply"): RouteRow(
        LOOK, Operation("applyManifests", ref("Applied"), body=_BUNDLE, fails=(404, 409)), AGAIN
    ),
    ("GET", "/v1/events/watch"): RouteRow(LISTED, Operation("watchEvents", events=HAPPENED, fails=(410,))),
    ("GET", "/v1/resources/watch"): RouteRow(
        LISTED, Operation("watchResources", events=changes("StoredResource"), fails=(410,))
    ),
    ("GET", "/v1/tasks/watch"): RouteRow(LISTED, Operation("watchTasks", events=TASK_CHANGES, fails=(410,))),
    ("GET", "/v1/{kind}/watch"): RouteRow(
        LISTED, lambda kind: Operation(f"watch{_named(kind)}", events=changes(f"Stored{kind.name}"), fails=(410,))
    ),
    ("GET", "/v1/{kind}"): RouteRow(LISTED, lambda kind: Operation(f"list{_named(kind)}", ref(f"{kind.name}List"))),
    ("POST", "/v1/{kind}"): RouteRow(DECLARE, _made, AGAIN),
    ("GET", "/v1/{kind}/{name}"): RouteRow(
        READ, lambda kind: Operation(f"get{kind.name}", ref(f"Stored{kind.name}"), codes=("200", "304"), tagged=True)
    ),
    ("PUT", "/v1/{kind}/{name}"): RouteRow(
        WRITE,
        lambda kind: Operation(
            f"replace{kind.name}",
            ref(f"Stored{kind.name}"),
            body=Body(ref(f"{kind.name}Body"), "manifest"),
            fails=(409, 412, 428),
            tagged=True,
        ),
    ),
    ("PATCH", "/v1/{kind}/{name}"): RouteRow(
        WRITE,
        lambda kind: Operation(
            f"patch{kind.name}", ref(f"Stored{kind.name}"), body=Body(ANYTHING), fails=(409, 412), tagged=True
        ),
    ),
    ("DELETE", "/v1/{kind}/{name}"): RouteRow(WRITE, _deleted),
    ("GET", "/v1/{kind}/{name}/status"): RouteRow(
        READ, lambda kind: Operation(f"get{kind.name}Status", ref(f"Stored{kind.name}"), tagged=True)
    ),
    ("PUT", "/v1/{kind}/{name}/status"): RouteRow(
        RouteRule("named", "operator"),
        lambda kind: Operation(
            f"replace{kind.name}Status",
            ref(f"Stored{kind.name}"),
            body=Body(ANYTHING),
            fails=(409, 412, 428),
            tagged=True,
        ),
    ),
}
