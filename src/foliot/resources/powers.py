"""The powers of a declaration: every field of every kind, the roles that may declare it, the operator's grants it
needs.

One table with many readers: the server asks `needs` before each write (whatever the method or the route), the engine
reads `Grant` names, `docs/powers.md` is printed from it, and the adversary tests walk through it row by row. A field
that is not in the table fails the tests.

Two things decide a write. A *role* is held in the namespace of the resource: the roles of the kind, and for some fields
a further one, when the change lifts what binds others. A *grant* is given by the operator of the installation (admin of
all namespaces, or whoever owns the process and its store): settings that list modules, commands and hosts, or the
operator declaring the resource himself. Declaring is not granting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, cast
from urllib.parse import urlsplit

from foliot.resources.agreed import EFFECTS, ISOLATIONS, RISKS
from foliot.resources.names import snake
from foliot.resources.references import GRANT, Target, references

Document: TypeAlias = Mapping[str, Any]
Power: TypeAlias = Literal[
    "own",
    "names",
    "reaches",
    "code",
    "module",
    "files",
    "shows",
    "takes",
    "image",
    "program",
    "unfenced",
    "sends",
    "keeps",
    "binds",
    "works",
    "rule",
    "judged",
    "consents",
    "shares",
]
Grant: TypeAlias = Literal[
    "",
    "tool_modules",
    "wasm_modules",
    "wasm_folders",
    "sandbox_mounts",
    "sandbox_limits",
    "container_images",
    "workspace_sources",
    "mcp_commands",
    "cli_commands",
    "unfenced",
    "outbound_allow",
    "outbound_allow, nats_subjects",
    "Secret.spec.hosts",
    "webhook",
    "operator",
]
UserUse: TypeAlias = Literal["", "acts", "vouches", "limits", "decides", "offers", "records"]
Lifts: TypeAlias = Callable[[Document | None, Document, str], bool]

POWERS: Final[Mapping[Power, str]] = {
    "own": "describes the resource itself",
    "names": "uses another resource; one of another namespace only with a ReferenceGrant there",
    "reaches": "Foliot connects to this address",
    "code": "Python code runs in the process of Foliot",
    "module": "a WebAssembly module runs on the machine of Foliot, fenced in",
    "shows": "files of the machine are seen in a sandbox",
    "takes": "so much of the machine is taken",
    "image": "an image is run as a container on the machine of Foliot",
    "files": "code in a fence reads files of the machine",
    "program": "a program is started on the machine of Foliot",
    "unfenced": "`none` starts it with all rights of Foliot and secrets in clear; each start is recorded",
    "sends": "the value of a Secret is sent to the address beside it",
    "keeps": "a secret value is stored, and never shown again",
    "binds": "says where the values of a Secret may be sent",
    "works": "work is done for its declarer",
    "rule": "limits what others may do",
    "judged": "rules go by it",
    "consents": "a call that waits is allowed",
    "shares": "other namespaces may use what is in this one",
}
USER_USES: Final[Mapping[UserUse, str]] = {
    "": "",
    "acts": "work is done for this user: for another one than its declarer only where the operator declares it, or who "
    "has the role impersonator, when it is declared and whenever it is used",
    "vouches": "the one who sets the value of a Secret that signs a Channel, of any namespace, says who its senders "
    "are: it takes what declaring the Channel with its listed and linked users takes, there, and is asked again with "
    "every message",
    "limits": "counts what this user does",
    "decides": "who may decide about calls; each of them decides by a credential of their own",
    "offers": "in whose runs it is offered",
    "records": "who asked, as Foliot writes it down; it cannot be declared",
}
GRANTS: Final[Mapping[Grant, str]] = {
    "": "",
    "tool_modules": "the module is in `tool_modules`, or the operator declares it",
    "wasm_modules": "the file is in `wasm_modules`, or the operator declares it",
    "wasm_folders": "the folder is in `wasm_folders`, or the operator declares it",
    "sandbox_mounts": "it is in `sandbox_mounts`, to be changed only with `:rw` behind it, or the operator declares it",
    "sandbox_limits": "it is no more than the default, or than `sandbox_limits` says, or the operator declares it",
    "container_images": "the image is in `container_images`, or the operator declares it",
    "workspace_sources": "the folder is in `workspace_sources`, or the operator declares it",
    "mcp_commands": "the command line is in `mcp_commands`",
    "cli_commands": "the command line, with its placeholders and variables, is in `mcp_commands`, or the operator "
    "declares it",
    "unfenced": "the operator declares it, for `none`",
    "outbound_allow": "a host inside is in `outbound_allow`; a ModelEndpoint may be declared by the operator instead",
    "outbound_allow, nats_subjects": "a host inside is in `outbound_allow`; a NATS subject other than "
    "`tool.execute.NAME`, with the name of the Tool, is in `nats_subjects`, or the operator declares it",
    "Secret.spec.hosts": "the host is in `spec.hosts` of the Secret, or the operator declares it",
    "webhook": "a Secret with `spec.hosts` has `webhook` among them, or the operator declares it; a variable of the "
    "environment only where the operator declares it",
    "operator": "the operator declares it, if its code connects where it likes (`pydantic-ai`, plug-ins)",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a kind: `path` below `spec`, with lists and maps left out (`env.secretRef`, `graph.edges.to`).

    `role` is needed besides those of the kind for a change of which `lifts` says that it lifts a rule; `when` says
    the same to people. `grant` is what the operator gives. `user` says what a field that names a user does with them.
    """

    path: str
    power: Power
    role: str = ""
    when: str = ""
    lifts: Lifts | None = None
    grant: Grant = ""
    user: UserUse = ""


