"""Foliot: the agent runtime.

    from foliot import Agent, Runtime, tool

Names are loaded when they are first used, so that `import foliot` costs nothing and the command line starts fast. It
loads no other module: until the command line has taken Ctrl-C over, the interpreter shows a traceback for it.
"""

TYPE_CHECKING = False  # `typing` would be most of what `import foliot` costs
if TYPE_CHECKING:
    from typing import Any

    from foliot.client.client import Client
    from foliot.common.call_processes import outlives_call
    from foliot.engine.approval.questions import OpenQuestion
    from foliot.engine.audit.metering import Total
    from foliot.engine.definition.run_options import RunOptions
    from foliot.engine.explain.trace import Trace
    from foliot.engine.explain.why import Explanation
    from foliot.engine.hooks.base import Hook, HookAct, HookBlock, HookChange, hook
    from foliot.engine.live.hub import Live, Output, Recorded, Streamed
    from foliot.engine.python_endpoints import ModelEndpoint
    from foliot.engine.workspaces.history import StepFiles
    from foliot.engine.workspaces.trees import WorkspaceTree
    from foliot.errors import FoliotError, UsageError
    from foliot.kernel.messages import Media, Message, ModelResponse, Text, ToolCall, ToolResult, Usage
    from foliot.kernel.run import events
    from foliot.kernel.run.events import Event, Fork
    from foliot.models.base import ModelError
    from foliot.models.scripted.model import ScriptedModel
    from foliot.resources.field_owners import FieldConflict
    from foliot.resources.presets import read_presets
    from foliot.resources.problems import ManifestError
    from foliot.resources.reader import parse_manifests
    from foliot.runtime.agent import Agent
    from foliot.runtime.answers import (
        Answered,
        Budgets,
        Called,
        Fate,
        Fired,
        PolicyAnswer,
        Replayed,
        RuleDefaults,
        RunStanding,
        Sent,
        Toolset,
    )
    from foliot.runtime.inputs import RunInput
    from foliot.runtime.outcomes import Applied, InUse, Outcome, Taken
    from foliot.runtime.results import RunFailedError, RunResult, SchemaMismatch
    from foliot.runtime.runtime import Runtime
    from foliot.sessions import chat_events
    from foliot.sessions.base import Found, TurnOptions, TurnView
    from foliot.sessions.chat_events import ChatEvent
    from foliot.settings.settings import Settings, load_settings
    from foliot.store.audit.log import AuditFilter, AuditRecord, Verified
    from foliot.store.base import Change, Document, Filter, Page, Requirement
    from foliot.store.channel_links import ChannelLink
    from foliot.store.channels import ChannelDelivery
    from foliot.store.journal.base import RunHeld, RunInfo, RunTaken
    from foliot.store.ledger.doubts import Doubt, DoubtPage
    from foliot.store.queue.limits import ClassInfo, Limit
    from foliot.store.queue.workers import WorkerInfo
    from foliot.store.sessions.base import Input, Said, Session
    from foliot.store.triggers import Slot, WebhookDelivery
    from foliot.tools.base import Invocation, Question, ToolError
    from foliot.tools.builtin.results import CallResult, ResultPage
    from foliot.tools.function import tool
    from foliot.tools.governance.judge import Judgement, PolicyQuestion
    from foliot.version import __version__
    from foliot.work.tasks.base import Accepted, Command, Requirements, TaskInfo, TaskRecord
    from foliot.work.views.events import Batch, log_line
    from foliot.work.views.story import TaskStory
    from foliot.work.views.why import TaskExplanation

__all__ = [
    "Accepted",
    "Agent",
    "Answered",
    "Applied",
    "AuditFilter",
    "AuditRecord",
    "Batch",
    "Budgets",
    "CallResult",
    "Called",
    "Change",
    "ChannelDelivery",
    "ChannelLink",
    "ChatEvent",
    "ClassInfo",
    "Client",
    "Command",
    "Document",
    "Doubt",
    "DoubtPage",
    "Event",
    "Explanation",
    "Fate",
    "FieldConflict",
    "Filter",
    "Fired",
    "FoliotError",
    "Fork",
    "Found",
    "Hook",
    "HookAct",
    "HookBlock",
    "HookChange",
    "InUse",
    "Input",
    "Invocation",
    "Judgement",
    "Limit",
    "Live",
    "ManifestError",
    "Media",
    "Message",
    "ModelEndpoint",
    "ModelError",
    "ModelResponse",
    "OpenQuestion",
    "Outcome",
    "Output",
    "Page",
    "PolicyAnswer",
    "PolicyQuestion",
    "Question",
    "Recorded",
    "Replayed",
    "Requirement",
    "Requirements",
    "ResultPage",
    "RuleDefaults",
    "RunFailedError",
    "RunHeld",
    "RunInfo",
    "RunInput",
    "RunOptions",
    "RunResult",
    "RunStanding",
    "RunTaken",
    "Runtime",
    "Said",
    "SchemaMismatch",
    "ScriptedModel",
    "Sent",
    "Session",
    "Settings",
    "Slot",
    "StepFiles",
    "Streamed",
    "Taken",
    "TaskExplanation",
    "TaskInfo",
    "TaskRecord",
    "TaskStory",
    "Text",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "Toolset",
    "Total",
    "Trace",
    "TurnOptions",
    "TurnView",
    "Usage",
    "UsageError",
    "Verified",
    "WebhookDelivery",
    "WorkerInfo",
    "WorkspaceTree",
    "__version__",
    "chat_events",
    "events",
    "hook",
    "load_settings",
    "log_line",
    "outlives_call",
    "parse_manifests",
    "read_presets",
    "tool",
]

