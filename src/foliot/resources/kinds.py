"""The kinds by name, without loading their models.

`foliot get` must start fast, so this table holds all that listing, completing and naming need; the pydantic model of a
kind is imported by `model()` when something is to be validated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from foliot.common.suggestions import did_you_mean, nearest
from foliot.errors import UsageError
from foliot.resources.skill_files import is_misnamed
from foliot.resources.skill_trust import QUARANTINED, in_quarantine

if TYPE_CHECKING:
    from foliot.resources.base import Resource

Columns: TypeAlias = tuple[tuple[str, str], ...]

_NAME: Final = ("NAME", "metadata.name")
_STATUS: Final = ("STATUS", "status.phase")
_LAST_ERROR: Final = ("LAST_ERROR", "status.lastError")
_WIDE: Final[Columns] = (
    ("GENERATION", "metadata.generation"),
    ("VERSION", "metadata.resourceVersion"),
    ("CREATED", "metadata.createdAt"),
    ("LABELS", "metadata.labels"),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """`columns` are (heading, path into the document) pairs of the table that `get` prints; `wide` adds to them.

    A path may end at a list (shown comma-joined) or at a mapping (shown as its keys, or as key=value for labels).
    `phase` is that of a resource whose status says none: nothing has to be done for most kinds, so they are ready.
    """

    name: str
    plural: str
    module: str
    words: tuple[str, ...] = ()
    columns: Columns = ()
    wide: Columns = ()
    phase: str = "Ready"

    def model(self) -> type[Resource[Any, Any]]:
        """The pydantic model of this kind."""
        return getattr(import_module(f"foliot.resources.{self.module}"), self.name)


def _kind(
    name: str,
    plural: str,
    module: str,
    *columns: tuple[str, str],
    words: str = "",
    wide: Columns = (),
    phase: str = "Ready",
) -> Kind:
    singular = module.replace("_", "-")
    return Kind(
        name,
        plural,
        f"definitions.{module}",
        (singular, *words.split()),
        (_NAME, *columns),
        (*wide, *_WIDE),
        phase,
    )


_ALL: Final = (
    _kind(
        "Agent",
        "agents",
        "agent",
        ("MODEL_REF", "spec.model_ref"),
        _STATUS,
        ("TOOLS", "spec.tools"),
        wide=(("ROLES", "spec.roles"), ("MEMORY", "spec.memory.ref"), ("MAX_STEPS", "spec.limits.max_steps")),
    ),
    _kind(
        "AgentSystem",
        "agent-systems",
        "agent_system",
        _STATUS,
        ("AGENTS", "spec.agents"),
        words="system systems",
        wide=(("MAX_TURNS", "spec.max_turns"),),
    ),
    _kind(
        "ModelEndpoint",
        "model-endpoints",
        "model_endpoint",
        ("PROVIDER", "spec.provider"),
        ("BASE_URL", "spec.base_url"),
        ("DEFAULT_MODEL", "spec.default_model"),
        _STATUS,
        words="model models endpoint endpoints",
        wide=(("FALLBACKS", "spec.fallbacks"),),
    ),
    _kind(
        "Tool",
        "tools",
        "tool",
        ("TYPE", "spec.type"),
        ("ENDPOINT", "spec.endpoint"),
        _STATUS,
        wide=(
            ("TOOL_VERSION", "spec.version"),
            ("EFFECT", "spec.effect"),
            ("RISK", "spec.risk_level"),
            ("ISOLATION", "spec.runtime.isolation_mode"),
            ("CATEGORY", "spec.category"),
        ),
    ),
    _kind("Secret", "secrets", "secret", ("KEYS", "spec.data"), _STATUS),
    _kind(
        "Memory",
        "memories",
        "memory",
        ("TYPE", "spec.type"),
        ("PROVIDER", "spec.provider"),
        _STATUS,
        wide=(("ENDPOINT", "spec.endpoint"), _LAST_ERROR),
    ),
    _kind(
        "Skill",
        "skills",
        "skill",
        ("STATE", "spec.status"),
        _STATUS,
        ("DESCRIPTION", "spec.description"),
        wide=(("USER", "spec.user"), ("ORIGIN", "spec.origin"), ("FILES", "spec.files")),
    ),
    _kind(
        "McpServer",
        "mcp-servers",
        "mcp_server",
        ("TRANSPORT", "spec.transport"),
        _STATUS,
        ("TOOLS", "status.generatedTools"),
        ("LAST_SYNCED", "status.lastSyncedAt"),
        words="mcp",
        wide=(("COMMAND", "spec.command"), ("ENDPOINT", "spec.endpoint"), _LAST_ERROR),
        phase="Pending",
    ),
    _kind(
        "AgentPolicy",
        "agent-policies",
        "agent_policy",
        ("MODE", "spec.apply_mode"),
        ("SYSTEM_TARGETS", "spec.target_systems"),
        ("TASK_TARGETS", "spec.target_tasks"),
        ("TOKENS", "spec.max_tokens_per_run"),
        ("ALLOWED_MODELS", "spec.allowed_models"),
        ("BLOCKED_TOOLS", "spec.blocked_tools"),
        _STATUS,
        words="policy policies",
    ),
    _kind(
        "AgentRole",
        "agent-roles",
        "agent_role",
        ("PERMISSIONS", "spec.permissions"),
        _STATUS,
        words="role roles",
        wide=(("DESCRIPTION", "spec.description"),),
    ),
    _kind(
        "ToolPermission",
        "tool-permissions",
        "tool_permission",
        ("TOOL", "spec.tool_ref"),
        ("ACTION", "spec.action"),
        ("MODE", "spec.match_mode"),
        ("REQUIRED_PERMISSIONS", "spec.required_permissions"),
        _STATUS,
        words="permission permissions",
        wide=(("APPLIES", "spec.apply_mode"), ("AGENTS", "spec.target_agents")),
    ),
    _kind(
        "ToolApproval",
        "tool-approvals",
        "tool_approval",
        ("RUN", "spec.run"),
        ("TASK", "spec.task_ref"),
        ("TOOL", "spec.tool"),
        ("OPERATION", "spec.operation_class"),
        ("AGENT", "spec.agent"),
        ("PHASE", "status.phase"),
        ("EXPIRES_AT", "status.expires_at"),
        ("DECIDED_BY", "status.decided_by"),
        words="approval approvals",
        wide=(("REASON", "spec.reason"),),
        phase="Pending",
    ),
    _kind(
        "Task",
        "tasks",
        "task",
        ("SYSTEM", "spec.system"),
        ("PRIORITY", "spec.priority"),
        _STATUS,
        ("ATTEMPTS", "status.attempts"),
        ("ASSIGNED_WORKER", "status.assignedWorker"),
        ("CLAIMED_BY", "status.claimedBy"),
        ("LEASE_UNTIL", "status.leaseUntil"),
        ("NEXT_ATTEMPT", "status.nextAttemptAt"),
        _LAST_ERROR,
        wide=(("AGENT", "spec.agent"), ("MODE", "spec.mode")),
        phase="Pending",
    ),
    _kind(
        "TaskSchedule",
        "task-schedules",
        "task_schedule",
        ("TASK_REF", "spec.task_ref"),
        ("SCHEDULE", "spec.schedule"),
        ("TIME_ZONE", "spec.time_zone"),
        ("SUSPEND", "spec.suspend"),
        _STATUS,
        ("LAST_SCHEDULE", "status.lastScheduleTime"),
        ("NEXT_SCHEDULE", "status.nextScheduleTime"),
        ("ACTIVE_RUNS", "status.activeRuns"),
        _LAST_ERROR,
        words="schedule schedules",
        wide=(("CONCURRENCY", "spec.concurrency_policy"),),
        phase="Pending",
    ),
    _kind(
        "TaskWebhook",
        "task-webhooks",
        "task_webhook",
        ("TASK_REF", "spec.task_ref"),
        ("ENDPOINT_ID", "status.endpointID"),
        ("ENDPOINT_PATH", "status.endpointPath"),
        ("SUSPEND", "spec.suspend"),
        _STATUS,
        ("LAST_DELIVERY", "status.lastDeliveryTime"),
        ("LAST_EVENT", "status.lastEventID"),
        ("LAST_TASK", "status.lastTriggeredTask"),
        _LAST_ERROR,
        words="webhook webhooks",
        wide=(("PROFILE", "spec.auth.profile"),),
        phase="Pending",
    ),
    _kind(
        "TaskHook",
        "task-hooks",
        "task_hook",
        ("TASK_REF", "spec.task_ref"),
        ("PATH", "spec.path"),
        ("SOURCE", "spec.source"),
        ("SUSPEND", "spec.suspend"),
        _STATUS,
        ("LAST_EVENT", "status.lastEventTime"),
        ("LAST_TASK", "status.lastTriggeredTask"),
        _LAST_ERROR,
        words="hook hooks",
        wide=(("EVENTS", "spec.events"),),
        phase="Pending",
    ),
    _kind(
        "Channel",
        "channels",
        "channel",
        ("TYPE", "spec.type"),
        ("AGENT", "spec.agent"),
        ("SUSPEND", "spec.suspend"),
        _STATUS,
        ("ENDPOINT_PATH", "status.endpointPath"),
        _LAST_ERROR,
        wide=(("MODE", "spec.mode"), ("ENDPOINT", "spec.endpoint")),
        phase="Pending",
    ),
    _kind(
        "Worker",
        "workers",
        "worker",
        ("REGION", "spec.region"),
        ("GPU", "spec.capabilities.gpu"),
        ("MAX_CONCURRENCY", "spec.max_concurrent_tasks"),
        _STATUS,
        ("LAST_HEARTBEAT", "status.lastHeartbeat"),
        wide=(("CURRENT", "status.currentTasks"), ("MODELS", "spec.capabilities.supported_models")),
        phase="NotReady",
    ),
    _kind(
        "Budget",
        "budgets",
        "budget",
        ("WINDOW", "spec.window"),
        ("LIMIT", "spec.limit.amount"),
        ("TOKENS", "spec.limit.tokens"),
        ("AGENT", "spec.scope.agent"),
        ("USER", "spec.scope.user"),
        ("ON_EXCEEDED", "spec.on_exceeded"),
        _STATUS,
        wide=(("TIME_ZONE", "spec.time_zone"), ("WARN", "spec.warn")),
    ),
    _kind(
        "ReferenceGrant",
        "reference-grants",
        "reference_grant",
        ("FROM", "spec.from"),
        ("TO", "spec.to"),
        _STATUS,
    ),
)

KINDS: Final[Mapping[str, Kind]] = MappingProxyType({kind.name: kind for kind in _ALL})


def _bare(word: str) -> str:
    """The form in which all spellings of a kind are equal: `Agent-Systems`, `agent_systems`, `agentsystems`."""
    return word.strip().lower().replace("-", "").replace("_", "").replace(" ", "")


@cache
def _by_word() -> dict[str, Kind]:
    return {_bare(word): kind for kind in _ALL for word in (kind.name, kind.plural, *kind.words)}


@cache
def _by_name() -> dict[str, Kind]:
    return {kind.name.lower(): kind for kind in _ALL}


def kind_of(name: str) -> Kind | None:
    """The kind that a manifest's `kind:` names, in any case; None when there is no such kind."""
    return _by_name().get(name.strip().lower())