@dataclass(frozen=True, slots=True)
class KindPowers:
    """A kind: the roles that declare, change and delete it, all of them, and its fields."""

    roles: tuple[str, ...]
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Need:
    """A role that a write needs, and the field that needs it, if one does.

    It is held in the namespace of the resource, or in the one that is named.
    """

    role: str
    field: str = ""
    when: str = ""
    namespace: str = ""


def spec_of(document: Document) -> Mapping[str, Any]:
    """Returns the spec of a document; an empty spec is left out of a normalised one."""
    return document.get("spec") or {}


def value_at(document: Document | None, path: str) -> Any:
    """Returns the value at a path below `spec`, or None. Lists on the way are not entered."""
    value: Any = spec_of(document or {})
    for step in path.split("."):
        value = cast("Mapping[str, Any]", value).get(step) if isinstance(value, Mapping) else None
    return value


def _differs(before: Document | None, after: Document, path: str) -> bool:
    return (value_at(before, path) or None) != (value_at(after, path) or None)


def _adds(before: Document | None, after: Document, path: str) -> bool:
    return not set(value_at(after, path) or ()) <= set(value_at(before, path) or ())


def _drops(before: Document | None, after: Document, path: str) -> bool:
    return before is not None and not set(value_at(before, path) or ()) <= set(value_at(after, path) or ())


def _changes(before: Document | None, after: Document, path: str) -> bool:
    return before is not None and _differs(before, after, path)


def _lowers(*order: str) -> Lifts:
    """Whether the word that is given comes earlier in this order than the one before; not given is the first."""

    def lowers(before: Document | None, after: Document, path: str) -> bool:
        def place(document: Document) -> int:
            word = value_at(document, path)
            return order.index(word) if word in order else 0

        return before is not None and place(after) < place(before)

    return lowers


def _allows(before: Document | None, after: Document, path: str) -> bool:
    return bool(value_at(after, path)) and _differs(before, after, path)


def _cheapens(before: Document | None, after: Document, path: str) -> bool:
    return before is not None and float(value_at(after, path) or 0) < float(value_at(before, path) or 0)


def _rebinds(before: Document | None, after: Document, path: str) -> bool:
    """Other hosts for values that are kept: whoever does not know a value must not choose where it goes."""
    given: Mapping[str, Any] = value_at(after, "data") or {}
    return "***" in given.values() and _differs(before, after, path)


def _is_template(before: Document | None, after: Document, path: str) -> bool:
    """Also one that goes: whoever may not write a template may not delete it or make something else of it either."""
    return "template" in (value_at(before, path), value_at(after, path))


# Words in the names of fields by which a provider runs tools, asks other models, or reads what it keeps: nothing of it
# passes the rules for tools and models. Fields that nobody knows count too, if they have such a word.
_ACTING: Final = frozenset(
    {
        "tool", "tools", "function", "functions", "mcp", "server", "servers", "connector", "connectors", "plugin",
        "plugins", "model", "models", "route", "provider", "fallback", "fallbacks", "search", "web", "code",
        "container", "containers", "computer", "skill", "skills", "agent", "agents", "background", "store",
        "conversation", "previous", "cached", "prompt", "thread", "webhook", "source", "sources", "retrieval",
        "knowledge", "grounding", "file", "files", "index", "connection", "connections",
    }
)  # fmt: skip
# These have such a word, and only say how the agent's own tools are called or how its prefix is cached.
_NOT_ACTING: Final = frozenset(
    {
        "tool_choice", "parallel_tool_calls", "max_tool_calls", "tool_config", "function_call", "prompt_cache_key",
        "prompt_cache_retention", "prompt_cache_options",
    }
)  # fmt: skip