_HOME = {
    "Accepted": "foliot.work.tasks.base",
    "Agent": "foliot.runtime.agent",
    "Answered": "foliot.runtime.answers",
    "Applied": "foliot.runtime.outcomes",
    "AuditFilter": "foliot.store.audit.log",
    "AuditRecord": "foliot.store.audit.log",
    "Batch": "foliot.work.views.events",
    "Budgets": "foliot.runtime.answers",
    "CallResult": "foliot.tools.builtin.results",
    "Called": "foliot.runtime.answers",
    "Change": "foliot.store.base",
    "ChannelDelivery": "foliot.store.channels",
    "ChannelLink": "foliot.store.channel_links",
    "ClassInfo": "foliot.store.queue.limits",
    "Client": "foliot.client.client",
    "Command": "foliot.work.tasks.base",
    "WebhookDelivery": "foliot.store.triggers",
    "Document": "foliot.store.base",
    "Doubt": "foliot.store.ledger.doubts",
    "DoubtPage": "foliot.store.ledger.doubts",
    "Event": "foliot.kernel.run.events",
    "Explanation": "foliot.engine.explain.why",
    "Fate": "foliot.runtime.answers",
    "FieldConflict": "foliot.resources.field_owners",
    "Filter": "foliot.store.base",
    "Fired": "foliot.runtime.answers",
    "Fork": "foliot.kernel.run.events",
    "FoliotError": "foliot.errors",
    "RunHeld": "foliot.store.journal.base",
    "Hook": "foliot.engine.hooks.base",
    "HookAct": "foliot.engine.hooks.base",
    "HookBlock": "foliot.engine.hooks.base",
    "HookChange": "foliot.engine.hooks.base",
    "InUse": "foliot.runtime.outcomes",
    "Invocation": "foliot.tools.base",
    "Judgement": "foliot.tools.governance.judge",
    "Limit": "foliot.store.queue.limits",
    "Live": "foliot.engine.live.hub",
    "ManifestError": "foliot.resources.problems",
    "Media": "foliot.kernel.messages",
    "Message": "foliot.kernel.messages",
    "ModelEndpoint": "foliot.engine.python_endpoints",
    "ModelError": "foliot.models.base",
    "ModelResponse": "foliot.kernel.messages",
    "OpenQuestion": "foliot.engine.approval.questions",
    "Outcome": "foliot.runtime.outcomes",
    "Output": "foliot.engine.live.hub",
    "Page": "foliot.store.base",
    "PolicyAnswer": "foliot.runtime.answers",
    "PolicyQuestion": "foliot.tools.governance.judge",
    "Question": "foliot.tools.base",
    "Recorded": "foliot.engine.live.hub",
    "Replayed": "foliot.runtime.answers",
    "Requirement": "foliot.store.base",
    "Requirements": "foliot.work.tasks.base",
    "ResultPage": "foliot.tools.builtin.results",
    "RuleDefaults": "foliot.runtime.answers",
    "RunFailedError": "foliot.runtime.results",
    "RunInfo": "foliot.store.journal.base",
    "RunInput": "foliot.runtime.inputs",
    "RunOptions": "foliot.engine.definition.run_options",
    "RunResult": "foliot.runtime.results",
    "RunStanding": "foliot.runtime.answers",
    "RunTaken": "foliot.store.journal.base",
    "Runtime": "foliot.runtime.runtime",
    "SchemaMismatch": "foliot.runtime.results",
    "ScriptedModel": "foliot.models.scripted.model",
    "Sent": "foliot.runtime.answers",
    "Settings": "foliot.settings.settings",
    "Slot": "foliot.store.triggers",
    "StepFiles": "foliot.engine.workspaces.history",
    "Streamed": "foliot.engine.live.hub",
    "Taken": "foliot.runtime.outcomes",
    "TaskExplanation": "foliot.work.views.why",
    "TaskInfo": "foliot.work.tasks.base",
    "TaskRecord": "foliot.work.tasks.base",
    "TaskStory": "foliot.work.views.story",
    "Text": "foliot.kernel.messages",
    "ToolCall": "foliot.kernel.messages",
    "ToolError": "foliot.tools.base",
    "ToolResult": "foliot.kernel.messages",
    "Toolset": "foliot.runtime.answers",
    "Total": "foliot.engine.audit.metering",
    "Trace": "foliot.engine.explain.trace",
    "TurnOptions": "foliot.sessions.base",
    "Usage": "foliot.kernel.messages",
    "UsageError": "foliot.errors",
    "Verified": "foliot.store.audit.log",
    "WorkerInfo": "foliot.store.queue.workers",
    "WorkspaceTree": "foliot.engine.workspaces.trees",
    "__version__": "foliot.version",
    "chat_events": "foliot.sessions.chat_events",
    "events": "foliot.kernel.run.events",
    "hook": "foliot.engine.hooks.base",
    "load_settings": "foliot.settings.settings",
    "log_line": "foliot.work.views.events",
    "outlives_call": "foliot.common.call_processes",
    "parse_manifests": "foliot.resources.reader",
    "read_presets": "foliot.resources.presets",
    "tool": "foliot.tools.function",
    "Found": "foliot.sessions.base",
    "TurnView": "foliot.sessions.base",
    "Said": "foliot.store.sessions.base",
    "Session": "foliot.store.sessions.base",
    "Input": "foliot.store.sessions.base",
    "ChatEvent": "foliot.sessions.chat_events",
}


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'foliot' has no attribute {name!r}")
    module = import_module(home)
    return module if name in ("events", "chat_events") else getattr(module, name)


def __dir__() -> "list[str]":
    return sorted(__all__)
