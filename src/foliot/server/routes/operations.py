"""Budgets as they stand, workers and their limits, and what holds for calls that no rule speaks of."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foliot.engine.audit.words import Act
from foliot.errors import InvalidInput
from foliot.kernel.identity import NOBODY
from foliot.runtime.answers import MOST_JUDGED, Fates, Simulation
from foliot.runtime.local.groups import LocalGroups
from foliot.server.audit import record
from foliot.server.auth.guard import new_router
from foliot.server.auth.identity import Caller
from foliot.server.context import Services
from foliot.server.http.bodies import form
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.names import MOST, Limit, Namespace, space
from foliot.server.http.parameters import Query
from foliot.server.http.responses import Json
from foliot.store.queue import limits as bounds
from foliot.tools.governance.judge import PolicyQuestion

router = new_router("operations")

MOST_AT_ONCE: Final = 1_000_000
Budget = Annotated[str | None, Query(max_length=253, description="Only this budget, and the runs that wait for it.")]


class Unlimited(msgspec.Struct, frozen=True):
    """The scope whose limit is removed."""

    scope: bounds.Scope
    name: str


class Mended(msgspec.Struct, frozen=True):
    """The class of runs that is begun again."""

    key: str


@router.get("/v1/budget-usage")
async def budgets(
    services: Services,
    namespace: Namespace = None,
    name: Budget = None,
    limit: Limit = MOST,
) -> Response:
    """Lists budgets: limit, spent, and left in the current windows."""
    where = space(namespace)
    return Json(await _operations(services).budgets.list(namespace=where, name=name or None, limit=min(limit, MOST)))


@router.get("/v1/policies/defaults")
async def rule_defaults(services: Services) -> Response:
    """Returns the defaults for calls that no resource names."""
    return Json(await _operations(services).policies.defaults())


@router.post("/v1/policies/explain")
async def explain(request: Request, services: Services, caller: Caller, namespace: Namespace = None) -> Response:
    """Judges a hypothetical tool call of an agent, by the rules of this server. Nothing is called.

    Without a user it is a call on behalf of whoever asks.
    """
    asked = await form(request, PolicyQuestion)
    return Json(await _operations(services, caller).policies.explain(asked, namespace=space(namespace)))


@router.post("/v1/policies/simulate")
async def simulate(request: Request, services: Services, caller: Caller, namespace: Namespace = None) -> Response:
    """Judges tool calls now and as if manifests were applied. Nothing is applied, nothing is called.

    A call without a user is one on behalf of whoever asks.
    """
    asked = await form(request, Simulation)
    if len(asked.calls) > MOST_JUDGED:
        raise InvalidInput(f"{len(asked.calls)} calls are too many", hint=f"at most {MOST_JUDGED} at once")
    judged = _operations(services, caller).policies.simulate(asked.manifests, asked.calls, namespace=space(namespace))
    return Json(Fates(await judged))


@router.get("/v1/limits")
async def limits(services: Services) -> Response:
    """How many runs may be at work at once."""
    return Json({"limits": await _operations(services).workers.limits()})


@router.post("/v1/limits")
async def set_limit(request: Request, services: Services, caller: Caller) -> Response:
    """Let at most so many runs of a namespace, an agent or a lane be at work at once."""
    limit = await form(request, bounds.Limit)
    if limit.max_running > MOST_AT_ONCE:
        raise InvalidInput(f"{limit.max_running} at once is no limit", hint=f"at most {MOST_AT_ONCE:,}; or clear it")
    await _operations(services).workers.set_limit(limit)
    await _record(services, caller, request, "limited", f"{limit.scope} {limit.name}", most=limit.max_running)
    return await limits(services)


@router.post("/v1/limits/clear")
async def clear_limit(request: Request, services: Services, caller: Caller) -> Response:
    """Lift a limit."""
    lifted = await form(request, Unlimited)
    await _operations(services).workers.clear_limit(lifted.scope, lifted.name)
    await _record(services, caller, request, "unlimited", f"{lifted.scope} {lifted.name}")
    return await limits(services)


@router.get("/v1/run-classes")
async def classes(services: Services) -> Response:
    """Kinds of runs of which the last ones failed."""
    return Json({"classes": await _operations(services).workers.failing_classes()})


@router.post("/v1/run-classes/mend")
async def mend(request: Request, services: Services, caller: Caller) -> Response:
    """Begin runs of a class again that was held back."""
    mended = await form(request, Mended)
    await _operations(services).workers.mend_class(mended.key)
    await _record(services, caller, request, "mended", mended.key)
    return await classes(services)


def _operations(services: Services, caller: Caller | None = None) -> LocalGroups:
    identity = NOBODY if caller is None else caller.acting_for_self("http")
    return LocalGroups(services.runtime.inside, caller=identity)


async def _record(services: Services, caller: Caller, request: Request, verb: Act, name: str, **more: Any) -> None:
    await record(services.runtime, caller, verb, "Work", "", name, request=request.scope[REQUEST_ID], **more)
