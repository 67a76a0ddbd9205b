"""The key of an execution class: runs that are alike in where and how they are done, and so fail together.

It is the namespace, the agent, the lane and the normalised execution policy; not the model, the retries or the timeout.
The same values give the same key in every process and version: numbers are written alike whatever type they came in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

PREFIX = "execclass_"


class ExecutionPolicy(Struct, frozen=True, omit_defaults=True):
    """Where a run is done and what it may do there. A blank field means its default.

    `resources` are cpu (millicores), memory (bytes) and gpu (how many), and whatever else a host understands.
    """

    host: str = "sandbox"
    security: str = "allowlist"
    ask: str = "off"
    runtime_type: str = "gvisor"
    workspace_access: str = "rw"
    network_enabled: bool = True
    interactive: bool = False
    resources: dict[str, Any] = {}


def execution_class_key(
    workspace: str | int, agent: str | None = None, lane: str | None = None, policy: ExecutionPolicy | None = None
) -> str:
    """The key of the class. `workspace` is the namespace."""
    if policy is None:  # of every run that is queued, and again of every one that ends
        return _default_key(workspace, agent, lane)
    return _key(workspace, agent, lane, policy)


def _key(workspace: str | int, agent: str | None, lane: str | None, policy: ExecutionPolicy) -> str:
    default = ExecutionPolicy()
    parts = (
        f"ws={workspace}",
        f"agent={_name(agent)}",
        f"lane={_name(lane)}",
        f"host={policy.host or default.host}",
        f"security={policy.security or default.security}",
        f"ask={policy.ask or default.ask}",
        f"runtime={policy.runtime_type or default.runtime_type}",
        f"workspace_access={policy.workspace_access or default.workspace_access}",
        f"network={_truth(policy.network_enabled)}",
        f"interactive={_truth(policy.interactive)}",
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