def acting_fields(extra: Any) -> dict[str, Any]:
    """The fields of a provider's own by which it acts beside answering."""
    if not isinstance(extra, Mapping):
        return {}
    return {name: value for name, value in cast("Mapping[str, Any]", extra).items() if _is_acting(name)}


def _is_acting(name: str) -> bool:
    plain = snake(name).replace("-", "_").lower()
    return plain not in _NOT_ACTING and not _ACTING.isdisjoint(plain.split("_"))


def _acts(before: Document | None, after: Document, path: str) -> bool:
    known = acting_fields(value_at(before, path))
    return any(known.get(name) != value for name, value in acting_fields(value_at(after, path)).items())


def _acts_by_options(before: Document | None, after: Document, path: str) -> bool:
    return _acts(before, after, f"{path}.extra")


def _all(power: Power, paths: str, grant: Grant = "", user: UserUse = "") -> tuple[Field, ...]:
    return tuple(Field(path, power, grant=grant, user=user) for path in paths.split())


_AUTH: Final = (
    *_all("own", "auth.profile auth.headerName auth.scopes"),
    *_all("sends", "auth.secretRef", "Secret.spec.hosts"),
    *_all("reaches", "auth.tokenURL", "outbound_allow"),
)
_LIMITS: Final = (
    "sandbox.limits.memory sandbox.limits.processes sandbox.limits.cpus sandbox.limits.cpu_seconds "
    "sandbox.limits.file_size sandbox.limits.tmp_size sandbox.limits.open_files sandbox.limits.output "
    "sandbox.limits.seconds"
)
_COMMANDS_SANDBOX: Final = (
    *_all("reaches", "sandbox.network.hosts", "outbound_allow"),
    *_all("sends", "sandbox.secrets.secretRef sandbox.secrets.hosts", "Secret.spec.hosts"),
    *_all("shows", "sandbox.mounts.source sandbox.mounts.writable", "sandbox_mounts"),
    *_all(
        "own",
        "sandbox.network.ports sandbox.network.methods sandbox.network.deny sandbox.secrets.ports "
        "sandbox.secrets.variable sandbox.secrets.cleartext sandbox.mounts.target sandbox.require sandbox.workspace",
    ),
    *_all("takes", _LIMITS, "sandbox_limits"),
)
_SANDBOX: Final = (
    *_COMMANDS_SANDBOX,
    *_all("image", "sandbox.image", "container_images"),
    # A variable can have another program run than the one that was granted.
    *_all("program", "sandbox.env", "cli_commands"),
    Field("sandbox.runtime", "judged", "admin", "it is weakened", _lowers("", "gvisor")),
)
_RATE: Final = "rate_limit.requests rate_limit.per rate_limit.burst rate_limit.concurrency"

# Something is said to a session in the name of its declarer, or of the user that is named.
_SESSION: Final = (
    *_all(
        "works",
        "session.agent session.channel session.session_mode session.message session.deliver.channel "
        "session.deliver.recipient",
    ),
    *_all("works", "session.user", user="acts"),
)

