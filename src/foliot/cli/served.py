"""Runs of a server as the command line watches them: with the questions that local.py answers for this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from foliot.client.http import Http
from foliot.client.open import server_of
from foliot.client.remote import RemoteClient
from foliot.client.remote_work import RemoteRuns
from foliot.engine.driver.ids import new_run_id
from foliot.runtime.results import RunResult
from foliot.settings.settings import Settings


class ServedClient(RemoteClient):
    """The verbs on the server that the settings name."""

    @property
    def runs(self) -> ServedRuns:
        return ServedRuns(self._http)


class ServedRuns(RemoteRuns):
    """Runs that a server drives, whoever watches: none stops with this process."""

    drives_here: ClassVar = False

    def new_id(self) -> str:
        """Returns an id for a run that is about to be started."""
        return new_run_id(time.time())

    async def outcome(self, run_id: str) -> RunResult:
        """Returns how a run ended or what it waits for."""
        return (await self.get(run_id)).result

    async def attend(self, run_id: str) -> None:
        """Does nothing: the server resumes a run that waits for people or a budget as soon as it may go on."""

    async def follow_turns(self, tell: Callable[[], None]) -> None:
        """Does nothing: the server drives the turns of sessions."""

    async def is_taken_up(self, run_id: str, *, attended_by: str | None = None) -> bool:
        """Returns True: the server resumes every run that got a decision or an answer."""
        return True

    async def outermost(self, run_id: str) -> str:
        """Returns the run itself: the server goes on with those that started it."""
        return run_id


def open_server(settings: Settings) -> ServedClient:
    """Connects to the server that the settings name. Raises `UsageError`."""
    return ServedClient(Http(server_of(settings)))
