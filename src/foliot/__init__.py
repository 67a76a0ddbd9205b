"""Foliot: the agent runtime.

    from foliot import Agent, Runtime, tool

Names are loaded when they are first used, so that `import foliot` costs nothing and the command line starts fast. It
loads no other module: until the command line has taken Ctrl-C over, the interpreter shows a traceback for it.
"""

TYPE_CHECKING = False  # `typing` would be most of what `import foliot` costs
if TYPE_CHECKING:
    from typing import Any

    from foliot.client.client import Client
    from foliot.engine.live.hub import Output, Recorded, Streamed
    from foliot.engine.python_endpoints import ModelEndpoint
    from foliot.errors import FoliotError, UsageError
    from foliot.kernel.messages import Media, Message, Text
    from foliot.kernel.run import events
    from foliot.models.scripted.model import ScriptedModel
    from foliot.resources.reader import parse_manifests
    from foliot.runtime.agent import Agent
    from foliot.runtime.results import RunFailedError, RunResult
    from foliot.runtime.runtime import Runtime
    from foliot.settings.settings import Settings, load_settings
    from foliot.store.audit.log import AuditFilter
    from foliot.store.base import Filter, Requirement
    from foliot.store.journal.base import RunInfo
    from foliot.store.queue.limits import Limit
    from foliot.tools.base import Invocation, Question, ToolError
    from foliot.tools.function import tool
    from foliot.tools.governance.judge import PolicyQuestion
    from foliot.tools.processes import outlives_call
    from foliot.version import __version__
    from foliot.work.tasks.base import Command, Requirements, TaskInfo
    from foliot.work.views.events import log_line

__all__ = [
    "Agent",
    "AuditFilter",
    "Client",
    "Command",
    "Filter",
    "FoliotError",
    "Invocation",
    "Limit",
    "Media",
    "Message",
    "ModelEndpoint",
    "Output",
    "PolicyQuestion",
    "Question",
    "Recorded",
    "Requirement",
    "Requirements",
    "RunFailedError",
    "RunInfo",
    "RunResult",
    "Runtime",
    "ScriptedModel",
    "Settings",
    "Streamed",
    "TaskInfo",
    "Text",
    "ToolError",
    "UsageError",
    "__version__",
    "events",
    "load_settings",
    "log_line",
    "outlives_call",
    "parse_manifests",
    "tool",
]

_HOME = {
    "Agent": "foliot.runtime.agent",
    "AuditFilter": "foliot.store.audit.log",
    "Client": "foliot.client.client",
    "Command": "foliot.work.tasks.base",
    "Filter": "foliot.store.base",
    "FoliotError": "foliot.errors",
    "Invocation": "foliot.tools.base",
    "Limit": "foliot.store.queue.limits",
    "Media": "foliot.kernel.messages",
    "Message": "foliot.kernel.messages",
    "ModelEndpoint": "foliot.engine.python_endpoints",
    "Output": "foliot.engine.live.hub",
    "PolicyQuestion": "foliot.tools.governance.judge",
    "Question": "foliot.tools.base",
    "Recorded": "foliot.engine.live.hub",
    "Requirement": "foliot.store.base",
    "Requirements": "foliot.work.tasks.base",
    "RunFailedError": "foliot.runtime.results",
    "RunInfo": "foliot.store.journal.base",
    "RunResult": "foliot.runtime.results",
    "Runtime": "foliot.runtime.runtime",
    "ScriptedModel": "foliot.models.scripted.model",
    "Settings": "foliot.settings.settings",
    "Streamed": "foliot.engine.live.hub",
    "TaskInfo": "foliot.work.tasks.base",
    "Text": "foliot.kernel.messages",
    "ToolError": "foliot.tools.base",
    "UsageError": "foliot.errors",
    "__version__": "foliot.version",
    "events": "foliot.kernel.run.events",
    "load_settings": "foliot.settings.settings",
    "log_line": "foliot.work.views.events",
    "outlives_call": "foliot.tools.processes",
    "parse_manifests": "foliot.resources.reader",
    "tool": "foliot.tools.function",
}


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'foliot' has no attribute {name!r}")
    module = import_module(home)
    return module if name == "events" else getattr(module, name)


def __dir__() -> "list[str]":
    return sorted(__all__)
