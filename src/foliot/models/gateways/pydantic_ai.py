"""Lets any Pydantic AI model answer: the long tail of providers, by way of the extra `pydantic-ai`.

An endpoint names it as `provider: pydantic-ai:<model>`, for example `pydantic-ai:bedrock:anthropic.claude-sonnet-4-5`;
in Python any model object serves: `PydanticAIGateway(model)`. A key of the endpoint is given to the provider; without
one the provider looks for its own settings (environment, profile files). The translation itself is in
`pydantic_ai_messages.py`. Nothing of Pydantic AI is imported before an endpoint asks for it.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from foliot.errors import InvalidInput
from foliot.kernel.messages import (
    Delta,
    ModelRequest,
    ModelResponse,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
)
from foliot.models.base import (
    ModelAuthError,
    ModelContentFiltered,
    ModelError,
    ModelGarbage,
    ModelOverloaded,
    ModelQuotaExceeded,
    ModelRateLimited,
    ModelRequestError,
    ModelTimeout,
    OnDelta,
)
from foliot.models.config import GatewayConfig, Timeouts
from foliot.models.provider_errors import meant_by, shorten
from foliot.models.wire.tool_names import ToolNames, tool_names
from foliot.version import install_command

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponseStreamEvent
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider

    from foliot.models.gateways.pydantic_ai_messages import TranslatedRequest

PROVIDER: Final = "pydantic-ai"
_NAME_LIMIT: Final = 64
_TOTAL: Final = Timeouts().total


def build(config: GatewayConfig) -> PydanticAIGateway:
    """The gateway of an endpoint. Raises `InvalidInput` when the package, the model or its settings are missing."""
    name = config.provider.partition(":")[2].strip() or config.model
    if not name:
        raise InvalidInput(
            "a pydantic-ai endpoint needs a model",
            hint="write `provider: pydantic-ai:<provider>:<model>`, such as pydantic-ai:mistral:mistral-large-latest",
        )
    try:
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.models import infer_model
    except ImportError as error:
        raise InvalidInput(
            "provider pydantic-ai needs a package that is not installed",
            hint=install_command("pydantic-ai"),
        ) from error
    try:
        model = infer_model(name, _with_key(config)) if config.api_key else infer_model(name)
    except ImportError as error:
        raise InvalidInput(f"the Pydantic AI model {name!r} needs a package that is not installed: {error}") from error
    except (UserError, ValueError, TypeError) as error:
        raise InvalidInput(f"the Pydantic AI model {name!r} cannot be used: {error}") from error
    return PydanticAIGateway(model, hidden=config.api_key, total=config.timeouts.total)


def _with_key(config: GatewayConfig) -> Any:
    def provider(name: str) -> Provider[Any]:
        from pydantic_ai.providers import infer_provider_class

        settings: dict[str, Any] = {"api_key": config.api_key}
        if config.base_url:
            settings["base_url"] = config.base_url
        return infer_provider_class(name)(**settings)

    return provider


class PydanticAIGateway:
    """A `Gateway` over one Pydantic AI model. Its SDK is told to try once: how often a step is tried is for the run.

    `hidden` is taken out of errors: the key, when it is known here. An answer takes at most `total` seconds, however
    long the provider's own client would wait; a stream takes longer while something of the answer comes.
    """

    def __init__(self, model: Model[Any], *, hidden: str = "", total: float = _TOTAL) -> None:
        self._model = model
        self._hidden = hidden
        self._total = total
        self._entered = False

    async def respond(self, request: ModelRequest, *, on_delta: OnDelta | None = None) -> ModelResponse:
        from foliot.models.gateways import pydantic_ai_messages as translate

        names = tool_names(request.tools, limit=_NAME_LIMIT)
        try:
            async with asyncio.timeout(self._total) as bound:
                if not self._entered:
                    await self._enter()
                asked = translate.to_question(request, self._model, names)
                if on_delta is None:
                    return await asked.answer()

                def heard(delta: Delta) -> None:
                    bound.reschedule(asyncio.get_running_loop().time() + self._total)
                    on_delta(delta)

                return await _stream(asked, heard)
        except ModelError:
            raise
        except Exception as error:  # a gateway raises nothing but a ModelError, and any provider's SDK may be behind it
            raise _translated(error, self._hidden) from error

    async def _enter(self) -> None:
        """Hold the provider's HTTP client open until `close`. Flagged first, so that concurrent calls enter once."""
        self._entered = True
        try:
            await self._model.__aenter__()
        except BaseException:
            self._entered = False
            raise

    async def close(self) -> None:
        if self._entered:
            self._entered = False
            await self._model.__aexit__(None, None, None)


