"""Tools of the type `http`: any web API. `http_request.py` says how arguments become a request.

The answer is given to the model as it is. A server may answer with a contract envelope instead, marked by its
`tool_contract_version`; then the envelope decides what the result or the error is.
"""

from __future__ import annotations

from typing import Any

from foliot.tools.auth import ToolAuth
from foliot.tools.backends.answers import plain_value
from foliot.tools.backends.exchange import Exchange, check_deadline, endpoint_of, explained
from foliot.tools.backends.http_request import RequestTemplate
from foliot.tools.base import Invocation, OnOutput, ToolDefinition
from foliot.tools.outbound.client import OutboundClient


class HttpTool:
    """One request for each call. Raises what `ToolError`s its status means; see `exchange.py`."""

    def __init__(self, definition: ToolDefinition, client: OutboundClient, auth: ToolAuth) -> None:
        self._definition = definition
        self._template = RequestTemplate(definition)
        self._exchange = Exchange(definition, client, auth)

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        masker = self._exchange.masker
        with explained(masker, tool=self._definition.name):
            endpoint_of(self._definition)
            check_deadline(call)
            request = self._template.fill(call.arguments)
            headers = {"Accept": "application/json, text/*;q=0.9, */*;q=0.8", **request.headers}
            if call.idempotency_key:
                headers["Idempotency-Key"] = call.idempotency_key
            if call.trace:
                headers["traceparent"] = call.trace
            async with self._exchange.send(request.method, request.url, headers=headers, body=request.body) as answer:
                return await plain_value(answer, masker, on_output)