def phase_of(document: Mapping[str, Any]) -> str:
    """Returns the phase of a resource: the one in its status, or the one that its kind begins with."""
    status: dict[str, Any] = document.get("status") or {}
    if phase := status.get("phase"):
        return phase
    kind = KINDS.get(document.get("kind", ""))
    spec: dict[str, Any] = document.get("spec") or {}
    if spec.get("suspend") is True:
        return "Suspended"
    if kind is not None and kind.name == "Skill":
        if is_misnamed(document):
            return "Error"
        if in_quarantine(document):
            return QUARANTINED
    return kind.phase if kind is not None else ""


def with_phase(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the resource as it is shown: its status has a phase."""
    status: dict[str, Any] = document.get("status") or {}
    if status.get("phase") or not (phase := phase_of(document)):
        return document
    return {**document, "status": {**status, "phase": phase}}


def near_kind(name: str) -> Kind | None:
    """The kind that was probably meant by a word that names none."""
    if (exact := _by_word().get(_bare(name))) is not None:
        return exact
    near = nearest(_bare(name), _by_word())
    return _by_word()[near[0]] if near else None


def find_kind(word: str) -> Kind:
    """The kind that a word on the command line or in a path names: any case, plural, singular or joined.

    Raises `UsageError` when there is none, with the nearest one as its hint.
    """
    if (kind := _by_word().get(_bare(word))) is not None:
        return kind
    near = near_kind(word)
    every = ", ".join(kind.plural for kind in _ALL)
    hint = did_you_mean(near.plural) if near else f"the kinds are: {every}"
    raise UsageError(f"there is no kind {word!r}", hint=hint, word=word)
