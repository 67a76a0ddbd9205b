"""Tools that are WebAssembly modules: a request as JSON goes in, an answer as JSON comes out, and nothing else.

    {"contract_version":"v1","namespace":"…","tool":"…","input":"{…}","capabilities":[],"risk_level":"low","runtime":{…}}
    {"contract_version":"v1","status":"ok","output":"…"}

`status` is `ok`, `error` or `denied`; the latter two have an `error` with `code`, `reason`, `retryable`, `message` and
`details`, each with a default. Any other answer is a mistake of the module that trying again does not mend.

A module can change nothing outside, so a call of one that failed, however it did, certainly took no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from foliot.kernel.json_texts import MOST_VALUES, deeper_than, has_more_values
from foliot.sandbox.base import SandboxError
from foliot.sandbox.wasm import INSTALL, Wasm, WasmFinished, WasmLimits, WasmModule, installed
from foliot.tools.base import (
    Invocation,
    OnOutput,
    ToolCancelled,
    ToolDefinition,
    ToolError,
    ToolIsolationMissing,
    ToolPolicyInvalid,
    ToolTimeout,
)
from foliot.tools.contract import (
    ContractError,
    ToolRequest,
    ToolResponse,
    input_text,
    normalise_response,
    request_id,
    request_of,
    result_of,
)
from foliot.tools.declared_fences import WASM_MEMORY
from foliot.tools.isolation import IsolatedCall, Isolation, sandbox_failure

MODE: Final = "wasm"
VERSION: Final = "v1"
DEEPEST: Final = 900
_STDERR_SHOWN: Final = 2000


class _ModuleError(Struct, frozen=True):
    code: str = ""
    reason: str = ""
    retryable: bool | None = None
    message: str = ""
    details: dict[str, Any] | None = None


class _ModuleAnswer(Struct, frozen=True):
    contract_version: str
    status: str
    output: Any = ""
    error: _ModuleError | None = None


_answers: Final = msgspec.json.Decoder(_ModuleAnswer)
_encode: Final = msgspec.json.Encoder().encode


class WasmIsolation:
    """Runs every tool whose isolation is `wasm`, each in a module of its own."""

    mode = MODE

    def __init__(self) -> None:
        self._wasm = Wasm()

    def check(self, definition: ToolDefinition) -> None:
        """Raises `ToolIsolationMissing` without wasmtime, `ToolPolicyInvalid` for a tool without a module."""
        if not installed():
            raise ToolIsolationMissing(
                f"the tool {definition.name!r} is a WebAssembly module, and wasmtime is not installed", hint=INSTALL
            )
        declared: Mapping[str, Any] = definition.options.get(MODE) or {}
        if not declared.get("module") or not declared.get("digest"):
            raise ToolPolicyInvalid(
                f"the tool {definition.name!r} runs in WebAssembly, and names no module",
                hint="set spec.wasm.module to its file, and spec.wasm.digest to sha256:… of that (`sha256sum FILE`)",
            )
        if definition.auth is not None:
            raise ToolPolicyInvalid(
                f"the tool {definition.name!r} has auth, and no credential ever goes into a module",
                hint="take auth away: a module cannot reach anything that asks who calls",
            )

    async def execute(self, call: IsolatedCall, *, on_output: OnOutput | None = None) -> ToolResponse:
        declared: Mapping[str, Any] = call.definition.options[MODE]
        module = WasmModule(
            declared["module"],
            declared["digest"],
            entrypoint=declared.get("entrypoint", ""),
            wasi=declared.get("wasi", True),
            folders=declared.get("folders", {}),
        )
        limits = WasmLimits(
            memory=declared.get("max_memory_bytes", WASM_MEMORY), fuel=declared.get("fuel", 0), seconds=call.seconds
        )
        try:
            finished = await self._wasm.run(module, _request(call, module, limits), limits)
        except SandboxError as error:
            raise _harmless(sandbox_failure(error)) from None
        if on_output is not None and finished.stderr:
            on_output(finished.stderr.decode(errors="replace"))
        if (failure := _failure(call.definition, finished)) is not None:
            raise _harmless(failure)
        return _response(call, finished.stdout)

    async def close(self) -> None:
        await self._wasm.close()


class WasmTool:
    """A `Tool` whose calls go into an isolation."""

    def __init__(self, definition: ToolDefinition, isolation: Isolation) -> None:
        self._definition = definition
        self._isolation = isolation
        self.isolation = isolation.mode

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """Raises the `ToolError` that the module reports, or that it ended with."""
        definition = self._definition
        request = request_of(call, definition, mode="wasm", id=request_id("wasm", call))
        seconds = definition.attempt_timeout or definition.timeout
        response = await self._isolation.execute(
            IsolatedCall(definition, request, seconds=seconds), on_output=on_output
        )
        return result_of(response)


def _request(call: IsolatedCall, module: WasmModule, limits: WasmLimits) -> bytes:
    request: ToolRequest = call.request
    return _encode(
        {
            "contract_version": VERSION,
            "namespace": request.namespace,
            "tool": request.tool.name,
            "input": input_text(request),
            "capabilities": request.tool.capabilities,
            "risk_level": request.tool.risk_level,
            "runtime": {
                "entrypoint": module.entrypoint,
                "max_memory_bytes": limits.memory,
                "fuel": limits.fuel,
                "enable_wasi": module.wasi,
            },
            # No credential ever goes inside.
            "auth": {},
            "request_id": request.request_id,
            "attempt": request.attempt,
        }
    )


def _failure(definition: ToolDefinition, finished: WasmFinished) -> ToolError | None:
    """The error of a module that was ended, or ended itself, without an answer that counts."""
    name, said = definition.name, finished.stderr[-_STDERR_SHOWN:].decode(errors="replace").strip()
    details: dict[str, Any] = {"isolation_mode": MODE, "tool": name, **({"stderr": said} if said else {})}
    match finished.ended_by:
        case "":
            if finished.exit_code == 0:
                return None
            return ToolError(f"the module of {name!r} ended with code {finished.exit_code}", **details)
        case "timeout":
            return ToolTimeout(f"the module of {name!r} was stopped: it was out of time", **details)
        case "cancelled":
            return ToolCancelled(f"the module of {name!r} was stopped", **details)
        case "trap":
            return ToolError(f"the module of {name!r} broke off: {finished.why}", **details)
        case limit:
            return ToolError(
                f"the module of {name!r} was stopped: {finished.why}", retryable=False, limit=limit, **details
            )


def _response(call: IsolatedCall, data: bytes) -> ToolResponse:
    """The answer of a module in the envelope of all tools. Raises `ToolPolicyInvalid` for one that breaks the contract.

    What it says of a failure holds, and what it leaves out has the defaults of its status.
    """
    name = call.definition.name

    def broken(why: str) -> ToolError:
        return _harmless(
            ToolPolicyInvalid(
                f"the module of {name!r} breaks its contract: {why}",
                hint='it must answer {"contract_version":"v1","status":"ok","output":"…"}, with ok, error or denied',
                isolation_mode=MODE,
                tool=name,
            )
        )

    if not data.strip():
        raise broken("it answered nothing")
    if has_more_values(data):
        raise broken(f"its answer has more than {MOST_VALUES:,} values")
    try:
        answer = _answers.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise broken(f"its answer is not what was agreed: {str(error)[:200]}") from None
    if deeper_than(answer.output, DEEPEST):  # what can be read differs between Pythons
        raise broken(f"its answer is nested more than {DEEPEST} levels deep")
    if answer.contract_version.strip().lower() != VERSION:
        raise broken(f"it speaks contract {answer.contract_version[:40]!r}, and not {VERSION}")
    status = answer.status.strip().lower()
    if status not in ("ok", "error", "denied"):
        raise broken(f"it answered the status {answer.status[:40]!r}")
    if status == "ok":
        return normalise_response(ToolResponse(status="ok", output={"result": answer.output}), call.request)
    said, denied = answer.error or _ModuleError(), status == "denied"
    details = {"isolation_mode": MODE, "contract_version": VERSION, "module_status": status, "tool": name}
    retryable = said.retryable if said.retryable is not None else not denied
    error = ContractError(
        code=said.code.strip() or ("permission_denied" if denied else "execution_failed"),
        reason=said.reason.strip() or ("tool_permission_denied" if denied else "tool_backend_failure"),
        retryable=retryable,
        message=said.message,
        details={**(said.details or {}), **details},
    )
    return normalise_response(ToolResponse(status=status, error=error), call.request)


def _harmless(failure: ToolError) -> ToolError:
    failure.before_effect = True
    return failure