# A policy only narrows what a run may do, and whoever declares the agent or the task may do so.
_EXECUTION_POLICY: Final = _all(
    "own",
    "execution_policy.host execution_policy.security execution_policy.ask execution_policy.runtime_type "
    "execution_policy.workspace_access execution_policy.network_enabled execution_policy.interactive "
    "execution_policy.resources.cpu execution_policy.resources.memory execution_policy.resources.gpu "
    "execution_policy.retry.max_attempts execution_policy.retry.delay_ms",
)
KIND_POWERS: Final[Mapping[str, KindPowers]] = {
    "Agent": KindPowers(
        ("author",),
        (
            *_all(
                "names",
                "model_ref fallbacks compaction.model tools skills memory.ref execution.tool_sequence "
                "delegation.models delegation.presets.model delegation.presets.tools",
            ),
            Field("allowed_tools", "rule", "admin", "a tool is added", _adds),
            Field("allowed_commands", "rule", "admin", "a command is added", _adds),
            Field("roles", "rule", "admin", "it changes", _differs),
            Field("model_settings.extra", "own", "admin", "the provider acts by it: tools, other models", _acts),
            *_all(
                "own",
                "model_name model_settings.max_output_tokens model_settings.temperature model_settings.top_p "
                "model_settings.stop model_settings.seed model_settings.reasoning_effort model_settings.tool_choice "
                "model_settings.parallel_tool_calls model_settings.strict_tools description "
                "prompt memory.allow memory.type memory.provider execution.profile "
                "execution.required_output_markers execution.duplicate_tool_call_policy "
                "execution.on_contract_violation execution.tool_use_behavior execution.on_denied "
                "execution.on_expiry execution.budget_notes limits.max_steps "
                "limits.max_tokens limits.max_cost_usd limits.max_tool_calls limits.timeout max_concurrency active "
                "code.runs_in code.max_calls code.timeout compaction.max_tokens compaction.keep_tail "
                "inbox.debounce inbox.cap inbox.drop "
                "delegation.presets.name delegation.presets.description delegation.presets.timeout "
                "delegation.presets.prompt delegation.presets_from delegation.timeout delegation.max_depth "
                "delegation.max_runs delegation.allow_cycles "
                "output_schema workspace.access workspace.mode workspace.data",
            ),
            *_all("takes", "workspace.quota workspace.max_files", "sandbox_limits"),
            *_all("files", "workspace.source", "workspace_sources"),
            *_all("reaches", "hooks.http.url", "outbound_allow"),
            *_all("sends", "hooks.http.secretRef", "Secret.spec.hosts"),
            *_all("own", "hooks.name hooks.points hooks.plugin hooks.order hooks.timeout hooks.on_failure"),
            *_EXECUTION_POLICY,
            *_all(
                "program", "runner.type runner.command runner.resume runner.resume_latest runner.env", "cli_commands"
            ),
            *_all(
                "own",
                "runner.provider runner.protocol runner.config runner.env_prefix runner.workspace runner.workspace_dir "
                "runner.interactive runner.timeout runner.idle",
            ),
            *(replace(field, path=f"runner.{field.path}") for field in _SANDBOX),
            Field("runner.turn_cost_usd", "judged", "admin", "it changes", _differs),
            *_COMMANDS_SANDBOX,
            # Whoever writes the agent has any command run anyway; there is no agent with an image or a runtime.
            *_all("own", "sandbox.env sandbox.image sandbox.runtime"),
        ),
    ),
    "AgentSystem": KindPowers(
        ("author",),
        (
            *_all("names", "agents graph.next graph.edges.to"),
            *_all(
                "own",
                "description graph.edges.when graph.edges.on_failure graph.edges.labels graph.edges.policy "
                "graph.join.mode graph.join.quorum_count graph.join.quorum_percent graph.join.on_failure "
                "graph.join.timeout max_turns",
            ),
        ),
    ),
    "ModelEndpoint": KindPowers(
        ("author",),
        (
            *_all("code", "provider", "operator"),
            *_all("reaches", "base_url", "outbound_allow"),
            *_all("sends", "auth.secretRef", "Secret.spec.hosts"),
            *_all("names", "fallbacks"),
            *(
                Field(f"pricing.{each}", "judged", "admin", "it changes", _differs)
                for each in (
                    "input",
                    "output",
                    "cache_read",
                    "cache_write",
                    "cache_write_1h",
                    "request",
                    "web_search",
                    "file_search",
                    "search",
                    "audio_hour",
                    "tiers",
                )
            ),
            Field("options", "own", "admin", "the provider acts by its extra: tools, other models", _acts_by_options),
            *_all(
                "own",
                f"default_model script {_RATE} rate_limit.tokens timeouts.connect timeouts.idle timeouts.total",
            ),
        ),
    ),
    "Tool": KindPowers(
        ("author",),
        (
            *_all("code", "function", "tool_modules"),
            *_all("module", "wasm.module wasm.digest wasm.entrypoint", "wasm_modules"),
            *_all("files", "wasm.folders", "wasm_folders"),
            *_all("takes", "wasm.max_memory_bytes", "sandbox_limits"),
            *_all("program", "cli.command cli.env", "cli_commands"),
            *_all("reaches", "endpoint", "outbound_allow, nats_subjects"),
            *_AUTH,
            *_SANDBOX,
            *_all("names", "mcp_server_ref requires requires_prior after replaced_by"),
            Field("category", "judged", "admin", "it changes on a tool that exists", _changes),
            Field("capabilities", "judged", "admin", "one is taken away", _drops),
            Field("operation_classes", "judged", "admin", "one is taken away", _drops),
            Field("risk_level", "judged", "admin", "it is lowered", _lowers(*RISKS)),
            Field("effect", "judged", "admin", "it is lowered", _lowers(*EFFECTS)),
            Field("on_unknown", "judged", "admin", "it becomes `retry`", _lowers("retry", "fail", "ask")),
            Field("record", "judged", "admin", "it is no longer `required`", _lowers("best_effort", "required")),
            Field("price_usd", "judged", "admin", "it is lowered", _cheapens),
            Field(
                "runtime.isolation_mode",
                "judged",
                "admin",
                "it is weakened",
                _lowers(*ISOLATIONS),
            ),
            *_all(
                "own",
                "type version description http.method http.headers http.query http.body grpc.plaintext input_schema "
                "wasm.fuel wasm.wasi "
                "cli.stdin cli.output cli.workspace "
                f"mcp_tool_name resource_keys on_dependency_failure deprecated_since {_RATE} runtime.timeout "
                "runtime.timeouts.attempt runtime.timeouts.total runtime.timeouts.idle runtime.retry.max_attempts "
                "runtime.retry.backoff runtime.retry.max_backoff runtime.retry.jitter runtime.retry.retry_on_kinds",
            ),
        ),
    ),
    "Secret": KindPowers(
        ("author",),
        (
            *_all("keeps", "data stringData", user="vouches"),
            Field("hosts", "binds", "admin", "it changes while a stored value is kept", _rebinds),
        ),
    ),
    "Memory": KindPowers(
        ("author",),
        (
            *_all("reaches", "endpoint", "outbound_allow"),
            *_all("sends", "auth.secretRef", "Secret.spec.hosts"),
            *_all("names", "embedding_model"),
            *_all("own", "type provider"),
        ),
    ),
    "Skill": KindPowers(
        ("author",),
        (
            Field("allow", "consents", "approver", "a digest is allowed", _allows),
            *_all("own", "name description status created_at disable_model_invocation body files origin"),
            *_all("own", "user", user="offers"),
        ),
    ),
    "McpServer": KindPowers(
        ("admin",),
        (
            *_all("program", "command args env.name env.value", "mcp_commands"),
            *_all("sends", "env.secretRef", "mcp_commands"),
            *_all("unfenced", "isolation", "unfenced"),
            *_all("reaches", "endpoint", "outbound_allow"),
            *_AUTH,
            # Who declares it is an admin anyway.
            *(field for field in _SANDBOX if not field.role),
            *_all("own", "sandbox.runtime"),
            *_all("own", "transport tool_filter.include reconnect.max_attempts reconnect.backoff sync_interval"),
        ),
    ),
    "AgentPolicy": KindPowers(
        ("admin",),
        _all(
            "rule",
            "max_tokens_per_run allowed_models blocked_tools allowed_tools allowed_categories read_only ask apply_mode "
            "target_systems target_tasks "
            "sandbox.isolation sandbox.network.hosts sandbox.network.ports sandbox.network.methods "
            f"sandbox.network.deny sandbox.workspace sandbox.mounts sandbox.require {_LIMITS}",
        ),
    ),
    "AgentRole": KindPowers(("admin",), _all("rule", "description permissions")),
    "ToolPermission": KindPowers(
        ("admin",),
        (
            *_all(
                "rule",
                "tool_ref action required_permissions match_mode apply_mode target_agents "
                "operation_rules.operation_class operation_rules.verdict conditions.when conditions.verdict "
                "conditions.reason approval_ttl required_approvals four_eyes",
            ),
            *_all("rule", "approvers", user="decides"),
        ),
    ),
    "ToolApproval": KindPowers(
        ("approver",),
        (
            *_all(
                "consents",
                "task_ref run call_id tool operation_class agent input arguments arguments_digest reason "
                "required_approvals four_eyes ttl standing when max_uses",
            ),
            *_all("consents", "approvers", user="decides"),
            *_all("consents", "asked_by", user="records"),
        ),
    ),
    "Budget": KindPowers(
        ("admin",),
        (
            *_all(
                "rule",
                "scope.agent scope.labels window time_zone limit.amount limit.currency limit.tokens warn on_exceeded "
                "unpriced",
            ),
            *_all("rule", "scope.user", user="limits"),
        ),
    ),
    "ReferenceGrant": KindPowers(("admin",), _all("shares", "from.namespace from.kind to.kind to.name")),
    "Task": KindPowers(
        ("operator",),
        (
            *_all("works", "system agent input"),
            Field("mode", "works", "author", "it is or was `template`", _is_template),
            *_all(
                "own",
                "priority lane timeout max_turns idempotency_key retry.max_attempts retry.backoff "
                "message_retry.max_attempts message_retry.backoff message_retry.max_backoff message_retry.jitter "
                "message_retry.non_retryable requirements.region requirements.gpu requirements.model",
            ),
            *_EXECUTION_POLICY,
        ),
    ),
    "TaskSchedule": KindPowers(
        ("author", "operator"),
        (
            *_all("works", "task_ref schedule at input suspend missed catch_up_limit concurrency_policy"),
            *_SESSION,
            *_all("own", "time_zone starting_deadline_seconds jitter successful_history_limit failed_history_limit"),
        ),
    ),
    "TaskWebhook": KindPowers(
        ("author", "operator"),
        (
            *_all("works", "task_ref suspend auth.profile filter payload.mode payload.input_key payload.inputs"),
            *_all("names", "auth.secret_ref auth.secret_refs", "webhook"),
            *_all(
                "own",
                "auth.signature_header auth.signature_prefix auth.encoding auth.timestamp_header "
                "auth.max_skew_seconds idempotency.event_id_header idempotency.event_id_path "
                "idempotency.dedupe_window_seconds idempotency.same_signature rate_limit.requests rate_limit.per "
                "rate_limit.burst delivery_history_limit",
            ),
        ),
    ),
    "TaskHook": KindPowers(
        ("author", "operator"),
        (
            *_all("works", "task_ref source events input suspend"),
            *_SESSION,
            *_all("files", "path", "workspace_sources"),
        ),
    ),
    "Channel": KindPowers(
        ("admin",),
        (
            *_all("works", "type agent agents suspend mode link users.id users.agent groups.id groups.agent"),
            *_all("works", "groups.respond plugin models"),
            *_all("works", "users.user", user="acts"),
            *_all("reaches", "endpoint", "outbound_allow"),
            *_all("sends", "auth.secretRef", "Secret.spec.hosts"),
        ),
    ),
    "Worker": KindPowers(
        ("admin",),
        _all(
            "own", "region capabilities.gpu capabilities.supported_models capabilities.isolation max_concurrent_tasks"
        ),
    ),
}


