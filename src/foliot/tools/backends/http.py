"""From a call's arguments to the request that an `http` tool makes.

    endpoint: https://api.example/users/{id}     {name} stands for an argument, escaped; never in the host. One name of
                                                 the path; {+name} may hold slashes, which are sent as %2F
    http:
      method: PATCH                              POST when not said
      headers: {Accept-Language: "{lang}"}       a header or query value whose argument is missing is left out
      query: {verbose: "true"}
      body: json                                 or form, or none: what is left of the arguments goes into the query

Arguments that no template uses make the body. A model writes arguments, so they can fill a place in the path but never
change where it leads: no other host, no slash, no `..`, no second header, no second value for what the query says.
An escaped slash is one too: most servers undo escapes before they look where a path leads, and some do it twice.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast
from unicodedata import normalize
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec
from msgspec import structs

from foliot.common.cancellation import stop_tasks
from foliot.common.waits import Waits
from foliot.kernel.backoff import backoff
from foliot.resources.command_template import ARGUMENT_PLACE
from foliot.tools.backends.callbacks import DEFAULT_LIFE, Callbacks
from foliot.tools.backends.exchange import (
    ToolExchange,
    check_deadline,
    contract_value,
    endpoint_of,
    explained,
    plain_value,
    retry_after,
)
from foliot.tools.base import (
    Invocation,
    OnOutput,
    Tool,
    ToolArgumentsInvalid,
    ToolDefinition,
    ToolError,
    ToolPolicyInvalid,
    ToolTimeout,
    ToolUnreachable,
    before_effect,
)
from foliot.tools.contract import (
    PENDING,
    VERSION,
    ToolResponse,
    check_request_id,
    decode_response,
    encode_request,
    request_id,
    request_of,
    result_of,
)
from foliot.tools.outbound.client import OutboundAnswer, OutboundClient
from foliot.tools.outbound.guard import Guard, Outbound
from foliot.tools.secrets.auth import CallAuth, TokenCache
from foliot.tools.secrets.secrets import Secrets

_UNDONE: Final = 3  # how often escapes in an argument are undone to see what it could be taken for
_ADDRESS: Final = re.compile(r"(?P<origin>https?://[^/?#]*)(?P<path>[^?#]*)(\?(?P<query>[^#]*))?(#.*)?", re.IGNORECASE)
_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE"})

_encode = msgspec.json.Encoder(enc_hook=str).encode


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None


class RequestTemplate:
    """The request of one tool, but for its arguments."""

    def __init__(self, definition: ToolDefinition) -> None:
        options = cast("Mapping[str, Any]", definition.options.get("http") or {})
        self._tool = definition.name
        self._address = _ADDRESS.fullmatch(definition.endpoint.strip())
        self._method = str(options.get("method") or "POST").upper()
        self._headers: Mapping[str, str] = options.get("headers") or {}
        self._query: Mapping[str, str] = options.get("query") or {}
        self._body = options.get("body") or ("none" if self._method in _BODILESS else "json")
        templates = (definition.endpoint, *self._headers.values(), *self._query.values())
        self._used = frozenset(name for template in templates for name in ARGUMENT_PLACE.findall(template))
        written = self._address["query"] if self._address else None
        self._said = {*self._query, *(name for name, _ in parse_qsl(written or "", keep_blank_values=True))}

    def fill(self, arguments: Mapping[str, Any]) -> PreparedRequest:
        """Raises `ToolArgumentsInvalid` for arguments that do not fit, `ToolPolicyInvalid` for an unusable endpoint."""
        url, headers = self._url(arguments), self._filled_headers(arguments)
        query = [pair for name, template in self._query.items() for pair in _pairs(name, template, arguments)]
        rest = {name: value for name, value in arguments.items() if name not in self._used}
        body: bytes | None = None
        if self._body == "json":
            body = _encode(rest)
            headers = {"Content-Type": "application/json", **headers}
        elif self._body == "form":
            body = urlencode([pair for item in rest.items() for pair in _spread(*item)]).encode()
            headers = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        else:
            if twice := sorted(self._said & rest.keys()):
                raise ToolArgumentsInvalid(f"tool {self._tool!r} itself says {', '.join(twice)}", field=twice[0])
            query += [pair for item in rest.items() for pair in _spread(*item)]
        if query:
            url += ("&" if "?" in url else "?") + urlencode(query, quote_via=quote)
        return PreparedRequest(self._method, url, headers, body)

    def _url(self, arguments: Mapping[str, Any]) -> str:
        found = self._address
        if found is None:
            raise ToolPolicyInvalid(f"tool {self._tool!r} has no endpoint that can be called", tool=self._tool)
        if "{" in found["origin"]:
            raise ToolPolicyInvalid(f"the host of tool {self._tool!r} cannot come from arguments", tool=self._tool)
        path = "/".join(self._segment(segment, arguments) for segment in found["path"].split("/"))
        query = "" if found["query"] is None else "?" + self._escaped(found["query"], arguments)
        return found["origin"] + path + query

    def _segment(self, template: str, arguments: Mapping[str, Any]) -> str:
        """One name of the path. Raises `ToolArgumentsInvalid` when what fills it is more, or none."""
        segment = self._escaped(template, arguments)
        if segment == template:
            return segment
        for place in ARGUMENT_PLACE.finditer(template):
            slashes = place[0].startswith("{+")
            given = _text(arguments[place[1]])
            if _leads_elsewhere(given if place[0] == template else f"x{given}", slashes=slashes):
                may = "" if slashes else f"; `{{+{place[1]}}}` in the endpoint lets it hold slashes"
                raise ToolArgumentsInvalid(
                    f"{place[1]} would change where a call of tool {self._tool!r} leads",
                    hint=f"give one name{may}",
                    field=place[1],
                )
        if _leads_elsewhere(unquote(segment), slashes=True):
            names = ", ".join(ARGUMENT_PLACE.findall(template))
            raise ToolArgumentsInvalid(f"{names} would change the path of tool {self._tool!r}", field=names)
        return segment

    def _escaped(self, template: str, arguments: Mapping[str, Any]) -> str:
        def value(match: re.Match[str]) -> str:
            given = arguments.get(match[1])
            if given is None or isinstance(given, list | dict):
                raise ToolArgumentsInvalid(
                    f"tool {self._tool!r} needs {match[1]} as a single value for its address", field=match[1]
                )
            return quote(_text(given), safe="")

        return ARGUMENT_PLACE.sub(value, template)

    def _filled_headers(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        headers: dict[str, str] = {}
        for name, template in self._headers.items():
            value = _fill(template, arguments)
            if value is None:
                continue
            if not value.isprintable():
                raise ToolArgumentsInvalid(f"an argument cannot be sent in the header {name}", field=name)
            headers[name] = value
        return headers


def _leads_elsewhere(text: str, *, slashes: bool) -> bool:
    """Whether a server may take it for something else than one name (with `slashes`, several) of a path."""
    for _ in range(_UNDONE):
        for seen in (text,) if text.isascii() else (text, _as_ascii(text)):
            names = seen.replace("\\", "/").split("/")
            if len(names) > 1 and (not slashes or "\\" in seen):
                return True
            if any(name.partition(";")[0].strip() in ("", ".", "..") for name in names) or not seen.isprintable():
                return True
        bare = unquote(text, errors="replace")
        if bare.count("\ufffd") > text.count("\ufffd"):  # bytes that are no UTF-8: old servers read %c0%af as a slash
            return True
        text = bare
    return False


def _as_ascii(text: str) -> str:
    """A text as servers read it that make plain letters of wide and small ones: a wide slash is a slash there."""
    return "".join(sign for sign in normalize("NFKC", text) if sign.isascii()) or "x"


def _fill(template: str, arguments: Mapping[str, Any]) -> str | None:
    """The template with its arguments; None when one is missing."""
    if any(arguments.get(name) is None for name in ARGUMENT_PLACE.findall(template)):
        return None
    return ARGUMENT_PLACE.sub(lambda match: _text(arguments[match[1]]), template)


def _pairs(name: str, template: str, arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    alone = ARGUMENT_PLACE.fullmatch(template)
    if alone is not None:
        return _spread(name, arguments.get(alone[1]))
    value = _fill(template, arguments)
    return [] if value is None else [(name, value)]


def _spread(name: str, value: Any) -> list[tuple[str, str]]:
    """A list is its name several times; what is missing is not there at all."""
    if value is None:
        return []
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [(name, _text(item)) for item in values if item is not None]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _encode(value).decode()


# --- http ------------------------------------------------------------------------------------------------------------

# Tools of the type `http`: any web API. `RequestTemplate` says how arguments become a request.
#
# The answer is given to the model as it is. A server may answer with a contract envelope instead, marked by its
# `tool_contract_version`; then the envelope decides what the result or the error is.


class HttpTool:
    """One request for each call. Raises what `ToolError`s its status means; see `exchange.py`."""

    def __init__(self, definition: ToolDefinition, client: OutboundClient, auth: CallAuth) -> None:
        self._definition = definition
        self._template = RequestTemplate(definition)
        self._exchange = ToolExchange(definition, client, auth)

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        masker = self._exchange.masker
        with explained(masker, tool=self._definition.name):
            with before_effect():
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


# --- external --------------------------------------------------------------------------------------------------------

# Tools of the type `external`: a service that speaks contract v1 over HTTP.
#
# It receives the whole envelope of the call and must answer with one. It may stream: pieces of output first, the
# response last (`exchange.py`).


class ExternalTool:
    def __init__(self, definition: ToolDefinition, client: OutboundClient, auth: CallAuth) -> None:
        self._definition = definition
        self._exchange = ToolExchange(definition, client, auth)

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        masker, name = self._exchange.masker, self._definition.name
        with explained(masker, tool=name, isolation_mode="external"):
            with before_effect():
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


# --- webhook callback ------------------------------------------------------------------------------------------------

# Tools of the type `webhook-callback`: asked once, they answer when they are done.
#
# The service gets the envelope of the call. It may answer at once (200), or say that it works on it (202) and then
# either push the result to the signed address in `callback_url`, or be asked for it: GET <endpoint>/<request id>.
# Whichever comes first is the result. A service that was told where to push need not answer such questions: what it
# says to them, but for a result, ends nothing. How long to wait is decided around this: the call is cancelled when its
# time is over.

POLL_INTERVAL: Final = 2.0
SLOWEST_POLL: Final = 60.0
MOST_UNKNOWN: Final = 4
_BUSY: Final = frozenset({"429", "503"})


class WebhookCallbackTool:
    def __init__(
        self,
        definition: ToolDefinition,
        client: OutboundClient,
        auth: CallAuth,
        callbacks: Callbacks,
        *,
        poll_interval: float = POLL_INTERVAL,
    ) -> None:
        self._definition = definition
        self._exchange = ToolExchange(definition, client, auth)
        self._callbacks = callbacks
        self._interval = poll_interval

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        masker = self._exchange.masker
        with explained(masker, tool=self._definition.name, isolation_mode="webhook-callback"):
            async with AsyncExitStack() as stack:
                with before_effect():
                    endpoint = endpoint_of(self._definition)
                    check_deadline(call)
                    id = request_id("wh", call)
                    # Before the request goes out: a quick service may push before its 202 has arrived.
                    waiting = self._callbacks.waiting(id, until=self._until(call))
                    address, pushed = await stack.enter_async_context(waiting)
                    request = request_of(call, self._definition, mode="webhook-callback", id=id)
                    body = encode_request(structs.replace(request, callback_url=address))
                response, wait = await self._submit(call, endpoint, id, body)
                if response is None:
                    try:
                        response = await self._wait(endpoint, id, pushed, wait)
                    except ToolError as error:
                        error.before_effect = False  # the service has the call, whatever keeps us from asking about it
                        raise
            return masker.mask_value(result_of(response))

    def _until(self, call: Invocation) -> float:
        """Return how long anybody may wait for the result."""
        if call.deadline is not None:
            return call.deadline
        return time.time() + max(self._definition.timeout or 0.0, DEFAULT_LIFE)

    async def _submit(self, call: Invocation, endpoint: str, id: str, body: bytes) -> tuple[ToolResponse | None, float]:
        async with self._exchange.send("POST", endpoint, headers=contract_headers(call), body=body) as answer:
            ready = await _finished(answer, id) if answer.status == 200 else None
            return ready, self._pause(answer.headers)

    async def _wait(self, endpoint: str, id: str, pushed: asyncio.Future[ToolResponse], wait: float) -> ToolResponse:
        """Waits for the response by push or poll. A poll in progress is abandoned when the push comes."""
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
                response, wait = None, backoff(refusals + 1, self._interval, SLOWEST_POLL)
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


async def _finished(answer: OutboundAnswer, id: str) -> ToolResponse | None:
    """The response in an answer, None while it says that it is not ready."""
    response = decode_response(await answer.read())
    check_request_id(response, id)
    return None if response.status in PENDING else response


def _below(endpoint: str, id: str) -> str:
    """The address of one request below that of the tool; a query stays behind it."""
    parts = urlsplit(endpoint)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{quote(id, safe='')}", fragment="").geturl()


# --- web -------------------------------------------------------------------------------------------------------------

# Everything that the backends over HTTP need, made once and shared, and which of them serves which type of tool.

MakeTool: TypeAlias = Callable[[ToolDefinition], Tool]


class Web:
    """The way out of one runtime: one guard, one client, one cache of tokens. `close` it with the runtime."""

    def __init__(
        self,
        secrets: Secrets,
        policy: Outbound | None = None,
        *,
        guard: Guard | None = None,
        callbacks: Callbacks | None = None,
        waits: Waits | None = None,
    ) -> None:
        self.guard = guard or Guard(policy or Outbound())
        self.secrets = secrets
        self.client = OutboundClient(self.guard, waits=waits)
        self.auth = CallAuth(secrets, TokenCache(self.client, secrets.masker))
        self.callbacks = callbacks or Callbacks()

    async def close(self) -> None:
        await self.client.close()


def http_backends(web: Web) -> Mapping[tuple[str, str], MakeTool]:
    """Returns the factories of HTTP tools by (type, isolation)."""
    return {
        ("http", "none"): lambda definition: HttpTool(definition, web.client, web.auth),
        ("external", "none"): lambda definition: ExternalTool(definition, web.client, web.auth),
        ("webhook-callback", "none"): lambda definition: WebhookCallbackTool(
            definition, web.client, web.auth, web.callbacks
        ),
    }