async def _stream(asked: TranslatedRequest, on_delta: OnDelta) -> ModelResponse:
    async with AsyncExitStack() as stack:
        try:
            stream = await stack.enter_async_context(asked.open_stream())
        except NotImplementedError:  # this model cannot stream: its answer is shown in one piece
            response = await asked.answer()
            _show(response, on_delta)
            return response
        pieces = _Pieces(asked.names, on_delta)
        async for event in stream:
            pieces.take(event)
        return asked.read(stream.get())


class _Pieces:
    """Turns stream events into deltas. A piece of a call may come before its name is complete, hence the table."""

    def __init__(self, names: ToolNames, on_delta: OnDelta) -> None:
        self._names = names
        self._on_delta = on_delta
        self._calls: dict[int, tuple[int, str, str]] = {}

    def take(self, event: ModelResponseStreamEvent) -> None:
        from pydantic_ai.messages import (
            PartDeltaEvent,
            PartStartEvent,
            TextPart,
            TextPartDelta,
            ThinkingPart,
            ThinkingPartDelta,
            ToolCallPart,
            ToolCallPartDelta,
        )

        match event:
            case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                if text:
                    self._on_delta(TextDelta(text))
            case (
                PartStartEvent(part=ThinkingPart(content=text))
                | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text))
            ):
                if text:
                    self._on_delta(ReasoningDelta(text))
            case PartStartEvent(index=index, part=ToolCallPart() as part):
                self._calls[index] = (len(self._calls), part.tool_call_id, part.tool_name)
                # The text may be half a JSON here, so it is taken as it is; the library's own way would mend it.
                begun = part.args if isinstance(part.args, str) else part.args_as_json_str() if part.args else ""
                self._call(index, begun)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=str(text))) if index in self._calls:
                self._call(index, text)
            case _:
                pass

    def _call(self, index: int, arguments: str) -> None:
        number, call_id, name = self._calls[index]
        self._on_delta(ToolCallDelta(number, call_id, self._names.real(name), arguments))


def _show(response: ModelResponse, on_delta: OnDelta) -> None:
    calls = 0
    for part in response.message.parts:
        if isinstance(part, Text):
            on_delta(TextDelta(part.text))
        elif isinstance(part, Reasoning) and part.text:
            on_delta(ReasoningDelta(part.text))
        elif isinstance(part, ToolCall):
            on_delta(ToolCallDelta(calls, part.id, part.name, part.arguments))
            calls += 1


def _translated(error: Exception, hidden: str) -> ModelError:
    """The kind of a Pydantic AI error. The category classes say it where there is no status."""
    from pydantic_ai import exceptions as theirs

    kinds: list[tuple[type[Exception] | tuple[type[Exception], ...], type[ModelError]]] = [
        (theirs.ModelQuotaExceededError, ModelQuotaExceeded),
        (theirs.ModelRateLimitError, ModelRateLimited),
        (theirs.ModelAuthenticationError, ModelAuthError),
        (theirs.ModelRequestRejectedError, ModelRequestError),
        ((theirs.ModelTimeoutError, theirs.ModelRequestTimeout, TimeoutError), ModelTimeout),
        ((theirs.ModelUnavailableError, theirs.ModelServerError, theirs.ModelConnectionError), ModelOverloaded),
        (theirs.ContentFilterError, ModelContentFiltered),
        (theirs.UnexpectedModelBehavior, ModelGarbage),
        (theirs.UserError, ModelRequestError),
    ]
    status = getattr(error, "status_code", None)
    kind = next((mine for found, mine in kinds if isinstance(error, found)), None)
    if kind is None and isinstance(status, int):
        kind = _by_status(status)
    if (
        isinstance(status, int) or kind is ModelRequestError
    ):  # their categories are coarser than the words of the provider
        kind = meant_by(str(error), status if isinstance(status, int) else 400) or kind
    return (kind or ModelError)(
        shorten(f"{type(error).__name__}: {error}", hidden),
        provider=PROVIDER,
        status=status if isinstance(status, int) else None,
        retry_after=getattr(error, "retry_after", None),
    )


def _by_status(status: int) -> type[ModelError]:
    if status == 429:
        return ModelRateLimited
    if status in (401, 403):
        return ModelAuthError
    if status in (408, 504):
        return ModelTimeout
    return ModelOverloaded if status >= 500 else ModelRequestError
