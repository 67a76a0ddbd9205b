"""Declared fences: from the `sandbox` part of a normalised resource to what `Fences` opens or bounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from foliot.common.sizes import bytes_of, canonical
from foliot.resources.powers import Document, declared_by_operator, spec_of
from foliot.sandbox.base import MIB, Limits, Mount, WorkspaceAccess
from foliot.sandbox.egress.rules import EgressRule
from foliot.tools.base import Caller
from foliot.tools.fences import SIZES, Backend, Ceiling, FenceRequest, FenceSecret, Narrowed

# What fences have where nothing is declared, and the most that others than the operator declare without his grant. Who
# calls bounds the time; what is declared bounds it as well.
TOOL_LIMITS: Final = Limits(seconds=None)
# Of commands and code that an agent writes; no job of one takes longer.
AGENT_LIMITS: Final = Limits(memory=2048 * MIB, processes=256, output=256 * 1024, seconds=3600.0)
# Of a WebAssembly module, likewise.
WASM_MEMORY: Final = 64 * MIB
# Beside the fields of the `sandbox` of an agent: whether somebody else than the operator declared it.
BOUND: Final = "bound"
# The weakest backend for each weakest isolation of a policy; without a fence there is nothing to bound.
_BACKENDS: Final[Mapping[str, Backend]] = {
    "none": "process",
    "sandboxed": "process",
    "container": "container",
    "gvisor": "gvisor",
}


def fence_request(
    sandbox: Mapping[str, Any],
    *,
    namespace: str,
    bound: bool,
    by: str = "Tool",
    granted_mounts: Sequence[str] = (),
    contained: bool = False,
    workspace: WorkspaceAccess = "none",
    limits: Limits = TOOL_LIMITS,
    most: Limits | None = None,
) -> FenceRequest:
    """The fence that a `SandboxSpec` asks for. It has no time limit but the one that is declared.

    `by` is the kind of resource that declares it, which a grant for its secrets has to name.
    `bound`: its secrets go only where they are bound to, and it shows only what lies in `granted_mounts`, because
    somebody else than the operator declared it. `contained`: it runs in a container. `workspace` is the access that it
    has when it says nothing of it. `limits` hold where nothing is declared; `most` is what may be declared without a
    grant, the same when not given.
    """
    backend: Backend = "process"
    if contained:
        backend = "gvisor" if sandbox.get("runtime") == "gvisor" else "container"
    return FenceRequest(
        backend=backend,
        image=sandbox.get("image", ""),
        workspace=sandbox.get("workspace", workspace),
        network=network_rules(sandbox.get("network", ())),
        secrets=tuple(
            FenceSecret(
                ref=each["secretRef"],
                hosts=tuple(each["hosts"]),
                ports=tuple(each["ports"]),
                variable=each.get("variable", ""),
                cleartext=each["cleartext"],
                bound=bound,
                by=by,
            )
            for each in sandbox.get("secrets", ())
        ),
        mounts=tuple(Mount(each["source"], each["target"], each["writable"]) for each in sandbox.get("mounts", ())),
        mounts_within=tuple(granted_mounts) if bound else None,
        limits=replace(limits, **(declared := limits_of(sandbox.get("limits", {})))),
        limits_within=limits_within(declared, most or limits) if bound else None,
        environment=dict(sandbox.get("env", {})),
        require=frozenset(sandbox.get("require", ())),
        namespace=namespace,
    )


def tool_fence(document: Document, granted_mounts: Sequence[str] = ()) -> FenceRequest:
    """The fence that a normalised Tool document asks for: `spec.sandbox`, with what `spec.cli` says of it."""
    spec = spec_of(document)
    cli: Mapping[str, Any] = spec.get("cli", {})
    sandbox: Mapping[str, Any] = spec.get("sandbox", {})
    if cli.get("env"):
        sandbox = {**sandbox, "env": {**cli["env"], **sandbox.get("env", {})}}
    return fence_request(
        sandbox,
        namespace=document["metadata"].get("namespace", "default"),
        bound=not declared_by_operator(document),
        granted_mounts=granted_mounts,
        contained=spec["runtime"]["isolation_mode"] == "container",
        workspace=cli.get("workspace", "none"),
    )


def agent_fence(caller: Caller, limits: Limits, granted_mounts: Sequence[str] = ()) -> FenceRequest:
    """The fence of commands and code that an agent writes: the workspace of its run, and what the agent asks for.

    `limits` are those that hold where the agent says nothing.
    """
    asked = caller.sandbox
    return fence_request(
        asked,
        namespace=caller.namespace,
        bound=asked.get(BOUND, True),
        by="Agent",
        granted_mounts=granted_mounts,
        workspace="read_write",
        limits=limits,
        most=AGENT_LIMITS,
    )


def ceiling_of(sandbox: Mapping[str, Any], rule: str) -> Ceiling:
    """The most that the `SandboxCeiling` of a policy allows. `rule` is its name."""
    network, mounts = sandbox.get("network"), sandbox.get("mounts")
    return Ceiling(
        rule=rule,
        backend=_BACKENDS[sandbox.get("isolation", "none")],
        fenced=sandbox.get("isolation", "none") != "none",
        workspace=sandbox.get("workspace", "read_write"),
        network=None if network is None else network_rules(network),
        mounts=None if mounts is None else tuple(mounts),
        limits=limits_of(sandbox.get("limits", {})),
        require=frozenset(sandbox.get("require", ())),
    )


def network_rules(declared: Iterable[Mapping[str, Any]]) -> tuple[EgressRule, ...]:
    """The rules of the broker."""
    return tuple(
        EgressRule(
            tuple(each["hosts"]),
            tuple(each["ports"]),
            tuple(each.get("methods", ())),
            "deny" if each["deny"] else "allow",
        )
        for each in declared
    )


def limits_of(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Each limit that is given, in the units of `Limits`."""
    return {name: bytes_of(value) if name in SIZES else value for name, value in declared.items()}


def limits_within(declared: Iterable[str], most: Limits) -> dict[str, float]:
    """The most of each declared limit; infinite for one that has no bound."""
    bounds: dict[str, float | None] = {name: getattr(most, name) for name in declared}
    return {name: float("inf") if bound is None else bound for name, bound in bounds.items()}


def fence_facts(found: Narrowed) -> dict[str, Any]:
    """A fence as people are told of it, in the words of manifests. What it does not have is left out."""
    wanted, limits = found.request, found.request.limits
    bounds = {name: getattr(limits, name) for name in limits.__struct_fields__}
    facts: dict[str, Any] = {
        "backend": wanted.backend,
        "image": wanted.image,
        "workspace": wanted.workspace,
        "network": [*map(_rule_facts, wanted.network)],
        "within": [[*map(_rule_facts, rules)] for rules in found.within],
        "secrets": [{"secretRef": each.ref, "hosts": list(each.hosts)} for each in wanted.secrets],
        "mounts": [{"source": each.source, "target": each.target, "writable": each.writable} for each in wanted.mounts],
        "limits": {
            name: canonical(value) if name in SIZES else value for name, value in bounds.items() if value is not None
        },
        "require": sorted(wanted.require),
    }
    return {name: value for name, value in facts.items() if value}


def _rule_facts(rule: EgressRule) -> dict[str, Any]:
    methods = {"methods": list(rule.methods)} if rule.methods else {}
    return {"hosts": list(rule.hosts), "ports": list(rule.ports), **methods, "deny": rule.verdict == "deny"}
