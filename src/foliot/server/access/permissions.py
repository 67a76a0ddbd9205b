"""Who may call what: one row for each method and path. What is not here does not start.

`where` says in which namespace the role must be held:

    public      nobody is asked who they are
    anywhere    in any namespace: the answer shows only what the caller can see
    everywhere  in all namespaces: it concerns the whole installation
    named       in the namespace of `?namespace=`, `default` without one; checked before the route runs
    listed      as `anywhere`; the route narrows its filter with `Caller.narrowed`
    inside      the route knows the namespace only when it has looked (a run, a body), and calls `Caller.require`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from foliot.resources.kinds import KINDS
from foliot.resources.powers import KIND_POWERS
from foliot.server.access.identity import Role, role_named

Where: TypeAlias = Literal["public", "anywhere", "everywhere", "named", "listed", "inside"]


@dataclass(frozen=True, slots=True)
class Rule:
    """The role that a route needs, and where. `kinds` are the kinds of resources that need another role.

    `query` are parameters that the handler reads from the request itself, beside those of its signature. With `others`
    the route is called by programs that are not written for it: parameters that it does not have are dropped.
    """

    where: Where
    role: Role = "reader"
    kinds: Mapping[str, Role] = field(default_factory=dict[str, Role])
    query: tuple[str, ...] = ()
    others: bool = False


_NAMESPACE: Final = ("namespace",)
PUBLIC: Final = Rule("public")
PROBED: Final = Rule("public", others=True)
ANYONE: Final = Rule("anywhere")
LISTED: Final = Rule("listed")
READ: Final = Rule("named")
LOOK: Final = Rule("inside")
OPERATE: Final = Rule("named", "operator")
STEER: Final = Rule("inside", "operator")
CONSENT: Final = Rule("named", "approver")

# The first of the roles that declare resources of a kind, where it is not author. All of them, and those of single
# fields, are asked for when the resource is known: see resources/powers.py and server/acts.py.
_AUTHORS: Final[Mapping[str, Role]] = {
    KINDS[kind].plural: role_named(powers.roles[0])
    for kind, powers in KIND_POWERS.items()
    if powers.roles[0] != "author"
}
DECLARE: Final = Rule("inside", "author", _AUTHORS)
WRITE: Final = Rule("named", "author", _AUTHORS)


RULES: Final[Mapping[tuple[str, str], Rule]] = {
    # --- health and the server itself
    ("GET", "/healthz"): PROBED,
    ("GET", "/livez"): PROBED,
    ("GET", "/readyz"): PROBED,
    ("GET", "/metrics"): Rule("everywhere"),
    ("GET", "/v1/health"): ANYONE,
    ("GET", "/v1/version"): PUBLIC,
    ("GET", "/openapi.json"): ANYONE,
    ("GET", "/v1/namespaces"): ANYONE,
    ("GET", "/v1/capabilities"): ANYONE,
    ("GET", "/v1/workers"): ANYONE,
    ("GET", "/v1/workers/{name}"): ANYONE,
    # --- who one is: what is public here is how one comes to be known
    ("GET", "/v1/auth/me"): ANYONE,
    ("GET", "/v1/auth/config"): PUBLIC,
    ("GET", "/v1/auth/local"): PUBLIC,
    ("POST", "/v1/auth/setup"): PUBLIC,
    ("POST", "/v1/auth/login"): PUBLIC,
    ("POST", "/v1/auth/logout"): PUBLIC,
    ("GET", "/v1/auth/oidc/login"): PUBLIC,
    ("GET", "/v1/auth/oidc/callback"): Rule("public", query=("code", "error", "iss", "state"), others=True),
    ("POST", "/v1/auth/change-password"): ANYONE,
    ("POST", "/v1/auth/admin/reset-password"): Rule("everywhere", "admin"),
    ("GET", "/v1/users"): Rule("everywhere", "admin"),
    ("POST", "/v1/users"): Rule("everywhere", "admin"),
    ("PUT", "/v1/users/{username}/roles"): Rule("everywhere", "admin"),
    ("POST", "/v1/users/{username}/disable"): Rule("everywhere", "admin"),
    ("POST", "/v1/users/{username}/enable"): Rule("everywhere", "admin"),
    ("GET", "/v1/tokens"): Rule("listed", "admin"),
    ("POST", "/v1/tokens"): Rule("inside", "admin"),
    ("DELETE", "/v1/tokens/{token_id}"): Rule("inside", "admin"),
    # --- tasks
    ("GET", "/v1/tasks"): LISTED,
    ("POST", "/v1/tasks"): LOOK,
    ("GET", "/v1/tasks/{name}"): READ,
    ("PUT", "/v1/tasks/{name}"): OPERATE,
    ("GET", "/v1/tasks/{name}/status"): READ,
    ("PUT", "/v1/tasks/{name}/status"): OPERATE,
    ("GET", "/v1/tasks/{name}/events"): READ,
    ("GET", "/v1/tasks/{name}/messages"): READ,
    ("GET", "/v1/tasks/{name}/metrics"): READ,
    ("GET", "/v1/tasks/{name}/logs"): READ,
    ("GET", "/v1/tasks/{name}/runs"): READ,
    ("GET", "/v1/tasks/{name}/trace"): READ,
    ("GET", "/v1/tasks/{name}/why"): READ,
    ("POST", "/v1/tasks/{name}/cancel"): OPERATE,
    ("POST", "/v1/tasks/{name}/requeue"): OPERATE,
    ("POST", "/v1/tasks/{name}/archive"): OPERATE,
    # --- runs
    ("GET", "/v1/runs"): LISTED,
    ("GET", "/v1/runs/{run_id}"): LOOK,
    ("GET", "/v1/runs/{run_id}/journal"): LOOK,
    ("GET", "/v1/runs/{run_id}/events"): LOOK,
    ("GET", "/v1/runs/{run_id}/trace"): LOOK,
    ("POST", "/v1/runs/{run_id}/cancel"): STEER,
    ("POST", "/v1/runs/{run_id}/input"): STEER,
    ("POST", "/v1/runs/{run_id}/answer"): STEER,
    # --- what waits for consent, and what comes signed
    ("POST", "/v1/tool-approvals/{name}/approve"): CONSENT,
    ("POST", "/v1/tool-approvals/{name}/deny"): CONSENT,
    ("POST", "/v1/tool-approvals/{name}/edit"): CONSENT,
    ("POST", "/v1/webhook-deliveries/{endpoint_id}"): PROBED,
    ("POST", "/v1/tool-callbacks/{request_id:path}"): PUBLIC,
    # --- as clients of OpenAI call it
    ("GET", "/v1/models"): Rule("listed", query=_NAMESPACE, others=True),
    ("GET", "/v1/models/{model:path}"): Rule("inside", query=_NAMESPACE, others=True),
    ("POST", "/v1/chat/completions"): Rule("inside", "operator", query=_NAMESPACE, others=True),
    ("POST", "/v1/responses"): Rule("inside", "operator", query=_NAMESPACE, others=True),
    ("GET", "/v1/responses/{response_id}"): Rule("inside", others=True),
    ("GET", "/v1/responses/{response_id}/input_items"): Rule("inside", others=True),
    ("DELETE", "/v1/responses/{response_id}"): Rule("inside", "operator", others=True),
    ("POST", "/v1/responses/{response_id}/cancel"): Rule("inside", "operator", others=True),
    # --- work, as Foliot's own client asks for it
    ("GET", "/v1/resources"): LISTED,
    ("POST", "/v1/work/declared"): Rule("inside", "operator"),
    ("GET", "/v1/work/tasks"): LISTED,
    ("POST", "/v1/work/tasks"): OPERATE,
    ("GET", "/v1/work/tasks/{name}"): READ,
    ("DELETE", "/v1/work/tasks/{name}"): OPERATE,
    ("POST", "/v1/work/tasks/{name}/cancel"): OPERATE,
    ("POST", "/v1/work/tasks/{name}/archive"): OPERATE,
    ("POST", "/v1/work/tasks/{name}/requeue"): OPERATE,
    ("GET", "/v1/work/tasks/{name}/story"): READ,
    ("GET", "/v1/work/tasks/{name}/why"): READ,
    ("GET", "/v1/work/tasks/{name}/records"): READ,
    ("GET", "/v1/work/tasks/{name}/happenings"): READ,
    ("GET", "/v1/work/tasks/{name}/watch"): READ,
    ("GET", "/v1/work/runs"): LISTED,
    ("POST", "/v1/work/runs"): OPERATE,
    ("GET", "/v1/work/interrupted"): LISTED,
    ("GET", "/v1/work/runs/{name}/standing"): LOOK,
    ("GET", "/v1/work/runs/{name}/replay"): LOOK,
    ("POST", "/v1/work/runs/{name}/fork"): STEER,
    ("POST", "/v1/work/runs/{name}/resume"): STEER,
    ("POST", "/v1/work/runs/{name}/settle"): STEER,
    ("GET", "/v1/work/runs/{name}"): LOOK,
    ("GET", "/v1/work/runs/{name}/facts"): LOOK,
    ("GET", "/v1/work/runs/{name}/why"): LOOK,
    ("POST", "/v1/work/runs/{name}/cancel"): Rule("inside", "operator"),
    ("POST", "/v1/work/runs/{name}/answer"): Rule("inside", "operator"),
    ("GET", "/v1/work/approvals"): LISTED,
    ("POST", "/v1/work/approvals"): CONSENT,
    ("GET", "/v1/work/approvals/{name}"): READ,
    ("POST", "/v1/work/approvals/{name}/decide"): CONSENT,
    ("POST", "/v1/work/approvals/{name}/revoke"): CONSENT,
    ("GET", "/v1/work/questions"): LISTED,
    # --- records: of the namespaces that the caller can see; the log as a whole concerns the installation
    ("GET", "/v1/audit"): LISTED,
    ("GET", "/v1/audit/totals"): LISTED,
    ("GET", "/v1/audit/export"): Rule("everywhere", "operator"),
    ("POST", "/v1/audit/verify"): Rule("everywhere", "operator"),
    ("GET", "/v1/audit/{number}"): LOOK,
    # --- budgets, workers and their limits, tools, schedules and webhooks, as Foliot's own client asks for them
    ("GET", "/v1/work/budgets"): READ,
    ("GET", "/v1/work/rules"): ANYONE,
    ("POST", "/v1/work/rules/explain"): READ,
    ("POST", "/v1/work/rules/simulate"): READ,
    ("GET", "/v1/work/workers"): ANYONE,
    ("GET", "/v1/work/limits"): Rule("everywhere"),
    ("POST", "/v1/work/limits"): Rule("everywhere", "admin"),
    ("POST", "/v1/work/limits/clear"): Rule("everywhere", "admin"),
    ("GET", "/v1/work/classes"): Rule("everywhere"),
    ("POST", "/v1/work/classes/mend"): Rule("everywhere", "operator"),
    ("GET", "/v1/work/tools"): READ,
    ("GET", "/v1/work/tools/{name}"): READ,
    ("POST", "/v1/work/tools/{name}/call"): OPERATE,
    ("POST", "/v1/work/tools/{name}/test"): READ,
    ("GET", "/v1/work/schedules"): LISTED,
    ("GET", "/v1/work/schedules/{name}"): READ,
    ("GET", "/v1/work/schedules/{name}/slots"): READ,
    ("POST", "/v1/work/schedules/{name}/run"): OPERATE,
    ("GET", "/v1/work/webhooks"): LISTED,
    ("GET", "/v1/work/webhooks/{name}"): READ,
    ("POST", "/v1/work/webhooks/{name}/rotate"): Rule("named", "author"),
    ("GET", "/v1/work/webhooks/{name}/deliveries"): READ,
    ("GET", "/v1/work/webhooks/{name}/deliveries/{id}"): OPERATE,
    ("POST", "/v1/work/webhooks/{name}/deliveries/{id}/replay"): OPERATE,
    ("POST", "/v1/work/webhooks/{name}/send-test"): OPERATE,
    # --- as MCP clients call it; what a tool needs is asked when it is called
    ("GET", "/mcp"): Rule("named", query=_NAMESPACE),
    ("POST", "/mcp"): Rule("named", query=_NAMESPACE),
    ("DELETE", "/mcp"): Rule("named", query=_NAMESPACE),
    # --- what agents said, and what they keep
    ("GET", "/v1/agents/{name}/logs"): READ,
    ("GET", "/v1/memories/{name}/entries"): READ,
    # --- resources of every kind
    ("POST", "/v1/apply"): LOOK,
    ("GET", "/v1/events/watch"): LISTED,
    ("GET", "/v1/resources/watch"): LISTED,
    ("GET", "/v1/tasks/watch"): LISTED,
    ("GET", "/v1/{kind}/watch"): LISTED,
    ("GET", "/v1/{kind}"): LISTED,
    ("POST", "/v1/{kind}"): DECLARE,
    ("GET", "/v1/{kind}/{name}"): READ,
    ("PUT", "/v1/{kind}/{name}"): WRITE,
    ("PATCH", "/v1/{kind}/{name}"): WRITE,
    ("DELETE", "/v1/{kind}/{name}"): WRITE,
    ("GET", "/v1/{kind}/{name}/status"): READ,
    ("PUT", "/v1/{kind}/{name}/status"): Rule("named", "operator"),
}
