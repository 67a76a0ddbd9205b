"""From what was declared to what a run is pinned to.

A run never looks at definitions again: everything that decides its course is in the frozen `RunSpec`. Where models and
tools are reached (endpoints, keys, code) is looked up by name when they are used, because that may change under a run.
A normalised document leaves out what is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from foliot.common.durations import seconds
from foliot.engine.hooks.declared import HOOKS, DeclaredHook, HttpTarget
from foliot.engine.runners.adapters import ASK_USER
from foliot.engine.runners.profile import RUNNER, SYSTEM_PROMPT, RunnerSpec
from foliot.errors import InvalidInput
from foliot.kernel.backoff import RetryPolicy
from foliot.kernel.execution import RUNTIMES, ExecutionPolicy, declares_nothing, normalised, strictest
from foliot.kernel.messages import ModelSettings, ToolSpec
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.spec import CompactionRules, Contract, RunSpec, ToolRule
from foliot.resources.amounts import micros_of_text
from foliot.resources.powers import declared_by_operator, host_of, secret_targets
from foliot.tools import search
from foliot.tools.backends.agent import RUNNING_CODE, Delegation, Preset, Program
from foliot.tools.base import AuthSpec, RateLimit, ToolDefinition
from foliot.tools.builtin.presets import BUILT_IN, merged
from foliot.tools.declared_fences import BOUND, tool_fence
from foliot.tools.pipeline.order import check_order, check_requirements
from foliot.tools.registry import lock
from foliot.tools.workspaces import WORKSPACE_RULES

ENDPOINT = "endpoint"
# Version and schema digest of each tool, by name: what a call is held against for as long as the run lives.
LOCK = "tools"
# Tools and agents to delegate to that came from the store when the run began: without them there it cannot go on.
DECLARED = "declared"
# Tools that a model is not shown until a search has found them.
DEFERRED = "deferred"
# Tools that the client of the run brought along: what they are is in the spec itself, and nowhere else.
CLIENT = "client_tools"
# How many runs of the agent may be at work at once, for the queue.
CONCURRENCY = "max_concurrency"
# The execution policy that the run is held to, in normal form; not there when none was declared.
EXECUTION = "execution_policy"
# The isolations that tools of the run declare: only a worker that has them all may take it.
ISOLATION = "isolation"
# Shell commands on the agent's list, for execution policies that go by one.
COMMANDS = "allowed_commands"
# When its conversations are summarised, where it says so, and the size at which they are where nobody knows the model.
COMPACTION = "compaction"
MOST_TOKENS = 80_000
# How programs of the agent run, where it says so: `runs_in`, `max_calls`, `seconds`.
CODE = "code"
# How the agent delegates, where it says so, with every preset that its tasks may name.
DELEGATION = "delegation"
# What the agent asks of the fence around its commands and code, and whether grants hold for it.
SANDBOX = "sandbox"
# Fields of a Tool that only one kind of backend understands.
_BACKEND_OPTIONS = ("http", "grpc", "wasm", "cli")
# The types of tools whose code runs in a fence, and the isolations that are one.
FENCED_TYPES = ("function", "cli")
FENCED_MODES = ("sandboxed", "container")


def freeze(
    agent: Mapping[str, Any],
    *,
    model: str,
    endpoint: str,
    tools: Sequence[ToolDefinition],
    runner: RunnerSpec | None = None,
    window: int | None = None,
    summariser: tuple[str, str] = ("", ""),
) -> RunSpec:
    """The run spec of a normalised Agent document.

    `model` is the model's own name and `endpoint` where it is asked; `tools` are the definitions of `spec.tools`.
    `runner` is the program that stands in for the model. `window` are the tokens that the model reads at most, if that
    is known; `summariser` is the endpoint for summaries and its model, if there is one.
    Raises `InvalidInput` for tools that need what is not among them, or wait for each other.
    """
    if any(tool.requires or tool.after or tool.requires_prior for tool in tools):
        check_requirements(tools)
        check_order(tools)
    spec = agent["spec"]
    execution = spec["execution"]
    return RunSpec(
        agent=agent["metadata"]["name"],
        namespace=agent["metadata"].get("namespace", "default"),
        model=model,
        system=spec.get("prompt") or (SYSTEM_PROMPT if runner is not None else ""),
        tools=tuple(tool_rule(tool) for tool in tools),
        settings=_settings(spec.get("model_settings", {})),
        fallbacks=tuple(spec.get("fallbacks", ())),
        limits=_limits(spec.get("limits", {})),
        contract=_contract(execution),
        duplicates=execution["duplicate_tool_call_policy"],
        output_schema=spec.get("output_schema"),
        tool_use_behavior=execution["tool_use_behavior"],
        on_denied=execution.get("on_denied", "tell"),
        on_expiry=execution.get("on_expiry"),
        budget_notes=bool(execution.get("budget_notes")),
        compaction=runner is None,  # a program keeps its own conversation
        compaction_rules=CompactionRules() if runner is not None else _compaction(spec, window, summariser),
        extra={
            ENDPOINT: endpoint,
            "roles": spec.get("roles", []),
            "allowed_tools": spec.get("allowed_tools", []),
            LOCK: {name: [each.version, each.digest] for name, each in lock(tools).items()},
            **_deferred(tools, spec.get("model_settings", {}).get("tool_choice", "")),
            **({CONCURRENCY: spec[CONCURRENCY]} if spec.get(CONCURRENCY) else {}),
            **({COMMANDS: spec[COMMANDS]} if spec.get(COMMANDS) else {}),
            **({SANDBOX: asked} if (asked := asked_sandbox(agent)) else {}),
            **_execution(declared_policy(spec)),
            **_workspace(agent),
            **({CODE: msgspec.to_builtins(program_of(spec[CODE]))} if spec.get(CODE) else {}),
            **({DELEGATION: msgspec.to_builtins(delegation_of(spec))} if spec.get(DELEGATION) is not None else {}),
            **({HOOKS: hooks} if (hooks := declared_hooks(agent)) else {}),
            **({ISOLATION: modes} if (modes := _isolations(tools, runner)) else {}),
            **({RUNNER: msgspec.to_builtins(runner)} if runner is not None else {}),
        },
    )


def _declared_compaction(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return spec.get(COMPACTION) or {}


def summariser_of(spec: Mapping[str, Any]) -> str:
    """The endpoint that writes the summaries of an agent, as its normalised spec names it; blank for its own."""
    return _declared_compaction(spec).get("model", "")


def _compaction(spec: Mapping[str, Any], window: int | None, summariser: tuple[str, str]) -> CompactionRules:
    declared = _declared_compaction(spec)
    most = declared.get("max_tokens") or (window * 3 // 4 if window else MOST_TOKENS)
    return CompactionRules(max(0, most), declared.get("keep_tail", CompactionRules().keep_tail), *summariser)


def with_tool(spec: RunSpec, tool: ToolDefinition) -> RunSpec:
    """The spec with one more built-in tool, unless the run has it, or its contract allows no others."""
    if spec.contract is not None or RUNNER in spec.extra or any(rule.name == tool.name for rule in spec.tools):
        return spec
    locked = {name: [each.version, each.digest] for name, each in lock([tool]).items()}
    extra = {**spec.extra, LOCK: {**spec.extra.get(LOCK, {}), **locked}}
    return replace(spec, tools=(*spec.tools, tool_rule(tool)), extra=extra)


def declared_hooks(agent: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The hooks that an Agent document declares, as its runs are pinned to them."""
    namespace = agent["metadata"].get("namespace", "default")
    hooks: Sequence[Mapping[str, Any]] = agent["spec"].get(HOOKS) or ()
    return [msgspec.to_builtins(_hook(each, agent, namespace)) for each in hooks]


