"""`foliot.Runtime`: agents run in this process, durably.

    async with Runtime() as rt:
        result = await rt.run(agent, "What is the weather in Oslo?")

A runtime drives runs on the store it opened. Whatever kills the process, `resume` goes on from the journal: in the same
process, another one, or `foliot resume`. Its verbs are those of `foliot.Client`: see groups/groups.py.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foliot.kernel.identity import Identity
from foliot.resources.names import check_labels
from foliot.runtime.agent import within
from foliot.runtime.groups.groups import Conveniences
from foliot.runtime.inside import Inside
from foliot.runtime.local.groups import LocalGroups

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from foliot.engine.definition.endpoints import RunModels
    from foliot.engine.hooks.base import Hook
    from foliot.engine.live.hub import Live
    from foliot.engine.plugins import Plugins
    from foliot.kernel.messages import Message
    from foliot.runtime.agent import Agent
    from foliot.runtime.answers import Input
    from foliot.runtime.results import RunResult, Value
    from foliot.settings.settings import Settings
    from foliot.tools.base import Tool


class Runtime(LocalGroups, Conveniences):
    """Runs agents durably. Open it with `async with`.

    `store` is a path or URL as in `FOLIOT_STORE`, by default the one that the settings name; `"memory:"` keeps nothing.
    `tools` are functions or tools that agents can use by name; `workspace` is the folder that their file tools may use.
    `hooks` are asked about what every run does that is driven here. With `allow_missing` an agent made in Python runs
    although it names what is not there, and its runs tell so.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | None = None,
        *,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        settings: Settings | None = None,
        workspace: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] | None = None,
        lease_seconds: float | None = None,
        store_wait: float = 0.0,
        hooks: Iterable[Hook] = (),
        allow_missing: bool = False,
    ) -> None:
        """`lease_seconds` is by default the setting `lease`; `store_wait` is how long to wait for a store that is away,
        unless the setting of this name says. `clock` is for tests; by default times are those of the store."""
        super().__init__(
            Inside(
                store,
                tools=tools,
                settings=settings,
                workspace=workspace,
                clock=clock,
                lease_seconds=lease_seconds,
                store_wait=store_wait,
                hooks=hooks,
                allow_missing=allow_missing,
            )
        )

    @property
    def models(self) -> RunModels:
        """Embeddings, rankings and transcripts, at the endpoints that agents ask for answers. Only in this process."""
        return self.inside.models

    @property
    def plugins(self) -> Plugins:
        """The plug-ins that are enabled here: list them, enable others, load them anew. Only in this process."""
        return self.inside.plugins

    async def __aenter__(self) -> Self:
        await self.inside.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.inside.close()

    async def run(
        self,
        agent: Agent[Value] | str,
        input: Input,
        *,
        namespace: str = "default",
        run_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        user: str = "",
        history: Sequence[Message] = (),
        after: str = "",
        check: bool = True,
    ) -> RunResult[Value]:
        check_labels(labels or {})
        inside, agent = self.inside, _within(agent, namespace)
        run_id = inside.new_run_id() if run_id is None else run_id
        # As `Inside.run` does, without a frame of its own: it would be there, and be passed at every step, in all runs.
        driver = await inside.started(
            agent,
            input,
            run_id=run_id,
            labels=labels,
            identity=Identity(user, via="python"),
            history=history,
            after=after,
        )
        if driver is None:
            return await inside.resume(run_id, check=check)
        return await inside.at_rest(await inside.runs.drive(driver), check)

    def stream(
        self,
        agent: Agent | str,
        input: Input,
        *,
        namespace: str = "default",
        run_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        user: str = "",
        history: Sequence[Message] = (),
        after: str = "",
    ) -> AsyncGenerator[Live]:
        return self.inside.stream(
            _within(agent, namespace), input, run_id=run_id, labels=labels, user=user, history=history, after=after
        )

    async def resume(self, run_id: str, *, agent: Agent[Value] | None = None, check: bool = True) -> RunResult[Value]:
        return await self.inside.resume(run_id, agent=agent, check=check)


def _within(agent: Agent[Value] | str, namespace: str) -> Agent[Value] | str:
    """The agent as the engine takes it: a name says in which namespace."""
    return within(agent, namespace)
