"""Sinks by their addresses: `file:/var/log/foliot.jsonl`, `webhook:https://…`, `otel`, `name:…` of an entry point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Final, cast

from foliot.engine.records.sinks.base import AuditSink, SinkContext, SinkFactory
from foliot.engine.records.sinks.feed import SinkFeed
from foliot.errors import FoliotError, UsageError

GROUP: Final = "foliot.audit_sinks"
_AT: Final = "foliot.engine.records.sinks"
BUILT_IN: Final[Mapping[str, tuple[str, str]]] = {
    "file": (f"{_AT}.file", "file_sink"),
    "webhook": (f"{_AT}.webhook", "webhook_sink"),
    "otel": (f"{_AT}.otel", "otel_sink"),
}


def open_feeds(addresses: Iterable[str], context: SinkContext) -> list[SinkFeed]:
    """One feed for each address. Raises `UsageError` for one that names no sink or cannot be used."""
    return [SinkFeed(address.partition(":")[0], open_sink(address, context)) for address in addresses]


def open_sink(address: str, context: SinkContext) -> AuditSink:
    """Raises `UsageError`."""
    name, _, rest = address.partition(":")
    factory = _factory(name)
    try:
        return factory(rest, context)
    except FoliotError:
        raise
    except Exception as error:
        raise UsageError(f"the audit sink {name!r} cannot be opened: {error}") from error


def _factory(name: str) -> SinkFactory:
    if name in BUILT_IN:
        module, attribute = BUILT_IN[name]
        return cast("SinkFactory", getattr(import_module(module), attribute))
    from importlib.metadata import entry_points  # every start would pay for it

    found = entry_points(group=GROUP, name=name)
    if not found:
        others = sorted({*BUILT_IN, *(each.name for each in entry_points(group=GROUP))})
        raise UsageError(f"there is no audit sink named {name!r}", hint=f"there are: {', '.join(others)}")
    try:
        return cast("SinkFactory", next(iter(found)).load())
    except Exception as error:
        raise UsageError(f"the audit sink {name!r} cannot be loaded: {error}") from error