def _hook(given: Mapping[str, Any], agent: Mapping[str, Any], namespace: str) -> DeclaredHook:
    http: Mapping[str, Any] | None = given.get("http")
    target = None
    if http:
        hosts = None if declared_by_operator(agent) else (host_of(http["url"]),)
        target = HttpTarget(http["url"], http.get("secretRef", ""), namespace, hosts)
    return DeclaredHook(
        name=given["name"],
        points=tuple(given.get("points", ())),
        order=given["order"],
        timeout=seconds(given["timeout"]),
        on_failure=given["on_failure"],
        plugin=given.get("plugin", ""),
        http=target,
    )


def _isolations(tools: Sequence[ToolDefinition], runner: RunnerSpec | None) -> list[str]:
    """The isolations that a run needs: those of its tools, and a fence for a program in the place of the model."""
    modes = {tool.isolation for tool in tools} - {"none"}
    return sorted(modes | {"sandboxed"} if runner is not None else modes)


def _workspace(agent: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the agent's rules on its workspace. Whose word they are decides which folders its runs may begin with."""
    declared: Mapping[str, Any] = agent["spec"].get("workspace") or {}
    if not declared:
        return {}
    trusted = {"trusted": True} if declared.get("source") and declared_by_operator(agent) else {}
    return {WORKSPACE_RULES: {**declared, **trusted}}


def asked_sandbox(agent: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `Caller.sandbox` of an agent: what it asks of the fence of its commands; nothing when it asks nothing."""
    asked = agent["spec"].get(SANDBOX)
    return {**asked, BOUND: not declared_by_operator(agent)} if asked else {}


def declared_policy(spec: Mapping[str, Any]) -> ExecutionPolicy | None:
    """The execution policy in the normalised spec of an Agent or a Task; None when it declares none."""
    policy = msgspec.convert(spec.get(EXECUTION) or {}, ExecutionPolicy)
    return None if declares_nothing(policy) else policy


def execution_of(spec: RunSpec) -> ExecutionPolicy | None:
    """The execution policy that a run of this spec is held to. Raises `msgspec.ValidationError` for one of no shape."""
    given = spec.extra.get(EXECUTION)
    return msgspec.convert(given, ExecutionPolicy) if given is not None else None


# The fence of each isolation that a tool can declare; and fences from the strongest to the weakest.
_FENCES = {"sandboxed": "process", "container": "container", "wasm": "wasm"}
_STRONGEST = tuple(RUNTIMES.values())


def isolation_needs(spec: RunSpec) -> tuple[str, ...]:
    """Returns what a worker must be able to enforce to take a run of this spec, in the words of `Needs.isolation`."""
    policy = execution_of(spec)
    if policy is not None and policy.security == "deny":
        return ()  # no program is run
    least = RUNTIMES.get(policy.runtime_type, "process") if policy is not None else "process"
    bounds = [name for name in ("memory", "cpu") if name in policy.resources] if policy is not None else []
    needs: set[str] = set()
    modes: Sequence[str] = spec.extra.get(ISOLATION, ())
    for mode in modes:
        fence: str = _FENCES.get(mode, mode)
        if fence in _STRONGEST:
            fence = min(fence, least, key=_STRONGEST.index)
            needs.update(f"{fence}+{bound}" for bound in bounds)
        needs.add(fence)
    return tuple(sorted(needs))


def narrowed_by(spec: RunSpec, policy: ExecutionPolicy | None) -> RunSpec:
    """The spec of a run that is held to this policy as well, besides its own: the strictest holds."""
    if policy is None:
        return spec
    narrowed = replace(spec, extra={**spec.extra, **_execution(execution_of(spec), policy)})
    if RUNNER not in spec.extra or policy.interactive is not False:
        return narrowed
    locked = {name: pin for name, pin in spec.extra.get(LOCK, {}).items() if name != ASK_USER}
    tools = tuple(rule for rule in spec.tools if rule.name != ASK_USER)
    return replace(narrowed, tools=tools, extra={**narrowed.extra, LOCK: locked})


def _execution(*declared: ExecutionPolicy | None) -> dict[str, Any]:
    policy = strictest(*declared)
    if policy is None:
        return {}
    # Whether a program may be talked to is kept as it was said: what nobody said is left to its agent.
    return {EXECUTION: msgspec.to_builtins(replace(normalised(policy), interactive=policy.interactive))}


def program_of(given: Mapping[str, Any]) -> Program:
    """How programs run by `spec.code` of an Agent."""
    return Program(given["runs_in"], given["max_calls"], seconds(given["timeout"]))


def delegation_of(spec: Mapping[str, Any]) -> Delegation:
    """How an agent of this normalised spec delegates; its presets stand behind those that come with Foliot."""
    given: Mapping[str, Any] = spec[DELEGATION]
    own = [
        Preset(
            name=each["name"],
            description=each["description"],
            prompt=each.get("prompt", ""),
            model=each.get("model", ""),
            tools=tuple(each["tools"]) if "tools" in each else None,
            seconds=seconds(each["timeout"]) if "timeout" in each else None,
        )
        for each in given.get("presets", ())
    ]
    declared = Delegation(
        presets=merged(BUILT_IN, own),
        models=tuple(given.get("models", ())),
        max_depth=given.get("max_depth"),
        max_runs=given.get("max_runs"),
        cycles=bool(given.get("allow_cycles")),
    )
    return replace(declared, seconds=seconds(given["timeout"])) if "timeout" in given else declared


def with_search(tools: Iterable[ToolDefinition]) -> list[ToolDefinition]:
    """The tools of an agent; with the one that finds the others when there are more than a model should be shown."""
    found = list(tools)
    if len(found) <= search.FIT or any(tool.name == search.NAME for tool in found):
        return found
    return [*found, search.ToolSearch(()).definition]


def _deferred(tools: Sequence[ToolDefinition], forced: str) -> dict[str, list[str]]:
    """Name the tools that are not shown at first. One that must be called is: providers refuse a choice of others.

    So is `code`, by whose description a model knows the others.
    """
    names = [tool.name for tool in tools]
    if len(names) <= search.FIT or search.NAME not in names:
        return {}
    return {DEFERRED: [name for name in names if name not in (search.NAME, forced, RUNNING_CODE)]}


def tool_rule(tool: ToolDefinition) -> ToolRule:
    schema = dict(tool.schema) if tool.schema is not None else None
    description = tool.description
    if tool.deprecated_since:
        instead = f"; use {tool.replaced_by} instead" if tool.replaced_by else ""
        description = f"{description} (Deprecated{instead}.)".lstrip()
    # A WebAssembly module reaches nothing outside: a call that was cut off had no effect, whatever the tool declares.
    effect = "read" if tool.isolation == "wasm" else tool.effect
    return ToolRule(ToolSpec(tool.name, description, schema), effect, tool.on_unknown, tool.repeats)


def with_data_notes(spec: RunSpec, notes: Mapping[str, str]) -> RunSpec:
    """Returns the spec of a run whose `data/` is kept for its user, which tools say that write there: notes by name."""
    if not notes:
        return spec
    rules = (
        replace(rule, spec=replace(rule.spec, description=f"{rule.spec.description} {notes[rule.name]}"))
        if rule.name in notes
        else rule
        for rule in spec.tools
    )
    return replace(spec, tools=tuple(rules))


def with_client_tools(spec: RunSpec, tools: Sequence[ToolSpec]) -> RunSpec:
    """The spec of a run whose client brings along tools that it calls itself. Raises `InvalidInput` for taken names."""
    if not tools:
        return spec
    taken = {rule.name for rule in spec.tools}
    for tool in tools:
        if tool.name in taken:
            raise InvalidInput(
                f"the agent {spec.agent!r} has a tool {tool.name!r} already, or it is given twice",
                hint="give your tool another name",
            )
        taken.add(tool.name)
    rules = tuple(ToolRule(tool, "idempotent") for tool in tools)
    return replace(spec, tools=(*spec.tools, *rules), extra={**spec.extra, CLIENT: [tool.name for tool in tools]})


def tool_definition(document: Mapping[str, Any]) -> ToolDefinition:
    """The definition in a normalised Tool document."""
    metadata, spec = document["metadata"], document["spec"]
    runtime = spec["runtime"]
    timeouts = runtime.get("timeouts", {})
    options = _options(document)
    return ToolDefinition(
        name=metadata["name"],
        description=spec.get("description", ""),
        schema=spec.get("input_schema"),
        effect=spec["effect"],
        on_unknown=spec["on_unknown"],
        timeout=seconds(runtime["timeout"]),
        version=spec["version"],
        labels=metadata.get("labels") or {},
        namespace=metadata.get("namespace", "default"),
        type=spec["type"],
        endpoint=spec.get("endpoint", ""),
        isolation=runtime["isolation_mode"],
        category=spec["category"],
        risk=spec["risk_level"],
        capabilities=tuple(spec.get("capabilities", ())),
        operation_classes=tuple(spec["operation_classes"]),
        requires=tuple(spec.get("requires", ())),
        requires_prior=tuple(spec.get("requires_prior", ())),
        after=tuple(spec.get("after", ())),
        resource_keys=tuple(spec.get("resource_keys", ())),
        on_dependency_failure=spec.get("on_dependency_failure", "fail"),
        deprecated_since=spec.get("deprecated_since", ""),
        replaced_by=spec.get("replaced_by", ""),
        record=spec.get("record", "best_effort"),
        attempt_timeout=seconds(timeouts["attempt"]) if "attempt" in timeouts else None,
        idle_timeout=seconds(timeouts["idle"]) if "idle" in timeouts else None,
        retry=_retry(runtime["retry"]),
        rate_limit=_rate_limit(spec.get("rate_limit")),
        auth=_auth(spec.get("auth"), secret_targets(document)),
        price=micros_of_text(spec["price_usd"]) if "price_usd" in spec else 0,
        # A program that works on files: what it does depends on them.
        repeats="sandbox" in options and options["sandbox"].workspace != "none",
        options=options,
    )


def _options(document: Mapping[str, Any]) -> dict[str, Any]:
    spec = document["spec"]
    found = {name: spec[name] for name in _BACKEND_OPTIONS if name in spec}
    if spec["type"] in FENCED_TYPES and spec["runtime"]["isolation_mode"] in FENCED_MODES:
        found["sandbox"] = tool_fence(document)
    return found


def _retry(given: Mapping[str, Any]) -> RetryPolicy:
    return RetryPolicy(
        max_attempts=given["max_attempts"],
        backoff=seconds(given["backoff"]),
        max_backoff=seconds(given["max_backoff"]),
        jitter=given["jitter"],
        on_kinds=frozenset(kinds) if (kinds := given.get("retry_on_kinds")) is not None else None,
    )


def _rate_limit(given: Mapping[str, Any] | None) -> RateLimit | None:
    if not given:
        return None
    return RateLimit(given.get("requests"), seconds(given["per"]), given.get("burst"), given.get("concurrency"))


def _auth(given: Mapping[str, Any] | None, hosts: tuple[str, ...] | None) -> AuthSpec | None:
    if not given:
        return None
    return AuthSpec(
        profile=given["profile"],
        secret_ref=given["secretRef"],
        header_name=given.get("headerName", ""),
        token_url=given.get("tokenURL", ""),
        scopes=tuple(given.get("scopes", ())),
        hosts=hosts,
    )


def _settings(given: Mapping[str, Any]) -> ModelSettings:
    fields = {name: value for name, value in given.items() if value is not None}
    fields["stop"] = tuple(fields.get("stop", ()))
    return ModelSettings(**fields)


def _limits(given: Mapping[str, Any]) -> Limits:
    timeout = given.get("timeout")
    return Limits(
        max_steps=given.get("max_steps"),
        max_tokens=given.get("max_tokens"),
        max_cost_usd=given.get("max_cost_usd"),
        max_tool_calls=given.get("max_tool_calls"),
        max_seconds=seconds(timeout) if timeout else None,
    )


def _contract(execution: Mapping[str, Any]) -> Contract | None:
    if execution["profile"] != "contract":
        return None
    return Contract(
        required_tools=tuple(execution.get("tool_sequence", ())),
        markers=tuple(execution.get("required_output_markers", ())),
        on_violation="observe" if execution["on_contract_violation"] == "observe" else "fail",
    )
