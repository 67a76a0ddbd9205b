"""The execution contract: which tools a run must use, which calls it may repeat, what its answer must contain.

Repeats. Only a call with the same tool and the same arguments as an earlier *successful* one is a repeat.
`short_circuit` answers it with the earlier result. For a tool that only reads this holds as long as no call of the run
may have changed anything since: a file that was read, edited and read again is read again. Two equal calls in one
answer are taken one after the other, so that the second can profit from the first. A tool whose rule says `repeats` is
never answered so: the same command may give something else each time.
`deny` makes a repeat a violation of the contract; without a contract the call is refused, and the model is told.
"""

from __future__ import annotations

from typing import Any

from foliot.kernel.arguments import canonical, sameness
from foliot.kernel.run import feedback
from foliot.kernel.run.events import ContractRule, ContractViolated, Event, OutputRejected, ToolFinished
from foliot.kernel.run.state import Call, FinalAnswer, State


def examine(state: State, call: Call, arguments: dict[str, Any]) -> None:
    """Hold a call that could be run against the contract; marks it, and decides nothing."""
    spec = state.spec
    if spec.contract is not None and call.name not in spec.contract.required_tools:
        call.violation = "undeclared_tool"
    repeats = call.rule is not None and call.rule.repeats
    if spec.duplicates == "allow" or (spec.duplicates == "short_circuit" and repeats):
        return
    call.signature = signature_of(state, call.name, arguments)
    cached = state.cache.get(call.signature)
    if cached is not None and (call.effect != "read" or _effects_at(state, call.signature) == state.effects):
        _repeat(state, call, feedback.repeated(call.id, cached))
        return
    for earlier in reversed(state.calls):
        if earlier.signature == call.signature:
            call.twin = earlier
            return


def signature_of(state: State, name: str, arguments: dict[str, Any]) -> bytes:
    """Returns the key that is equal for two calls that count as the same: the tool, and what its arguments mean to it.

    One is kept for each call of a run, and its digest is how calls in doubt are known to other runs.
    """
    tool = name.encode("utf-8", "replace") + b"\0"
    if state.created is None or not state.created.equality:
        return tool + canonical(arguments)
    rule = state.rules.get(name)
    return tool + sameness(arguments, None if rule is None else rule.spec.schema)


def settle_twins(state: State, call: Call, event: ToolFinished) -> None:
    """A call with a signature has its result: remember it, and let an equal one of this step follow or go ahead."""
    assert call.signature is not None
    decides = state.created is not None and state.created.equality > 0
    if call.succeeded and (event.synthetic is None or (event.synthetic == "decided" and decides)):
        # As it was when the call began: what changed beside it may not be in what it read.
        state.cache[call.signature] = event.result
        if call.effects_before:
            state.cached_at = state.cached_at or {}
            state.cached_at[call.signature] = call.effects_before
    for other in state.calls:
        if other.twin is call:
            other.twin = None
            cached = state.cache.get(call.signature)
            if not call.succeeded or cached is None:
                continue
            if decides and other.phase == "unknown" and not other.attempts:
                other.phase = "requested"  # it stands for the same call, which is settled
            if other.phase == "requested":
                _repeat(state, other, feedback.repeated(other.id, cached))


def _effects_at(state: State, signature: bytes) -> int:
    """The effects that were known when the call began whose result is kept under this signature."""
    return 0 if state.cached_at is None else state.cached_at.get(signature, 0)


def release_twins(state: State, call: Call) -> None:
    """The arguments of a call were edited: it is no longer the call the model wrote, and nothing is a repeat of it."""
    call.signature = None
    for other in state.calls:
        if other.twin is call:
            other.twin = None


def _repeat(state: State, call: Call, verdict: ToolFinished) -> None:
    if state.spec.duplicates == "deny" and state.spec.contract is not None:
        call.violation = "duplicate_call"
    elif state.spec.duplicates == "deny" and _is_strict(state):
        call.verdict = feedback.refused_repeat(call.id, call.name)
    else:
        call.verdict = verdict


def _is_strict(state: State) -> bool:
    """Whether the run began under the present reading of `deny` and `observe`; older journals replay as they went."""
    return state.created is not None and state.created.equality > 1


def violations(state: State) -> tuple[ContractViolated, ...]:
    """Returns the contract violations of this step's calls that are not recorded yet."""
    contract = state.spec.contract
    if contract is None:
        return ()
    observed = contract.on_violation == "observe"
    found: list[ContractViolated] = []
    for call in state.calls:
        if call.violation is not None:
            if call.violation == "undeclared_tool":
                message = f"the contract names the tools it allows, and {call.name} is not one of them"
            else:
                message = f"{call.name} was called again with the same arguments"
            found.append(ContractViolated(call.violation, message, observed, call.id, call.name))
    return tuple(found)


def fold_violation(state: State, event: ContractViolated) -> None:
    """Under `observe` the run goes on: an undeclared tool is run, a repeated call is skipped, the answer stands."""
    if not event.observed:
        state.end("contract_violation", "agent_contract_violation", event.message)
    call = None if event.call_id is None else state.call(event.call_id)
    if call is None:
        state.waived = state.waived.union((event.rule,))
        return
    call.violation = None
    if event.rule == "duplicate_call":
        call.verdict = feedback.not_run(call.id, call.name, "contract", started=False)


def judge(state: State, answer: FinalAnswer, *, may_ask: bool) -> Event | None:
    """Checks the final answer; returns the fact to record if it is not acceptable, else None.

    A promise of the contract that is not kept is told to the model first, as long as it may be asked again; a contract
    that only watches costs no further question.
    """
    if answer.cut:
        return OutputRejected("truncated", feedback.TRUNCATED)
    if answer.empty:
        return OutputRejected("empty", feedback.EMPTY)
    contract = state.spec.contract
    if contract is None:
        return None
    tools = tuple(name for name in contract.required_tools if name not in state.tools_done)
    if tools and "required_tools" not in state.waived:
        message = f"the run ended without having used {', '.join(tools)}"
        return _owed(state, "required_tools", feedback.missing_tools(tools), tools, message, may_ask)
    markers = tuple(marker for marker in contract.markers if marker not in answer.text)
    if markers and "markers" not in state.waived:
        message = f"the final answer does not contain {', '.join(map(repr, markers))}"
        return _owed(state, "markers", feedback.missing_markers(contract.markers), markers, message, may_ask)
    return None


def _owed(
    state: State, rule: ContractRule, told: str, problems: tuple[str, ...], message: str, may_ask: bool
) -> OutputRejected | ContractViolated:
    contract = state.spec.contract
    assert contract is not None
    observed = contract.on_violation == "observe"
    if may_ask and not (observed and _is_strict(state)) and state.output_repairs < state.spec.repairs.outputs:
        return OutputRejected("required_tools" if rule == "required_tools" else "markers", told, problems)
    return ContractViolated(rule, message, observed)
