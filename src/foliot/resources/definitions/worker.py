"""Worker: a process that takes tasks. Workers register themselves."""

from __future__ import annotations

from pydantic import Field

from foliot.resources.base import Model, Resource, Status
from foliot.resources.fields import Count, Whole, WordList


class Capabilities(Model):
    """The capabilities of the worker."""

    gpu: bool = Field(default=False, description="Whether it has a GPU.")
    supported_models: WordList = Field(default_factory=list[str], description="The models it serves; all when empty.")
    isolation: WordList = Field(
        default_factory=list[str], description="What it can enforce around programs: process, process+memory, gvisor, …"
    )


class WorkerSpec(Model):
    """The offer of the worker."""

    region: str = Field(default="", description="Where it runs.")
    capabilities: Capabilities = Field(default_factory=Capabilities, description="What it has.")
    max_concurrent_tasks: Count = Field(default=1, description="Tasks at the same time; 0 means 1.")

    def complete(self) -> None:
        self.max_concurrent_tasks = self.max_concurrent_tasks or 1


class WorkerStatus(Status):
    """How the worker is."""

    last_heartbeat: str = Field(default="", description="Its last sign of life.")
    current_tasks: Whole | None = Field(default=None, description="Tasks it has now.")


class Worker(Resource[WorkerSpec, WorkerStatus]):
    """A process that takes tasks."""
