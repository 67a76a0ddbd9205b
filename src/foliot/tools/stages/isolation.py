"""Does the backend contain the call as the tool was declared?"""

from __future__ import annotations

from foliot.tools.base import Invocation, ToolDefinition, ToolIsolationMissing
from foliot.tools.rules import Rules
from foliot.tools.verdict import Verdict


class Isolation:
    """A tool that is declared to run isolated is refused when its backend does not offer that: never a weaker one."""

    layer = "isolation"

    def __init__(self, definition: ToolDefinition, offered: str) -> None:
        self._name = definition.name
        self._wanted = definition.isolation
        self._offered = offered
        self._contained = Verdict("allow", self.layer, f"its backend runs it {self._wanted!r}, as declared")

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        if self._wanted != self._offered:
            raise ToolIsolationMissing(
                f"the tool {self._name!r} must run {self._wanted!r}, and nothing here can do that",
                hint="set runtime.isolation_mode to what this deployment offers",
                layer=self.layer,
                wanted=self._wanted,
            )
        return self._contained
