"""The seam between the one HTTP path and the many formats.

Written for:  models/gateways/http.py, which moves the bytes and knows no format.
Implemented:  one module per format in this folder.
Raises:       `WireError` for an answer that cannot be understood, `ProviderFault` for an error inside an answer,
              `Unsendable` for a request that the format cannot carry. The gateway turns them into model errors, because
              only it knows the provider's name and key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from foliot.kernel.messages import Delta, ModelRequest, ModelResponse, Usage
from foliot.models.wire.tool_names import ToolNames
from foliot.models.wire.values import CallIds

NO_DELTAS: tuple[Delta, ...] = ()
DONE = b"[DONE]"
"""Begins the event after which OpenAI, and whoever is like it, says nothing more. No JSON of an answer begins so."""


class WireError(Exception):
    """The bytes are not an answer in this format; the text says what is wrong, without quoting the answer."""


class Unsendable(Exception):
    """The request holds something that this format has no place for; the text says what."""


class ProviderFault(Exception):
    """The provider reported an error where an answer was expected; `payload` is what it sent."""

    def __init__(self, payload: Any) -> None:
        super().__init__("the provider reported an error")
        self.payload = payload


class Assembler(Protocol):
    """Puts one streamed answer together. `done` turns true when nothing can follow any more.

    `ending` turns true when the model has said why it stopped: a count or a good-bye may follow, or nothing.
    """

    done: bool
    ending: bool

    def feed(self, event: bytes) -> Sequence[Delta]:
        """Take the payload of one event; return what is worth showing at once."""
        ...

    def finish(self) -> ModelResponse:
        """The whole answer. Raises `WireError` when the stream ended before the provider said it was done."""
        ...

    def heard(self) -> tuple[Usage, str]:
        """Tell what the provider has counted so far, and all that the model has written: what a cut answer costs."""
        ...


class Wire(Protocol):
    """One format, configured for one endpoint. Holds no state between calls."""

    def names(self, request: ModelRequest) -> ToolNames: ...

    def path(self, model: str, *, stream: bool) -> str:
        """Returns the path to post to, below the base URL, query included."""
        ...

    def build_body(
        self, request: ModelRequest, names: ToolNames, *, stream: bool, notes: list[str] | None = None
    ) -> dict[str, Any]:
        """The request as the provider wants it; what of it is not sent as it was asked is added to `notes`."""
        ...

    def parse(self, body: bytes, names: ToolNames, ids: CallIds) -> ModelResponse: ...

    def counted(self, body: bytes) -> Usage:
        """Read the counts out of a body that is no answer. Raises `msgspec.DecodeError` for one that is no JSON."""
        ...

    def assembler(self, names: ToolNames, ids: CallIds) -> Assembler: ...
