"""Is this the tool that the run was locked to?"""

from __future__ import annotations

from foliot.tools.base import Invocation, ToolDefinition, ToolVersionMismatch
from foliot.tools.rules import Rules
from foliot.tools.verdict import Verdict


class Resolve:
    """A run is told of its tools when it begins. A tool that became another one since then is not called in its place.

    The same version with another schema is another tool: the model writes arguments for the schema it was shown.
    """

    layer = "resolve"

    def __init__(self, definition: ToolDefinition, digest: str) -> None:
        self._name = definition.name
        self._version = definition.version
        self._digest = digest
        self._same = Verdict("allow", self.layer, f"the tool {definition.name!r} is there, version {self._version}")

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        if (call.version and call.version != self._version) or (
            call.schema_digest and call.schema_digest != self._digest
        ):
            raise self._mismatch(call)
        return self._same

    def _mismatch(self, call: Invocation) -> ToolVersionMismatch:
        if call.version and call.version != self._version:
            message = f"tool {self._name!r} version {call.version!r} is not available, only {self._version!r}"
        else:
            message = f"tool {self._name!r} has another schema than when this run began (version {self._version!r})"
        return ToolVersionMismatch(
            message, hint="start a new run", layer=self.layer, wanted=call.version, available_versions=[self._version]
        )
