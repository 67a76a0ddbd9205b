"""What the parts of a remote client share: the connection, and answers read into their shapes."""

from __future__ import annotations

from typing import Any

import msgspec

from foliot.client import wire
from foliot.client.http import Http, new_key


class Asking:
    """A part of a client on a server."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def _get(self, path: str, shape: type[wire.T], **params: Any) -> wire.T:
        answer = await self._http.ask("GET", path, params=params)
        return wire.read(answer.body, shape)

    async def _post(
        self,
        path: str,
        body: Any,
        shape: type[wire.T],
        *,
        repeatable: bool = False,
        timeout: float | None = None,
        **params: Any,
    ) -> wire.T:
        """What may not be done twice is given a key: then it is asked again as well, and done once."""
        headers = None if repeatable else new_key()
        data = msgspec.json.encode(body)
        answer = await self._http.ask(
            "POST", path, params=params, body=data, headers=headers, repeatable=True, timeout=timeout
        )
        return wire.read(answer.body, shape)