# Kinds that limit what others may do: what they said before and after is in the record of a change.
RULE_KINDS: Final = frozenset(
    kind for kind, powers in KIND_POWERS.items() if all(field.power == "rule" for field in powers.fields)
)


# A resource that says nothing of itself: what its fields are when nobody declares them. Both classes that a tool has
# without saying so are there, so that whoever may declare it may delete it.
_UNSAID: Final[Mapping[str, Document]] = {
    "Tool": {
        "spec": {
            "category": "uncategorised",
            "operation_classes": ["read", "write"],
            "effect": "once",
            "on_unknown": "ask",
        }
    },
}


def values_at(document: Document, path: str) -> Iterator[Any]:
    """Yields every value at a path below `spec`, of each item where a list is on the way."""
    found: list[Any] = [spec_of(document)]
    for step in path.split("."):
        inner = [cast("Mapping[str, Any]", each).get(step) for each in found if isinstance(each, Mapping)]
        found = [item for each in inner for item in (cast("list[Any]", each) if isinstance(each, list) else [each])]
    yield from (each for each in found if each is not None)


def _unsuspended(document: Document) -> dict[str, Any]:
    """The spec without whether it is suspended: to stop a trigger and let it go on again changes nothing else."""
    return {name: value for name, value in spec_of(document).items() if name != "suspend"}


