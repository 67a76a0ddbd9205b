"""The work that Task resources stand for, on the runtime of this server."""

from __future__ import annotations

from contextlib import nullcontext

from foliot.client.declared_work import DeclaredWork
from foliot.runtime import Runtime


def declared_work(runtime: Runtime) -> DeclaredWork:
    """It accepts and ends work on the runtime, which is open already, and stays so."""
    return DeclaredWork(runtime.tasking.database, lambda: nullcontext(runtime.tasking.tasks))
