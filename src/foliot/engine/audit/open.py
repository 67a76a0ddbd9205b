"""The audit log of one process: what the settings say about it, put together."""

from __future__ import annotations

from foliot.engine.audit.log import AuditTrail
from foliot.engine.audit.sinks import SinkContext, SinkFeed, open_feeds
from foliot.settings.settings import Settings
from foliot.store.audit.log import SqlAuditLog
from foliot.store.base import Database
from foliot.tools.secrets.secrets import Secrets


def open_audit(database: Database, secrets: Secrets, settings: Settings | None) -> AuditTrail:
    """Opens the audit trail of this database. Raises `UsageError` for a sink that cannot be opened.

    It is told at the start: records that go nowhere are worse than a process that does not start.
    """
    feeds: list[SinkFeed] = []
    if settings is not None and settings.audit_sinks:
        feeds = open_feeds(settings.audit_sinks, SinkContext(secrets, settings.outbound_allow, settings.namespace))
    return AuditTrail(SqlAuditLog(database), masker=secrets.masker, feeds=feeds)
