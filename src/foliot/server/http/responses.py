"""Answers in JSON, made from plain documents without looking at them a second time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

from foliot.resources.wording import as_written
from foliot.store.base import Document

_encode: Final = msgspec.json.Encoder().encode


class Json(Response):
    """Any plain JSON value or `msgspec.Struct`."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encode(content)


def resource(document: Document, status: int = 200, headers: Mapping[str, str] | None = None) -> Json:
    """One resource as it is shown, its version as the ETag."""
    return Json(as_written(document), status, {**(headers or {}), "ETag": etag(document)})


def etag(document: Document) -> str:
    return f'"{document["metadata"].get("resourceVersion", "")}"'
