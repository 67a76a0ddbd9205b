"""`foliot.Client`: a server from Python.

    async with Client("https://foliot.example", token="fol_…") as client:
        accepted = await client.submit(Command("system", "report", message="Three lines on clocks"))
        async for batch in client.follow("default", accepted.task.name):
            …

It has the verbs of `Client` in base.py (resources) and of `Work` in work.py (tasks, runs, approvals).
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from foliot.client.http import Http, Server
from foliot.client.open import server_of
from foliot.client.remote import RemoteClient
from foliot.settings.settings import load_settings


class Client(RemoteClient):
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

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.close()


def _path(given: str | os.PathLike[str] | None) -> Path | None:
    return None if given is None else Path(given)
