"""`bash`: only where it is contained. Without a sandbox it can be declared and offered, and is refused when called."""

from __future__ import annotations

from typing import Any, Final

from foliot.tools.base import Invocation, OnOutput, ToolDefinition, ToolIsolationMissing
from foliot.tools.builtin.arguments import object_schema, optional, text

LONGEST: Final = 120


class Bash:
    """Has no backend of its own: the pipeline refuses it because it is declared `sandboxed` and offers no isolation."""

    isolation = "none"
    definition = ToolDefinition(
        name="bash",
        description=(
            "Runs a shell command in the workspace, inside a sandbox, and shows what it printed and its exit code."
        ),
        schema=object_schema(
            {
                "command": text("The command, as for sh -c.", minLength=1),
                "timeout": optional("integer", f"Seconds it may take; {LONGEST} at most.", minimum=1, maximum=LONGEST),
            },
            ["command"],
        ),
        effect="once",
        category="inspect",
        operation_classes=("write",),
        risk="high",
        isolation="sandboxed",
        timeout=LONGEST + 10.0,
        resource_keys=("file:*",),
    )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """Raises `ToolIsolationMissing`, also for whoever calls it around the pipeline."""
        raise ToolIsolationMissing("bash runs only in a sandbox, and there is none here", wanted="sandboxed")