def needs(before: Document | None, after: Document | None, *, by: str | None = None) -> Iterator[Need]:
    """The roles that a write needs: of `after` over `before`, where None is what was not there or will not be.

    `by` is the name of who writes; None for the operator of the installation, who has work done for any user.

    To delete is to change into what says nothing: who may not lift a rule cannot delete what has it and declare the
    same name anew without.
    """
    document = after or before
    assert document is not None, "a write is about something"
    powers = KIND_POWERS[document["kind"]]
    for role in powers.roles:
        yield Need(role)
    then = _UNSAID.get(document["kind"], {}) if after is None else after
    changed = after is not None and (before is None or _unsuspended(before) != _unsuspended(after))
    for field in powers.fields:
        if changed and by is not None and field.user == "acts":
            others = [str(user) for user in values_at(document, field.path) if user not in ("", by)]
            if others:
                yield Need("impersonator", f"spec.{field.path}", f"it names another user than you: {others[0][:80]!r}")
        if field.lifts is not None and field.lifts(before, then, field.path):
            yield Need(field.role, f"spec.{field.path}", field.when if after is not None else "it goes with a deletion")


@dataclass(frozen=True, slots=True)
class LookedAt:
    """Kinds whose resources say something about a write of another kind: those of its namespace.

    With `granted` also those of other namespaces that a ReferenceGrant lets refer to it.
    """

    kinds: tuple[str, ...]
    granted: bool = False


