"""Tools of the type `webhook-callback`: asked once, they answer when they are done.

The service gets the envelope of the call. It may answer at once (200), or say that it works on it (202) and then either
push the result to the signed address in `callback_url`, or be asked for it: GET <endpoint>/<request id>. Whichever
comes first is the result. A service that was told where to push need not answer such questions: what it says to them,
but for a result, ends nothing. How long to wait is decided around this: the call is cancelled when its time is over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit

from msgspec import structs

from foliot.stopping import stop_tasks
from foliot.tools.auth import ToolAuth
from foliot.tools.backends.callbacks import DEFAULT_LIFE, Callbacks
from foliot.tools.backends.exchange import Exchange, check_deadline, endpoint_of, explained, retry_after
from foliot.tools.backends.external import contract_headers
from foliot.tools.base import Invocation, OnOutput, ToolDefinition, ToolError, ToolTimeout, ToolUnreachable
from foliot.tools.contract import (
    PENDING,
    ToolResponse,
    check_request_id,
    decode_response,
    encode_request,
    request_id,
    request_of,
    result_of,
)
from foliot.tools.outbound.client import Answer, OutboundClient

POLL_INTERVAL: Final = 2.0
SLOWEST_POLL: Final = 60.0
MOST_UNKNOWN: Final = 4
_BUSY: Final = frozenset({"429", "503"})


class WebhookCallbackTool:
    def __init__(
        self,
        definition: ToolDefinition,
        client: OutboundClient,
        auth: ToolAuth,
        callbacks: Callbacks,
        *,
        poll_interval: float = POLL_INTERVAL,
    ) -> None:
        self._definition = definition
        self._exchange = Exchange(definition, client, auth)
        self._callbacks = callbacks
        self._interval = poll_interval

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        masker = self._exchange.masker
        with explained(masker, tool=self._definition.name, isolation_mode="webhook-callback"):
            endpoint = endpoint_of(self._definition)
            check_deadline(call)
            id = request_id("wh", call)
            # Before the request goes out: a quick service may push before its 202 has arrived.
            async with self._callbacks.waiting(id, until=self._until(call)) as (address, pushed):
                response, wait = await self._submit(call, endpoint, id, address)
                if response is None:
                    response = await self._wait(endpoint, id, pushed, wait)
            return masker.mask_value(result_of(response))

    def _until(self, call: Invocation) -> float:
        """Return how long anybody may wait for the result."""
        if call.deadline is not None:
            return call.deadline
        return time.time() + max(self._definition.timeout or 0.0, DEFAULT_LIFE)

    async def _submit(
        self, call: Invocation, endpoint: str, id: str, address: str
    ) -> tuple[ToolResponse | None, float]:
        request = request_of(call, self._definition, mode="webhook-callback", id=id)
        request = structs.replace(request, callback_url=address)
        headers = contract_headers(call)
        async with self._exchange.send("POST", endpoint, headers=headers, body=encode_request(request)) as answer:
            ready = await _finished(answer, id) if answer.status == 200 else None
            return ready, self._pause(answer.headers)

    async def _wait(self, endpoint: str, id: str, pushed: asyncio.Future[ToolResponse], wait: float) -> ToolResponse:
        """Until a push or a poll brings the response. A poll under way is given up when the push comes."""
        place = _below(endpoint, id)
        refusals = 0
        while True:
            done, _ = await asyncio.wait({pushed}, timeout=wait)
            if done:
                return pushed.result()
            poll = asyncio.ensure_future(self._poll(place, id))
            try:
                await asyncio.wait({pushed, poll}, return_when=asyncio.FIRST_COMPLETED)
                if pushed.done():
                    return pushed.result()
                response, wait = await poll
            except ToolError as error:
                refusals += 1
                if not self._may_still_come(error, refusals):
                    raise
                response, wait = None, min(self._interval * 2**refusals, SLOWEST_POLL)
            finally:
                await stop_tasks(poll)
            if response is not None:
                return response

    def _may_still_come(self, error: ToolError, refusals: int) -> bool:
        """Whether a refused poll leaves hope: for a push always, else while the service may not know of it yet."""
        status = error.details.get("http_status")
        if status is None:
            return False  # it did answer, with something that is no result
        return self._callbacks.announced or (status == "404" and refusals <= MOST_UNKNOWN)

    async def _poll(self, place: str, id: str) -> tuple[ToolResponse | None, float]:
        """The response if it is there, and how long to wait before asking again. Raises what a refusal means."""
        try:
            async with self._exchange.send("GET", place, headers={"Accept": "application/json"}) as answer:
                if answer.status in (202, 204):
                    return None, self._pause(answer.headers)
                return await _finished(answer, id), self._pause(answer.headers)
        except (ToolUnreachable, ToolTimeout):
            return None, self._interval  # the result may still be on its way
        except ToolError as error:
            if error.retry_after is None or error.details.get("http_status") not in _BUSY:
                raise
            return None, max(error.retry_after, self._interval)

    def _pause(self, headers: Mapping[str, str]) -> float:
        asked = retry_after(headers)
        return self._interval if asked is None else asked


async def _finished(answer: Answer, id: str) -> ToolResponse | None:
    """The response in an answer, None while it says that it is not ready."""
    response = decode_response(await answer.read())
    check_request_id(response, id)
    return None if response.status in PENDING else response


def _below(endpoint: str, id: str) -> str:
    """The address of one request below that of the tool; a query stays behind it."""
    parts = urlsplit(endpoint)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{quote(id, safe='')}", fragment="").geturl()
