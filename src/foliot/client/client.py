"""`foliot.Client`: a server from Python.

    async with Client("https://foliot.example", token="fol_…") as client:
        accepted = await client.tasks.submit(Command("system", "report", message="Three lines on clocks"))
        async for batch in client.tasks.follow(accepted.task.name):
            …

Its verbs are those of `foliot.Runtime`: see runtime/groups/groups.py.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from foliot.client.http import Http, Server
from foliot.client.open import server_of
from foliot.client.remote import RemoteClient
from foliot.client.remote_work import declared_name
from foliot.engine.live.hub import Recorded
from foliot.kernel.run.events import RunWaiting
from foliot.runtime.groups.groups import Conveniences
from foliot.settings.settings import load_settings

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from foliot.engine.live.hub import Live
    from foliot.kernel.messages import Message
    from foliot.runtime.agent import Agent
    from foliot.runtime.answers import Input
    from foliot.runtime.results import RunResult, Value


class Client(RemoteClient, Conveniences):
    """A connection to a server. Use it with `async with`, or `close` it.

    Without `server`, it is the one of `FOLIOT_SERVER`, with the token of `FOLIOT_TOKEN` or `FOLIOT_TOKEN_FILE`; a token
    of the environment is not sent to a server that is named here. A server on this machine needs no token when it has
    the same `home`, by default that of the settings. `ca` is whom to trust, `cert` and `cert_key` a certificate of
    one's own. `timeout` is for one request, `patience` for a stream that has lost its server.
    Raises `UsageError`.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        token: str | None = None,
        home: str | os.PathLike[str] | None = None,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        cert_key: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
        patience: float = 60.0,
    ) -> None:
        settings = load_settings()
        known = server_of(settings) if server is None else Server(server)
        super().__init__(
            Http(
                Server(
                    known.url,
                    token or known.token,
                    home=_path(home) or settings.home,
                    ca=_path(ca) or known.ca,
                    cert=_path(cert) or known.cert,
                    cert_key=_path(cert_key) or known.cert_key,
                    timeout=timeout,
                    patience=patience,
                )
            )
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

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
        started = await self.runs.start(
            agent, input, namespace=namespace, run_id=run_id, labels=labels, user=user, history=history, after=after
        )
        return await self._result(started.id, check)

    async def stream(
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
        started = await self.runs.start(
            agent, input, namespace=namespace, run_id=run_id, labels=labels, user=user, history=history, after=after
        )
        async with aclosing(self.runs.watch(started.id)) as live:
            async for item in live:
                yield item
                waits = isinstance(item, Recorded) and isinstance(item.event, RunWaiting)
                if waits and (await self.runs.get(started.id)).is_settled:
                    return

    async def resume(self, run_id: str, *, agent: Agent[Value] | None = None, check: bool = True) -> RunResult[Value]:
        if agent is not None:
            declared_name(agent)
        await self.runs.resume(run_id)
        return await self._result(run_id, check)

    async def _result(self, run_id: str, check: bool) -> RunResult:
        await self.runs.wait(run_id)
        result = (await self.runs.get(run_id, messages=True)).result
        return result.check() if check else result


def _path(given: str | os.PathLike[str] | None) -> Path | None:
    return None if given is None else Path(given)
