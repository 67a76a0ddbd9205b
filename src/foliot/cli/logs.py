"""How the log is written: for people, or as one JSON object a line for programs.

Whatever the form, known secrets and what looks like a credential are taken out of every line, tracebacks included.
A line carries the run, task, namespace and request that it belongs to.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from foliot.common.text import one_line, safe_json, visible

if TYPE_CHECKING:
    from foliot.settings.settings import Settings

SERVICE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
COMMAND: Final = "%(message)s"
# What a record has by itself; the rest was given with `extra=`.
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "foliot_fields"}


def configure(settings: Settings, *, service: bool = False, tells: str = "") -> None:
    """Write the log to stderr as the settings say. `service`: a process that stays, so that lines need times.

    Where no level was chosen, the logger `tells` says what it does all the same: a line for each piece of work.
    Calling it again replaces what it did before. A command that ends soon and writes text is left as it is: its few
    warnings are shown as Python shows them.
    """
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, ToStderr)]:
        root.removeHandler(handler)
    if settings.log_format == "text" and not service:
        return
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    handler = ToStderr(level)
    if tells and settings.origin("log_level") == "default":
        handler.setLevel(logging.INFO)
        logging.getLogger(tells).setLevel(logging.INFO)
        root.setLevel(max(root.level, level))
    handler.setFormatter(_JsonLines() if settings.log_format == "json" else _TextLines(SERVICE))
    handler.addFilter(_clean)
    root.addHandler(handler)
    if level < root.level:
        root.setLevel(level)


class ToStderr(logging.StreamHandler[Any]):
    """Logs to whatever stderr is at that moment: it may be replaced while the process lives."""

    def __init__(self, level: int) -> None:
        logging.Handler.__init__(self, level)

    @property
    def stream(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride] - as logging's own last resort does
        return sys.stderr


def _clean(record: logging.LogRecord) -> bool:
    """A filter: the record with its fields and without secrets. What cannot be formatted is shown as it is."""
    from foliot.engine.telemetry.context import log_fields
    from foliot.tools.secrets.masking import redact_everywhere

    try:
        message = record.getMessage()
    except (TypeError, ValueError):
        message = f"{record.msg} {record.args}"
    record.msg, record.args = redact_everywhere(message), None
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    if record.exc_text:
        record.exc_text = redact_everywhere(record.exc_text)
    given = {
        name: value if isinstance(value, int | float) else redact_everywhere(str(value))
        for name, value in vars(record).items()
        if name not in _OWN
    }
    record.foliot_fields = {**log_fields(), **given}
    return True


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, str | float] = getattr(record, "foliot_fields", {})
        tail = " ".join(f"{name}={one_line(str(value))}" for name, value in fields.items())
        # Further lines, those of a traceback or of a text that somebody else wrote, are set in: only a record begins
        # a line.
        first, *rest = visible(super().format(record)).split("\n")
        return "\n    ".join([f"{first} [{tail}]" if tail else first, *rest])


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, str | float] = getattr(record, "foliot_fields", {})
        line: dict[str, Any] = {
            **fields,
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_text:
            line["error"] = record.exc_text
        return safe_json(line, indent=None)
