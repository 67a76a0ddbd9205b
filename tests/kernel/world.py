"""A world that is hostile by chance: models that blunder, tools that fail, people that interfere, workers that die.

It plays the kernel the way a careful shell does, with a disk: facts are folded at once, become durable only before
something acts, and what is not durable is lost when the worker dies. The chance is hypothesis', so a failure shrinks.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from foliot.kernel.messages import Message, ModelResponse, Part, Text, ToolCall, ToolFailure, ToolResult, Usage
from foliot.kernel.run import events as e
from foliot.kernel.run.actions import (
    Action,
    AskModel,
    Await,
    CallIntent,
    CallTools,
    CheckOutput,
    Compact,
    End,
    Note,
    Stop,
    Wait,
)
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.calls import key_of
from foliot.kernel.run.codec import decode, encode
from foliot.kernel.run.compaction import raw_among
from foliot.kernel.run.loop import apply, decide, fold
from foliot.kernel.run.rules import refusal
from foliot.kernel.run.spec import CompactionRules, Contract, Repairs, RunSpec
from foliot.kernel.run.state import State, owner_of
from tests.kernel.play import rule, user

NAMES = ("look", "save", "pay", "pay_or_fail")


def random_spec(chance: Random) -> RunSpec:
    some = lambda *options: chance.choice(options)  # noqa: E731 - a word for this function only
    return RunSpec(
        "clerk",
        "scripted",
        tools=(rule("look"), rule("save", "idempotent"), rule("pay", "once"), rule("pay_or_fail", "once", "fail")),
        limits=Limits(
            max_steps=some(3, 10, 20),
            max_tokens=some(None, None, None, 300),
            max_cost_usd=some(None, None, None, 0.1),
            max_seconds=some(None, None, None, 80.0),
            max_tool_calls=some(None, None, None, 4),
            parallel_tools=some(1, 2, 8),
        ),
        repairs=Repairs(calls=some(0, 3), outputs=some(0, 3), model=some(0, 3)),
        contract=some(None, None, None, Contract(("look", "save"), ("ok",), some("fail", "observe", "observe"))),
        duplicates=some("allow", "allow", "short_circuit", "deny"),
        output_schema=some(None, None, {"type": "object"}),
        tool_use_behavior=some("run_llm_again", "run_llm_again", "stop_on_first_tool"),
        on_limit=some("fail", "finish"),
        on_denied=some("tell", "tell", "fail"),
        compaction=some(False, True),
        compaction_rules=some(CompactionRules(), CompactionRules(40, 2), CompactionRules(60, 0)),
    )


class World:
    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.spec = random_spec(chance)
        self.clumsy = chance.choice((1, 3, 20))  # how often, in percent, each thing that can go wrong does
        self.durable: list[tuple[float, e.Event]] = []
        self.unwritten: list[tuple[float, e.Event]] = []
        self.acts: Counter[str] = Counter()  # what really happened, by idempotency key
        self.running: dict[str, CallIntent] = {}
        self.asking: AskModel | None = None
        self.deaths = 0  # in the middle of a call
        self.shortages = 5  # how often a budget has no room
        self.retries = 2  # how often a failure is tried again instead
        self.now = 1000.0
        self.state = State(self.spec, "r1")
        self.record(e.RunCreated("clerk", "sha256:0", (user("go"),)), e.RunClaimed(1))
        self.flush()

    def maybe(self, percent: int) -> bool:
        return self.chance.randrange(100) < percent

    # --- the journal

    def record(self, *events: e.Event) -> None:
        for event in events:
            self.now += self.chance.choice((0.0, 0.5, 3.0))
            event = decode(encode(event))
            apply(self.state, event, self.now)
            self.unwritten.append((self.now, event))

    def flush(self) -> None:
        self.durable += self.unwritten
        self.unwritten.clear()

    @property
    def facts(self) -> list[tuple[float, e.Event]]:
        return self.durable + self.unwritten

    def crash(self) -> None:
        """The worker dies with all it had not written; what it had started may or may not happen."""
        self.unwritten.clear()
        self.running.clear()
        self.asking = None
        self.state = fold(self.spec, "r1", self.durable)
        if self.state.ended is None:
            self.record(e.RunClaimed(self.state.next_attempt))

    # --- the shell

    def play(self) -> None:
        trouble = 12  # enough of it: hypothesis would let the worker die for ever
        for _ in range(400):
            action = decide(self.state)
            self.check_decision(action)
            if isinstance(action, Stop):
                self.flush()
                return
            if isinstance(action, End) and isinstance(action.terminal, e.RunFailed) and self.retries and self.maybe(50):
                self.try_again(action)
                continue
            self.record(*action.events)
            if trouble and self.maybe(8):
                trouble -= 1
                self.crash() if self.maybe(40) else self.meddle()
            else:
                self.perform(action)
        raise AssertionError("the run does not come to an end")

    def try_again(self, action: End) -> None:
        """Instead of the end, as for a run of a task that allows another attempt."""
        self.retries -= 1
        self.record(*action.events[:-1], e.RunRetried(self.state.attempt, "failed", due=self.now + 30))
        self.flush()
        self.running.clear()
        self.asking = None
        self.now += 30

    def check_decision(self, action: Action) -> None:
        assert action == decide(self.state), "asked twice, it says the same"
        refolded = fold(self.spec, "r1", self.facts)
        assert decide(refolded) == action, "the fold of the journal is the live state"
        assert refolded.transcript == self.state.transcript
        if isinstance(action, AskModel):
            assert action.request.messages[-1].role != "assistant", "a model is not asked to go on with its own answer"
        if isinstance(action, Wait):
            assert action.waiting.owner in ("person", "timer", "capacity", "budget")
        if self.state.ended is None:
            assert owner_of(self.state).kind != "nobody"

    def perform(self, action: Action) -> None:
        match action:
            case Note():
                pass
            case AskModel():
                self.flush()
                self.asking = action
            case CallTools():
                self.start(action)
            case Await():
                self.flush()
                self.hear(action)
            case CheckOutput():
                good = self.maybe(60)
                self.record(e.OutputAccepted(1) if good else e.OutputRejected("schema", "again", ("bad",)))
            case Compact():
                self.flush()
                self.compact(action)
            case Wait(waiting=waiting):
                self.flush()
                self.answer_wait(waiting)
            case End() | Stop():
                self.flush()

    def compact(self, action: Compact) -> None:
        if action.replace and self.maybe(70):
            last = self.state.summarised + raw_among(self.state, action.replace)
            self.record(e.SessionCompacted(action.replace, user("summary"), last=last, cause=action.cause))
        elif action.cause == "overflow":
            self.record(e.ModelFailed(action.step, "context_overflow", "still"))
        else:
            self.record(e.SessionNotCompacted("no shorter", action.cause))

    def start(self, action: CallTools) -> None:
        starting: list[CallIntent] = []
        for call in action.calls:
            if call.rule.effect == "once" and call.grant is None and call.attempt == 1 and self.maybe(25):
                expires = self.now + 20 if self.maybe(30) else None
                self.record(e.ApprovalRequested(call.call_id, f"ap-{call.call_id}", call.name, "d", expires_at=expires))
            elif call.attempt == 1 and self.maybe(10):
                expires = self.now + 20 if self.maybe(30) else None
                default = "yes" if self.maybe(50) else None
                self.record(e.QuestionAsked(call.call_id, call.name, "really?", ("yes", "no"), default, expires))
            elif self.shortages and self.maybe(5):
                self.record(self.no_room(call.call_id))
            elif self.maybe(self.clumsy):
                kind = self.chance.choice(("invalid_arguments", "denied"))
                self.record(e.ToolFinished(self.outcome(call, kind)))
            else:
                starting.append(call)
        if self.state.ending is not None:
            return
        self.record(*(call.started() for call in starting))
        self.flush()
        for call in starting:
            assert call.key not in {other.key for other in self.running.values()}
            self.running[call.call_id] = call
            if self.maybe(70):
                self.acts[call.key] += 1  # it acts at once; if the worker dies now, nobody has written that it did
            elif self.deaths < 5 and self.maybe(30):
                self.deaths += 1
                self.crash()
                return

    def hear(self, action: Await) -> None:
        """Something that is under way comes back."""
        if self.asking is not None and action.model:
            answer = self.no_room() if self.shortages and self.maybe(5) else self.answer(self.asking)
            if not isinstance(answer, e.ModelResponded) and self.maybe(50):
                self.record(e.ModelCut(self.asking.step, "I was about", self.chance.choice(("failed", "stopped"))))
            self.record(answer)
            self.asking = None
            return
        assert action.calls, "the kernel waits for something that is under way"
        call = self.running.pop(self.chance.choice(action.calls))
        self.acts[call.key] = max(self.acts[call.key], 1)
        self.record(e.ToolFinished(self.outcome(call, self.chance.choice(("ok", "ok", "ok", "execution")))))

    def no_room(self, call_id: str | None = None) -> e.BudgetExceeded:
        self.shortages -= 1
        then = "pause" if self.maybe(80) else "fail"
        until = self.now + 30 if self.maybe(50) else None
        return e.BudgetExceeded("cost_usd", 2, 1, "no", then, budget="team", until=until, call_id=call_id)

    def outcome(self, call: CallIntent, kind: str) -> ToolResult:
        if kind == "ok":
            return ToolResult(call.call_id, call.name, (Text("ok"),))
        return ToolResult(call.call_id, call.name, (Text("no"),), ToolFailure("x", "x", "no", kind=kind))

    def answer(self, action: AskModel) -> e.Event:
        assert action.step <= (self.spec.limits.max_steps or 99)
        if self.maybe(self.clumsy):
            kind = self.chance.choice(("overloaded", "overloaded", "auth", "context_overflow"))
            return e.ModelFailed(action.step, kind, "no", kind == "overloaded")
        parts: list[Part] = []
        if self.maybe(80):
            for _ in range(self.chance.choice((1, 1, 2, 3))):
                name = "missing" if self.maybe(self.clumsy) else self.chance.choice(NAMES)
                bad = self.chance.choice(('{"a":', "")) if self.maybe(self.clumsy) else None
                arguments = bad if bad is not None else self.chance.choice(("{}", '{"a":1}', '{"a": 1}'))
                parts.append(ToolCall(self.chance.choice(("c1", "c2", "")), name, arguments))
        if not parts or self.maybe(30):
            parts.insert(0, Text(" " if self.maybe(self.clumsy) else self.chance.choice(("ok", "ok then", "no"))))
        stop = self.chance.choice(("length", "refusal", "other")) if self.maybe(self.clumsy) else "end"
        usage = Usage(20, 5, cost_usd=None if self.maybe(self.clumsy) else 0.01)
        return e.ModelResponded(action.step, ModelResponse(Message("assistant", tuple(parts)), usage, stop))

    # --- people and timers

    def answer_wait(self, waiting: e.RunWaiting) -> None:
        if waiting.owner == "capacity":
            self.record(e.RunClaimed(self.state.next_attempt))
        elif waiting.until is not None and self.maybe(50):
            self.now = max(self.now, waiting.until)
            self.record(e.RunResumed("timer"))
        elif waiting.owner == "timer":
            assert waiting.until is not None, "a timer without a time would never go off"
            self.now = waiting.until
            self.crash()
        elif waiting.owner == "budget":
            self.record(e.RunResumed("budget"))
        else:
            self.decide_about(self.chance.choice(waiting.calls))

    def decide_about(self, call_id: str) -> None:
        call = self.state.call(call_id)
        assert call is not None
        if call.phase == "unknown":
            happened = self.acts[key_of(self.state, call)] > 0  # also that of an earlier call, which it stands for
            decision = "happened" if happened else self.chance.choice(("run", "fail"))
            self.record(e.UnknownDecided(call_id, decision, by="ann"))
        elif call.question is not None:
            self.record(e.QuestionAnswered(call_id, self.chance.choice(("yes", "no")), by="ann"))
        else:
            decision = self.chance.choice(("approve", "deny", "edit"))
            arguments = '{"edited":1}' if decision == "edit" else None
            self.record(e.ApprovalDecided(call_id, decision, by="ann", arguments=arguments))

    def meddle(self) -> None:
        """Something from outside, at any moment; refused when it has no place."""
        mode = self.chance.choice(("steer", "followup", "interrupt", "collect"))
        said_at, debounce = (self.now + self.chance.choice((-9, 0, 9)), 3.0) if mode == "collect" else (0.0, 0.0)
        event = self.chance.choice(
            (
                e.InputReceived(f"i{len(self.facts)}", user("also"), mode, said_at=said_at, debounce=debounce),
                e.InputReceived(f"i{len(self.facts)}", user("also"), mode, said_at=said_at, debounce=debounce),
                e.CancelRequested("ann"),
                e.RunRetried(self.state.attempt, "lost"),
                e.MemoryWritten("k"),
                e.CompactionRequested("ann"),
            )
        )
        if refusal(self.state, event) is None:
            self.record(event)
            if isinstance(event, e.RunRetried):  # the worker gave up, and all it had under way is gone
                self.flush()
                self.running.clear()
                self.asking = None
        self.resync()

    def resync(self) -> None:
        """An action was dropped for the meddling: what it had recorded as started must be under way, or be lost."""
        under_way = {call.id for call in self.state.calls if call.phase == "running"}
        if (self.state.asking and self.asking is None) or under_way - set(self.running):
            self.flush()
            self.crash()
