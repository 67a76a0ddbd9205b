"""The execution policy of a run: where its programs run, what they may reach, and who is asked before.

An Agent, a Task and the command that posts a task may each declare one. Of what is declared the strictest holds, field
by field (`strictest`), and is frozen into the run. What an agent leaves blank has its default before anybody else is
heard, what the others leave blank says nothing: so a task narrows what its agent declares and never widens it. A run
that another one starts is never wider than its parent.

    host               sandbox
    security           deny < allowlist < full            default allowlist
    ask                always < on-miss < off             default off
    runtime_type       gvisor < runc < process            no default of its own, see below
    workspace_access   none < ro < rw                     default rw
    network_enabled    false < true                       default true
    interactive        false < true                       default false, see below
    resources          the smaller of each                default none
    retry              fewer attempts, longer waits       default 2 and 0, where any is declared

**A blank `runtime_type` demands nothing.** In the class key it is written `gvisor`, which keys of other installations
have there. But a default that most machines cannot enforce would refuse all work on them: so where nobody names one,
the isolation that each tool declares is what holds. Whoever names one gets that one, or a refusal.

**A blank `interactive` leaves an external program what its agent declares.** Only a `false` that somebody wrote takes
its terminal and its questions away, so what is frozen keeps the two apart; `true` gives nothing that is not declared.

**A policy in which everything is blank, null or 0 was not declared** (`declares_nothing`), wherever it is written: a
manifest does not keep an empty object, so an empty policy cannot mean one thing there and another over HTTP.

Who enforces it: `tools/governance/execution.py` (security, ask), `tools/fences.py` (runtime, workspace, network and
resources), `engine/runners/gateway.py` (interactive), `store/queue/placement.py` (a worker takes only what it can
enforce).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

# Where programs can run. Only what stands here can be declared.
HOSTS: Final[Mapping[str, str]] = {"sandbox": "in a fence on the machine of the worker"}

# The words of each field, the strictest first.
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "host": tuple(HOSTS),
    "security": ("deny", "allowlist", "full"),
    "ask": ("always", "on-miss", "off"),
    "runtime_type": ("gvisor", "runc", "process"),
    "workspace_access": ("none", "ro", "rw"),
}
_DEFAULTS: Final[Mapping[str, str]] = {
    "host": "sandbox",
    "security": "allowlist",
    "ask": "off",
    "runtime_type": "gvisor",
    "workspace_access": "rw",
}
# The fence that each runtime_type stands for, the strongest first.
RUNTIMES: Final[Mapping[str, Literal["gvisor", "container", "process"]]] = {
    "gvisor": "gvisor",
    "runc": "container",
    "process": "process",
}
# The most of each resource, and what it is counted in.
RESOURCES: Final[Mapping[str, tuple[int, str]]] = {
    "cpu": (32_000, " millicores"),
    "memory": (137_438_953_472, " bytes"),
    "gpu": (8, ""),
}
MOST_ATTEMPTS: Final = 20
LONGEST_DELAY_MS: Final = 86_400_000
_ATTEMPTS: Final = 2


class ExecutionRetry(Struct, frozen=True, omit_defaults=True):
    """How often a run is tried in all, and how long is waited before the second time. 0 means the default."""

    max_attempts: int = 0
    delay_ms: int = 0


class ExecutionPolicy(Struct, frozen=True, omit_defaults=True):
    """The execution rules of a run. A blank field, or None, was not declared.

    `resources` are cpu (millicores), memory (bytes) and gpu (how many); 0 of one bounds nothing.
    """

    host: str = ""
    security: str = ""
    ask: str = ""
    runtime_type: str = ""
    workspace_access: str = ""
    network_enabled: bool | None = None
    interactive: bool | None = None
    resources: dict[str, Any] = {}
    retry: ExecutionRetry | None = None


class ExecutionResources(Struct, frozen=True):
    """The resources of a run: millicores, bytes, and a number of GPUs. 0 leaves one to the worker."""

    cpu: int = 0
    memory: int = 0
    gpu: int = 0


# --- checks ----------------------------------------------------------------------------------------------------------


def policy_problem(policy: ExecutionPolicy) -> tuple[tuple[str, ...], str] | None:
    """Return the first field that is wrong, as a path, and what is wrong with it; None for a good policy."""
    return next(_problems(policy), None)


def _problems(policy: ExecutionPolicy) -> Iterator[tuple[tuple[str, ...], str]]:
    for field in WORDS:
        if wrong := word_problem(field, getattr(policy, field)):
            yield (field,), wrong
    if policy.retry is not None:
        for field, value in msgspec.structs.asdict(policy.retry).items():
            if wrong := retry_problem(field, value):
                yield ("retry", field), wrong
    for name, value in policy.resources.items():
        if wrong := resource_problem(name, value):
            yield ("resources", name), wrong


def word_problem(field: str, word: str) -> str:
    """Return what is wrong with a word; nothing for a blank one, which is the default."""
    word = word.strip()
    return f"invalid {field}: {word}" if word and word not in WORDS[field] else ""


def retry_problem(field: str, value: int) -> str:
    """Return what is wrong with a number of `retry`, as it was given."""
    most = MOST_ATTEMPTS if field == "max_attempts" else LONGEST_DELAY_MS
    return "" if 0 <= value <= most else f"invalid retry.{field}: {value}"


def resource_problem(name: str, value: Any) -> str:
    """Return what is wrong with an amount of one resource."""
    known = RESOURCES.get(name)
    if known is None:
        return f"invalid resources: there is no {name!r}, expected {', '.join(RESOURCES)}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return f"invalid resources: {name} must be a number, got {json.dumps(value, default=str)}"
    most, unit = known
    if value < 0:
        return f"invalid resources: {name} must be non-negative, got {value}"
    return f"invalid resources: {name} exceeds maximum of {most}{unit}, got {value}" if value > most else ""


# --- normal form -----------------------------------------------------------------------------------------------------


def normalised(policy: ExecutionPolicy) -> ExecutionPolicy:
    """Fill in what is blank, but for `runtime_type` and a `retry` that nobody declared; see the head of this file."""
    words = {
        field: getattr(policy, field).strip() or ("" if field == "runtime_type" else _DEFAULTS[field])
        for field in WORDS
    }
    return replace(
        policy,
        **words,
        network_enabled=policy.network_enabled is not False,
        interactive=policy.interactive is True,
        resources=_amounts(policy),
        retry=None if policy.retry is None else retry_or_default(policy),
    )


def retry_or_default(policy: ExecutionPolicy | None) -> ExecutionRetry:
    """Return the retry rule of a policy, with what it leaves out: 2 attempts, no wait."""
    given = (policy.retry if policy is not None else None) or ExecutionRetry()
    attempts = given.max_attempts if given.max_attempts > 0 else _ATTEMPTS
    return ExecutionRetry(attempts, max(0, given.delay_ms))


def declares_nothing(policy: ExecutionPolicy) -> bool:
    """Whether no field of a policy says anything: it is as if it were not there."""
    return not (
        any(getattr(policy, field).strip() for field in WORDS)
        or policy.network_enabled is not None
        or policy.interactive is not None
        or any(policy.resources.values())
        or (policy.retry or ExecutionRetry()) != ExecutionRetry()
    )


def strictest(*declared: ExecutionPolicy | None) -> ExecutionPolicy | None:
    """Return the policy that holds under all of these; None when none of them was declared. Blank stays blank."""
    given = [policy for policy in declared if policy is not None and not declares_nothing(policy)]
    if not given:
        return None
    words = {
        field: _narrowest(order, [getattr(each, field).strip() for each in given]) for field, order in WORDS.items()
    }
    retries = [retry_or_default(each) for each in given if each.retry is not None]
    return ExecutionPolicy(
        **words,
        network_enabled=_agreed([each.network_enabled for each in given]),
        interactive=_agreed([each.interactive for each in given]),
        resources=_smallest([_amounts(each) for each in given]),
        retry=ExecutionRetry(min(each.max_attempts for each in retries), max(each.delay_ms for each in retries))
        if retries
        else None,
    )


def _narrowest(order: tuple[str, ...], given: list[str]) -> str:
    """The strictest word that was given. One that is unknown here, of a newer version, is stricter than any other."""
    said = [word for word in given if word]
    return min(said, key=lambda word: order.index(word) if word in order else -1, default="")


def _agreed(given: list[bool | None]) -> bool | None:
    said = [each for each in given if each is not None]
    return all(said) if said else None


def _amounts(policy: ExecutionPolicy) -> dict[str, Any]:
    """The amounts that bound something, as whole numbers."""
    found = to_run_execution_resources(policy)
    amounts: dict[str, int] = {} if found is None else msgspec.structs.asdict(found)
    return {name: amount for name, amount in amounts.items() if amount}


def _smallest(each: list[dict[str, Any]]) -> dict[str, Any]:
    names = sorted({name for amounts in each for name in amounts})
    return {name: min(amounts[name] for amounts in each if name in amounts) for name in names}


# --- conversions -----------------------------------------------------------------------------------------------------


def to_run_execution_type(policy: ExecutionPolicy | None) -> Literal["interactive", "background"]:
    """Return how the programs of a run are talked to: by a terminal, or not at all."""
    return "interactive" if policy is not None and policy.interactive else "background"


def to_run_execution_resources(policy: ExecutionPolicy | None) -> ExecutionResources | None:
    """Return the resources of a run as whole numbers; None when nothing is bounded. What is no number is left out."""
    given = policy.resources if policy is not None else {}
    amounts = {
        name: int(value)
        for name, value in given.items()
        if name in RESOURCES and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    return ExecutionResources(**amounts) if any(amounts.values()) else None


# --- execution class -------------------------------------------------------------------------------------------------

# The key of an execution class: runs that are alike in where and how they are done, and so fail together.
#
# It is the namespace, the agent, the lane and the normalised execution policy; not the model, the retries or the
# timeout. The same values give the same key in every process and version: numbers are written alike whatever type they
# came in.

PREFIX: Final = "execclass_"


def execution_class_key(
    workspace: str | int, agent: str | None = None, lane: str | None = None, policy: ExecutionPolicy | None = None
) -> str:
    """Return the key of the class. `workspace` is the namespace."""
    if policy is None:  # of every run that is queued, and again of every one that ends
        return _default_key(workspace, agent, lane)
    return _key(workspace, agent, lane, policy)


def _key(workspace: str | int, agent: str | None, lane: str | None, policy: ExecutionPolicy) -> str:
    word = {field: getattr(policy, field).strip() or _DEFAULTS[field] for field in WORDS}
    parts = (
        f"ws={workspace}",
        f"agent={_name(agent)}",
        f"lane={_name(lane)}",
        f"host={word['host']}",
        f"security={word['security']}",
        f"ask={word['ask']}",
        f"runtime={word['runtime_type']}",
        f"workspace_access={word['workspace_access']}",
        f"network={_truth(policy.network_enabled is not False)}",
        f"interactive={_truth(policy.interactive is True)}",
        f"resources={_resources(policy.resources)}",
    )
    # It names things and protects nothing: the first half of the digest is enough, and so is SHA-1.
    digest = hashlib.sha1("|".join(parts).encode(), usedforsecurity=False).digest()[:16]
    return PREFIX + digest.hex()


@lru_cache(maxsize=4096, typed=True)
def _default_key(workspace: str | int, agent: str | None, lane: str | None) -> str:
    return _key(workspace, agent, lane, ExecutionPolicy())


def _name(text: str | None) -> str:
    return (text or "").strip() or "_"


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _resources(resources: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={_value(resources[key])}" for key in sorted(resources))


def _value(value: Any) -> str:
    """A whole number is written without point or exponent, so that 2147483648 and 2147483648.0 are one class."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1:
        return str(int(value))
    return msgspec.json.encode(value).decode()


# --- outcome ---------------------------------------------------------------------------------------------------------

Outcome: TypeAlias = Literal["ok", "error", "timeout", "cancelled", "lost"]


def classify_execution_outcome(exit_code: int, error: str = "", reported: Outcome | None = None) -> Outcome:
    """Return how a program ended: as whoever ran it `reported`, and only without that by its code and what it said.

    `lost` is never guessed: it is for whoever knows that nobody saw the end.
    """
    if reported is not None:
        return reported
    said = error.strip().lower()
    if "timeout" in said:
        return "timeout"
    if "cancel" in said:
        return "cancelled"
    return "error" if exit_code != 0 or said else "ok"


def is_retryable_outcome(outcome: Outcome) -> bool:
    """Whether another attempt may follow: after failures that pass, never after success or a cancellation."""
    return outcome in ("error", "timeout", "lost")
