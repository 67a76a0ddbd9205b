"""Tools of the type `external`: a service that speaks contract v1 over HTTP.

It receives the whole envelope of the call and must answer with one. It may stream: pieces of output first, the response
last (`stream.py`).
"""

from __future__ import annotations

from typing import Any

from foliot.tools.auth import ToolAuth
from foliot.tools.backends.answers import contract_value
from foliot.tools.backends.exchange import Exchange, check_deadline, endpoint_of, explained
from foliot.tools.base import Invocation, OnOutput, ToolDefinition
from foliot.tools.contract import VERSION, encode_request, request_id, request_of
from foliot.tools.outbound.client import OutboundClient


class ExternalTool:
    def __init__(self, definition: ToolDefinition, client: OutboundClient, auth: ToolAuth) -> None:
        self._definition = definition
        self._exchange = Exchange(definition, client, auth)

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        masker, name = self._exchange.masker, self._definition.name
        with explained(masker, tool=name, isolation_mode="external"):
            endpoint = endpoint_of(self._definition)
            check_deadline(call)
            id = request_id("ext", call)
            body = encode_request(request_of(call, self._definition, mode="external", id=id))
            async with self._exchange.send("POST", endpoint, headers=contract_headers(call), body=body) as answer:
                return await contract_value(answer, masker, on_output, id)


def contract_headers(call: Invocation) -> dict[str, str]:
    """The headers of a request that carries an envelope."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, application/x-ndjson;q=0.9, text/event-stream;q=0.8",
        "X-Tool-Contract-Version": VERSION,
    }
    if call.idempotency_key:
        headers["Idempotency-Key"] = call.idempotency_key
    if call.trace:
        headers["traceparent"] = call.trace
    return headers
