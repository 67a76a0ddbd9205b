"""The seam to sandboxes: what contains a call, chosen by the mode that the tool declares.

    none        the backend of the tool's type, in this process or where its endpoint is
    sandboxed   a process of its own that sees next to nothing
    container   a container
    wasm        a WebAssembly module

A mode stands for itself: nothing else is ever taken in its place, neither a weaker one nor one that is thought to be
stronger. A mode for which no isolation is registered refuses every call, with `ToolIsolationMissing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

from msgspec import Struct

from foliot.errors import Conflict, InvalidInput
from foliot.sandbox.base import SandboxError, SandboxPolicyRefused, SandboxUnavailable
from foliot.tools.base import (
    Invocation,
    OnOutput,
    Tool,
    ToolDefinition,
    ToolError,
    ToolIsolationMissing,
    ToolPolicyInvalid,
)
from foliot.tools.contract import ToolRequest, ToolResponse
from foliot.tools.workspaces import FenceOwner

Mode: TypeAlias = Literal["none", "sandboxed", "container", "wasm"]
MODES: Final[tuple[str, ...]] = get_args(Mode)
NONE: Final = "none"
ANY_TYPE: Final = ""


class IsolatedCall(Struct, frozen=True):
    """One call as a sandbox gets it: the contract envelope, and what must go around it.

    `environment` is for the code inside and never holds a credential: those are put in outside, where requests leave.
    `seconds` is when everything in it is ended by force, None for no bound of its own. `owner` is the call of a run
    that it is made for.
    """

    definition: ToolDefinition
    request: ToolRequest
    environment: Mapping[str, str] = {}
    seconds: float | None = None
    owner: FenceOwner | None = None


class Isolation(Protocol):
    """Runs calls where they can do no harm. One object serves all tools of its mode."""

    @property
    def mode(self) -> str: ...

    def check(self, definition: ToolDefinition) -> None:
        """Whether a tool can run here at all. Raises `ToolPolicyInvalid`, `ToolIsolationMissing`."""
        ...

    async def execute(self, call: IsolatedCall, *, on_output: OnOutput | None = None) -> ToolResponse:
        """Run it to its one response. When cancelled, nothing of it is left running on return. Raises `ToolError`."""
        ...

    async def close(self) -> None: ...


Adapter: TypeAlias = Callable[[ToolDefinition, Isolation], Tool]
"""Makes the tool that speaks to an isolation: it resolves secrets, builds the envelope, and reads the response."""


class Isolations:
    """The isolations of one runtime, by mode and type of tool. There are none until a sandbox registers itself."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Isolation, Adapter]] = {}

    def register(self, isolation: Isolation, adapter: Adapter, *, type: str = ANY_TYPE) -> None:
        """Have tools of this `type` that declare its mode run in an isolation; by default tools of any other type.

        Raises `InvalidInput` for a mode that tools cannot declare, `Conflict` when mode and type are taken.
        """
        mode = isolation.mode
        if mode not in MODES or mode == NONE:
            expected = ", ".join(each for each in MODES if each != NONE)
            raise InvalidInput(f"there is no isolation mode {mode!r}", hint=f"expected one of {expected}")
        if (mode, type) in self._known:
            raise Conflict(f"the isolation mode {mode!r} is registered already{f' for {type}' if type else ''}")
        self._known[mode, type] = isolation, adapter

    @property
    def offered(self) -> tuple[str, ...]:
        """The modes that this runtime really offers."""
        return (NONE, *sorted({mode for mode, _ in self._known}))

    def serves(self, definition: ToolDefinition) -> bool:
        """Whether there is something to run the tool as it declares."""
        return definition.isolation == NONE or self._serving(definition) is not None

    def _serving(self, definition: ToolDefinition) -> tuple[Isolation, Adapter] | None:
        mode = definition.isolation
        return self._known.get((mode, definition.type)) or self._known.get((mode, ANY_TYPE))

    def contained(self, definition: ToolDefinition, plain: Callable[[], Tool]) -> Tool:
        """The tool with the isolation it declares. `plain` makes the backend of a tool that declares none.

        Never raises for a mode that is missing: the tool is there, and says so when it is called. What does not fit the
        isolation raises as `Isolation.check`.
        """
        if definition.isolation == NONE:
            return plain()
        known = self._serving(definition)
        if known is None:
            return RefusedTool(definition, self.offered)
        isolation, adapter = known
        isolation.check(definition)
        tool = adapter(definition, isolation)
        if getattr(tool, "isolation", NONE) != definition.isolation:
            return RefusedTool(definition, self.offered)  # an adapter that does not do what it was registered for
        return tool

    async def close(self) -> None:
        known, self._known = list(self._known.values()), {}
        for isolation in {id(each): each for each, _ in known}.values():
            await isolation.close()


def sandbox_failure(error: SandboxError) -> ToolError:
    """The failure of a call whose sandbox failed. The program in it has not run if its policy was refused."""
    if isinstance(error, SandboxUnavailable):
        failure: ToolError = ToolIsolationMissing(error.message, hint=error.hint, **error.details)
        failure.before_effect = True
    elif isinstance(error, SandboxPolicyRefused):
        failure = ToolPolicyInvalid(error.message, hint=error.hint, **error.details)
        failure.before_effect = True
    else:
        failure = ToolError(error.message, hint=error.hint, retryable=False, **error.details)
    return failure


def no_credential(definition: ToolDefinition) -> None:
    """Raises `ToolPolicyInvalid` for a tool with `auth`: nothing that runs in a sandbox holds a credential."""
    if definition.auth is not None:
        raise ToolPolicyInvalid(
            f"the tool {definition.name!r} runs in a sandbox and has auth: no credential goes inside",
            hint="name the Secret in spec.sandbox.secrets instead: the code gets a placeholder, which is replaced on "
            "the way to the hosts that are named there",
            field="spec.auth",
        )


class RefusedTool:
    """Stands for a tool whose isolation is not there. Its code is not even loaded."""

    # No mode at all, so that no gate can take it for the one that was declared.
    isolation = ""

    def __init__(self, definition: ToolDefinition, offered: tuple[str, ...]) -> None:
        self._definition = definition
        self._offered = offered

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        wanted, offered = self._definition.isolation, ", ".join(self._offered)
        error = ToolIsolationMissing(
            f"the tool {self._definition.name!r} must run {wanted!r}, and this runtime offers: {offered}",
            hint="run it where that isolation is available; it is never replaced by a weaker one",
            wanted=wanted,
            offered=list(self._offered),
        )
        error.before_effect = True
        raise error
