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
    from foliot.errors import FoliotError
    from foliot.kernel.messages import Media, Message, Text
    from foliot.models.scripted.model import ScriptedModel
    from foliot.runtime.agent import Agent
    from foliot.runtime.results import RunFailedError, RunResult
    from foliot.runtime.runtime import Runtime
    from foliot.tools.base import Invocation, ToolError
    from foliot.tools.function import tool
    from foliot.tools.processes import outlives_call
    from foliot.version import __version__

__all__ = [
    "Agent",
    "Client",
    "FoliotError",
    "Invocation",
    "Media",
    "Message",
    "ModelEndpoint",
    "Output",
    "Recorded",
    "RunFailedError",
    "RunResult",
    "Runtime",
    "ScriptedModel",
    "Streamed",
    "Text",
    "ToolError",
    "__version__",
    "outlives_call",
    "tool",
]

_HOME = {
    "Agent": "foliot.runtime.agent",
    "Client": "foliot.client.client",
    "FoliotError": "foliot.errors",
    "Invocation": "foliot.tools.base",
    "Media": "foliot.kernel.messages",
    "Message": "foliot.kernel.messages",
    "ModelEndpoint": "foliot.engine.python_endpoints",
    "Output": "foliot.engine.live.hub",
    "Recorded": "foliot.engine.live.hub",
    "RunFailedError": "foliot.runtime.results",
    "RunResult": "foliot.runtime.results",
    "Runtime": "foliot.runtime.runtime",
    "ScriptedModel": "foliot.models.scripted.model",
    "Streamed": "foliot.engine.live.hub",
    "Text": "foliot.kernel.messages",
    "ToolError": "foliot.tools.base",
    "__version__": "foliot.version",
    "outlives_call": "foliot.tools.processes",
    "tool": "foliot.tools.function",
}


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'foliot' has no attribute {name!r}")
    return getattr(import_module(home), name)
