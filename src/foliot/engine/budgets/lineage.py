"""Who pays for a run, by what is stored of it and of the runs that delegated to it."""

from __future__ import annotations

from typing import Final

from foliot.engine.budgets.declared import Payer
from foliot.errors import NotFound
from foliot.store.runs import Journal, RunInfo

# More than delegation allows. A chain that is longer is a circle in a damaged store.
LONGEST: Final = 50


async def payer_of(journal: Journal, run_id: str, *, namespace: str, agent: str, user: str = "") -> Payer:
    """The payer of a run. Labels are the run's own and those it has inherited.

    `user` is that of the run's identity, which delegates have from the run above them. Labels say nothing of it: they
    can be chosen.
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
    return Payer(namespace, run_id if top is None else top.id, tuple(agents), user, labels)
