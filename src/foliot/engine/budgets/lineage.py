"""Who pays for a run, by what is stored of it and of the runs that delegated to it."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from foliot.engine.budgets.declared import Payer
from foliot.errors import NotFound
from foliot.kernel.spec import RunSpec, decode_spec
from foliot.store.runs import USER_LABEL, Journal, RunInfo

# More than delegation allows. A chain that is longer is a circle in a damaged store.
LONGEST: Final = 50
USER: Final = "user"


async def payer_of(journal: Journal, run_id: str, *, namespace: str, agent: str, user: str = "") -> Payer:
    """The payer of a run. Labels are the run's own and those it has inherited; the user is whoever began it all.

    A run that is not stored (a call by hand) is paid by who is named.
    """
    agents = [agent] if agent else []
    labels: dict[str, str] = {}
    top: RunInfo | None = None
    above: str | None = run_id
    for _ in range(LONGEST):
        if not above:
            break
        try:
            top = await journal.get(above)
        except NotFound:
            break
        if top.id != run_id:
            agents.append(top.agent)
        labels = {**top.labels, **labels}
        above = top.parent if top.parent_seq is None else None  # a fork is nobody's delegate
    user = user or labels.get(USER_LABEL, "")
    if not user and top is not None and top.id != run_id:
        user = user_of(decode_spec(await journal.get_blob(top.spec)))
    return Payer(namespace, run_id if top is None else top.id, tuple(agents), user, labels)


def begun_for(spec: RunSpec, user: str) -> RunSpec:
    """The spec of a run that is begun for this user."""
    return replace(spec, extra={**spec.extra, USER: user})


def user_of(spec: RunSpec) -> str:
    """Who a run was begun for, as far as anybody knows."""
    return str(spec.extra.get(USER, ""))
