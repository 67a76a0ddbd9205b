"""The hooks of an agent as its runs are pinned to them, so that a delegate has them wherever it is driven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from foliot.engine.hooks.base import Hook, OnFailure
from foliot.kernel.run.events import HookPoint
from foliot.kernel.run.spec import RunSpec

# In the extra of a spec: the hooks of its agent and of those above it, as `DeclaredHook`.
HOOKS: Final = "hooks"


class HttpTarget(Struct, frozen=True, omit_defaults=True):
    """The address of a hook over HTTP. `hosts` are those that its secret must be bound to; None for any."""

    url: str
    secret_ref: str = ""
    namespace: str = "default"
    hosts: tuple[str, ...] | None = None


class DeclaredHook(Struct, frozen=True, omit_defaults=True):
    """A hook of an agent as its runs are pinned to it: an object of Python, one of a plug-in, or an address.

    `agent` is the agent (`namespace/name`) that has the object; `plugin` is the name of the hook of a plug-in.
    """

    name: str
    points: tuple[HookPoint, ...]
    order: int = 100
    timeout: float = 5.0
    on_failure: OnFailure = "ignore"
    agent: str = ""
    plugin: str = ""
    http: HttpTarget | None = None


def declared_object(hook: Hook, agent: str) -> dict[str, Any]:
    """A hook of an Agent of Python, as its runs are pinned to it."""
    points = tuple(sorted(hook.points))
    return msgspec.to_builtins(
        DeclaredHook(hook.name, points, hook.order, float(hook.timeout), hook.on_failure, agent=agent)
    )


def with_hooks(spec: RunSpec, above: RunSpec | None = None, own: Sequence[Mapping[str, Any]] = ()) -> RunSpec:
    """The spec with the hooks of what stands above it, before its own. Each is asked once."""
    found = [*(above.extra.get(HOOKS, ()) if above is not None else ()), *spec.extra.get(HOOKS, ()), *own]
    if not found:
        return spec
    once = {msgspec.json.encode(each, order="sorted"): each for each in found}
    return msgspec.structs.replace(spec, extra={**spec.extra, HOOKS: list(once.values())})