LOOKED_AT: Final[Mapping[str, LookedAt]] = {
    "Secret": LookedAt(("TaskWebhook", "Channel"), granted=True),
    # Of a channel it is asked with each message who set the value, of a webhook only when the value is set.
    GRANT: LookedAt(("TaskWebhook",), granted=True),
    "Tool": LookedAt(("ToolPermission", "AgentPolicy")),
}


def secret_values(document: Document) -> dict[str, Any]:
    """Returns the values that a Secret is given; those that it keeps are left out."""
    given: dict[str, Any] = {**(value_at(document, "stringData") or {}), **(value_at(document, "data") or {})}
    return {name: value for name, value in given.items() if value != "***"}


def signed_with(document: Document, namespace: str, name: str) -> bool:
    """Whether a webhook or a channel is signed with a Secret."""
    return Target("Secret", namespace, name) in secrets_of(document)


def secrets_of(document: Document) -> list[Target]:
    """Returns the Secrets that a document names."""
    found = (each for each in references(document) if each.kind == "Secret")
    return [Target(each.kind, each.namespace, each.name.strip()) for each in found]


def with_linked(channel: Document, users: Iterable[str]) -> dict[str, Any]:
    """A Channel as if it listed who has linked an account: a link names a user for a sender too."""
    listed: list[Any] = list(spec_of(channel).get("users") or ())
    linked = [{"id": f"link:{user}", "user": user} for user in users]
    return {**channel, "spec": {**spec_of(channel), "users": [*listed, *linked]}}


def needs_around(
    before: Document | None, after: Document | None, around: Iterable[Document], *, by: str | None = None
) -> Iterator[Need]:
    """The roles that a write needs because of what is declared `around` it: resources of the kinds in `LOOKED_AT`.

    Who gives the secret of a webhook or channel a value of his own can sign calls, and so has work done and says who a
    sender is: it takes what declaring the webhook or channel takes, there. Without a grant that stands it signs nothing
    in another namespace; who lets it sign there again may have given it a value meanwhile. Who deletes a tool that a
    rule names, or that a policy refuses for what it is, could declare it again as something that the rule lets pass.
    """
    document = after or before
    assert document is not None, "a write is about something"
    kind, name = document["kind"], document["metadata"]["name"]
    if kind == "Secret" and after is not None and secret_values(after):
        namespace: str = document["metadata"].get("namespace", "default")
        for signed in around:
            if signed_with(signed, namespace, name):
                yield from _needs_of_signed(signed, "spec.data", "is signed with it", by)
    if kind == GRANT and after is not None:
        for signed in around:
            yield from _needs_of_signed(signed, "spec.to", "is signed with a Secret of this namespace again", by)
    if kind == "Tool" and after is None:
        for rule in around:
            named = [value_at(rule, "tool_ref") or ""]
            named += [each for field in ("blocked_tools", "allowed_tools") for each in value_at(rule, field) or ()]
            if name.lower() in (str(each).partition("@")[0].lower() for each in named):
                yield Need("admin", "", f"{rule['kind']}/{rule['metadata']['name']} names it")
            elif value_at(rule, "read_only") and value_at(before, "effect") != "read":
                yield Need("admin", "spec.effect", f"{rule['kind']}/{rule['metadata']['name']} goes by it")
            elif (listed := value_at(rule, "allowed_categories")) and value_at(before, "category") not in listed:
                yield Need("admin", "spec.category", f"{rule['kind']}/{rule['metadata']['name']} goes by it")


def _needs_of_signed(signed: Document, field: str, why: str, by: str | None) -> Iterator[Need]:
    metadata = signed["metadata"]
    why = f"{signed['kind']}/{metadata['name']} {why}"
    for need in needs(None, signed, by=by):
        when = f"{why}: {need.when}" if need.when else why
        yield Need(need.role, field, when, metadata.get("namespace", "default"))


