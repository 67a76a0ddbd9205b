"""Discovery: which tools a server has, and which of them may be called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from foliot.tools.base import ToolDefinition
from foliot.tools.registry import schema_digest

_EFFECTS: Final = {"read": "read_only", "idempotent": "mutating", "once": "external_effect"}
_encode = msgspec.json.Encoder(enc_hook=str).encode

WhyNot: TypeAlias = Callable[[ToolDefinition], str | None]


class Filter(Struct, frozen=True, forbid_unknown_fields=True):
    """Which tools are asked for; a blank field is no limit. A field that nobody here knows is refused, not ignored."""

    name: str = ""
    category: str = ""
    effect: str = ""
    namespace: str = ""


_filter = msgspec.json.Decoder(Filter)


def read_filter(data: bytes) -> Filter:
    """What a request asks for; nothing at all asks for everything. Raises `ValueError` for what cannot be read.

    A filter that cannot be read must not become no filter.
    """
    if not data.strip():
        return Filter()
    try:
        return _filter.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the filter cannot be read: {error}") from None


def listing(tools: Iterable[ToolDefinition], wanted: Filter, why_not: WhyNot) -> bytes:
    """The answer to `tool.list`: tools by name, each with its schema as declared and whether it may be called."""
    found = [_entry(tool, why_not(tool)) for tool in sorted(tools, key=lambda tool: tool.name) if _fits(tool, wanted)]
    return _encode({"tools": found})


def _fits(tool: ToolDefinition, wanted: Filter) -> bool:
    return (
        wanted.name in ("", tool.name)
        and wanted.category in ("", tool.category)
        and wanted.effect in ("", tool.effect, _EFFECTS[tool.effect])
        and wanted.namespace in ("", tool.namespace)
    )


def _entry(tool: ToolDefinition, why_not: str | None) -> dict[str, Any]:
    entry = {
        "name": tool.name,
        "description": tool.description,
        "provider": "internal",
        "available": why_not is None,
        "effect": _EFFECTS[tool.effect],
        "category": tool.category,
        "version": tool.version,
        "parameters": tool.schema if tool.schema is not None else {"type": "object"},
        "schema_digest": schema_digest(tool.schema),
    }
    return entry if why_not is None else {**entry, "reason": why_not}