def declared_addresses(document: Document) -> list[tuple[str, str]]:
    """The addresses in a Tool, an McpServer, a Memory or a Channel, as URLs, each with its field.

    Raises `ValueError` for a type of Tool that nobody has said of what its endpoint is.
    """
    kind, spec = document["kind"], spec_of(document)
    place = str(spec.get("endpoint", ""))
    if kind == "Tool":
        place = _tool_address(spec["type"], place)
    elif (kind == "McpServer" and spec["transport"] != "http") or spec.get("provider") == "in-memory":
        place = ""
    token_url = spec.get("auth", {}).get("tokenURL", "") if kind != "Memory" else ""
    return [(field, url) for field, url in (("spec.endpoint", place), ("spec.auth.tokenURL", token_url)) if url]


def _tool_address(type_: str, endpoint: str) -> str:
    match type_:
        case "http" | "external" | "webhook-callback":
            # Arguments stand only in path and query.
            return endpoint.partition("?")[0].replace("{", "").replace("}", "")
        case "grpc":
            return f"http://{endpoint.removeprefix('grpc://').removeprefix('grpcs://')}" if endpoint else ""
        case "queue" | "function" | "mcp" | "wasm" | "cli":
            # A subject, which is granted by itself; a module of Python; what the McpServer says; a module; a program.
            return ""
        case _:
            raise ValueError(f"it is not known what the endpoint of a tool of the type {type_!r} reaches")


def host_of(url: str) -> str:
    """The host that a URL names, in lower case."""
    return (urlsplit(url).hostname or "").rstrip(".")


def secret_targets(document: Document, addresses: Iterable[tuple[str, str]] | None = None) -> tuple[str, ...] | None:
    """The hosts that the secret of a resource must be bound to; None when the operator declared where it goes.

    `addresses` are given for a kind that does not itself name all of them (see `engine/definition/grants.py`).
    """
    if declared_by_operator(document):
        return None
    found = declared_addresses(document) if addresses is None else addresses
    return tuple(dict.fromkeys(host_of(url) for _, url in found))


_IN_HIS_NAME: Final[frozenset[Power]] = frozenset(
    {
        "reaches",
        "code",
        "module",
        "files",
        "shows",
        "image",
        "program",
        "unfenced",
        "sends",
        "keeps",
        "binds",
        "works",
        "consents",
        "shares",
    }
)


# What these bring about is done in the name of whoever declared them, and not only by their rights.
IN_A_NAME: Final = frozenset({"TaskSchedule", "TaskWebhook", "TaskHook", "Channel"})


def acts_for_declarer(kind: str) -> bool:
    """Whether what a resource of this kind brings about goes by the rights of whoever declared it.

    Then nobody declares what another has put into it without having said so.
    """
    powers = KIND_POWERS.get(kind)
    return powers is not None and any(each.power in _IN_HIS_NAME for each in powers.fields)


def declared_by_operator(document: Document) -> bool:
    """Whether the operator of the installation declared what the resource says now (`metadata.declaredBy`).

    What never was in a store comes from this process itself: a file that it was given, a document made in Python.
    """
    metadata: Mapping[str, Any] = document["metadata"]
    by: Mapping[str, Any] | None = metadata.get("declaredBy")
    return not metadata.get("uid") if not by else by.get("operator") is True


def user_table() -> str:
    """The fields that name a user in Markdown, as `docs/powers.md` shows them."""
    rows = [
        f"| {kind} | `{field.path}` | {USER_USES[field.user]} |"
        for kind, powers in KIND_POWERS.items()
        for field in powers.fields
        if field.user
    ]
    return "\n".join(("| kind | field | what it does with the user that it names |", "|---|---|---|", *rows))


def table() -> str:
    """The table in Markdown, as `docs/powers.md` shows it: fields that bring about the same share a row."""
    lines = ["| kind | field | brings about | role | besides, granted by the operator |", "|---|---|---|---|---|"]
    for kind, powers in KIND_POWERS.items():
        rows: dict[tuple[Power, str, str, Grant], list[str]] = {}
        for field in powers.fields:
            rows.setdefault((field.power, field.role, field.when, field.grant), []).append(field.path)
        for (power, role, when, grant), paths in rows.items():
            # Pages write `secretRef` everywhere; webhooks store the other spelling.
            shown = ", ".join(f"`{path.replace('secret_ref', 'secretRef')}`" for path in paths)
            who = " and ".join(powers.roles) + (f"; also {role} when {when}" if role else "")
            lines.append(f"| {kind} | {shown} | {POWERS[power]} | {who} | {GRANTS[grant]} |")
    return "\n".join(lines)
