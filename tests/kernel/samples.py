"""Events with every field set. Their bytes are kept for ever: golden/ has one of every type.

A field that is added to a type later is set in `GROWN`, whose bytes are in golden_grown/: no golden file ever changes.
"""

from __future__ import annotations

from msgspec.structs import replace

from foliot.kernel.identity import Identity
from foliot.kernel.messages import (
    Media,
    Message,
    ModelResponse,
    Reasoning,
    Source,
    Text,
    ToolCall,
    ToolFailure,
    ToolResult,
    Usage,
)
from foliot.kernel.run import events as e

USAGE = Usage(120, 30, 80, 10, 5, 0.0123, "estimated")
ANSWER_USAGE = Usage(120, 30, cache_write_1h_tokens=8, web_searches=2, file_searches=1, tier="flex")
RESULT = ToolResult(
    "c1",
    "search",
    (Text("nothing \u2013 \U0001f50e"), Media("image/png", data="aGk=", name="a.png")),
    ToolFailure("timeout", "tool_execution_timeout", "too slow", True, "timeout", {"a": [None, 1.5], "z": 1}),
)
ANSWER = Message(
    "assistant",
    (Reasoning("hm", "sig", "opaque"), Text("I look"), ToolCall("c1", "search", '{"q": "x"}', "thought")),
)
SNAPSHOT = e.WorkspaceSnapshot("sha256:aa", 3, 12, 4096)
FOLDER = e.FolderFiles("0a1b", "sha256:06", "sha256:07", "l1", 3, 120)
INPUT = Message("user", (Text("hi"), Media("application/pdf", blob="sha256:aa", url=None, name="b.pdf")))

SAMPLES: tuple[e.Event, ...] = (
    e.RunCreated(
        "clerk",
        "sha256:00",
        (INPUT,),
        "acme",
        {"Agent/a": "sha256:1", "Tool/b": "sha256:2"},
        "sha256:03",
        e.Fork("run-0", 7),
        "task-1",
        "run-p",
        2,
    ),
    e.RunClaimed(2, "worker-1", 9),
    e.RunWaiting("approval", "person", ("c1", "c2"), 1234.5, "pay needs an approval"),
    e.RunResumed("approval"),
    e.RunRetried(2, "worker_lost", "gone", 99.25),
    e.RunSucceeded("42", {"a": "x", "b": [1, 2.5, None, True]}, 3, 2, USAGE),
    e.RunFailed("budget_exceeded", "steps", "no more steps", 10, 4, USAGE),
    e.RunCancelled("ann", "enough", 1, 1, USAGE),
    e.RunDeadLettered("attempts_exhausted", "five workers died"),
    e.CancelRequested("ann", "enough"),
    e.StepStarted(3, 2),
    e.ModelResponded(3, ModelResponse(ANSWER, USAGE, "tool_calls", "m-1", "openai", "resp-1"), 0.75),
    e.ModelFailed(3, "rate_limit", "slow down", True, 2.5, 429, "openai", USAGE),
    e.ModelDelayed(3, 1720.5, "37 are in front", "default/main"),
    e.ModelCut(3, "The answer is fo", "stopped"),
    e.OutputRejected("schema", "answer with JSON", ("$.a is missing",)),
    e.OutputAccepted({"a": [1], "b": 1}),
    e.ToolStarted("c1", "search", "r1/c1", 2),
    e.ToolFinished(RESULT, 1.5, "duplicate", True, USAGE),
    e.ToolUnknown("c1", "timeout", "pay took longer than 1 s", 999.5, 1.5, USAGE, {"run-2": USAGE}),
    e.ToolHeld("c1", e.Unsettled("pay", '{"n":1}', "r2/c7", "timeout"), "r2"),
    e.ApprovalRequested("c1", "ap-1", "pay", "sha256:04", "over 100", ("ann", "bob"), 999.0),
    e.ApprovalDecided("c1", "edit", "ann", "less", '{"amount": 1}', "ap-1"),
    e.QuestionAsked("c1", "ask_user", "which one?", ("a", "b"), "a", 999.5),
    e.QuestionAnswered("c1", "b", "ann", True),
    e.UnknownDecided("c1", "happened", "ann", "saw it", RESULT),
    e.InputReceived("i1", INPUT, "interrupt", "ann"),
    e.MemoryWritten("plan", "session", "sha256:05", 17),
    e.SessionCompacted(4, INPUT, USAGE),
    e.SessionNotCompacted("it would be no shorter", "size", USAGE),
    e.CompactionRequested("ann"),
    e.BudgetExceeded("tool_calls", 3, 2, "too many", "finish", "answer now"),
    e.ContractViolated("duplicate_call", "again", True, "c1", "pay"),
    e.FolderKept("sha256:08", "sha256:09", {"data/a.md": "data/a.conflict-1.md"}, "it is full", "l1"),
    e.HookDecided(
        "before_tool",
        "c1",
        ("a", "b"),
        "Be brief.",
        ("pay",),
        "m-2",
        '{"n":1}',
        "hi",
        "refuse",
        "not today",
        {"c": "late"},
    ),
)

GROWN: tuple[e.Event, ...] = (
    e.RunCreated("clerk", "sha256:00", trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    e.ModelResponded(1, ModelResponse(Message("assistant", (Text("hi"),)), endpoint="fast")),
    e.ToolFinished(ToolResult("c1", "ask"), usage=USAGE, runs={"run-1": Usage(1), "run-2": USAGE}),
    e.InputReceived("i1", Message("user", (Media("image/png", url="https://example.com/a.png"),))),
    e.BudgetExceeded("cost_usd", 2, 1.5, "no room", "pause", budget="team", until=99.5, call_id="c1"),
    e.RunCreated(
        "clerk", "sha256:00", identity=Identity("ann", "bob", "http"), system="desk", ancestors=("boss", "lead")
    ),
    e.RunCreated("clerk", "sha256:00", task="a/t-1", template="a/t", root="uid-1"),
    e.ApprovalRequested("c1", "ap-1", "pay", "sha256:00", approvers=("ann", "bob"), required=2, four_eyes=True),
    e.ToolStarted("c1", "pay", "k1", standing="sg-1", granted_by="ann"),
    e.BudgetExceeded("tokens", 2, 1, "no room", "pause", budget="team", basis="ab12"),
    e.RunRetried(2, "rate_limit", "busy", 99.25, counted=False),
    e.RunCreated("clerk", "sha256:00", unsettled=(e.Unsettled("pay", '{"amount":5}', "r1/c1", "timeout"),)),
    e.ToolFinished(ToolResult("c1", "pay", (), ToolFailure("t", "r", "m", unknown="timeout", key="r1/c1"))),
    e.StepStarted(2, note="half is gone"),
    e.ToolFinished(ToolResult("c1", "look"), ends_run=True, contract="v1"),
    e.ToolFinished(ToolResult("c1", "pay", (), ToolFailure("t", "r", "m", before_effect=True))),
    e.RunCreated("clerk", "sha256:00", equality=1),
    e.QuestionAsked("c1", "get_weather", "the client calls it", client=True),
    e.QuestionAnswered("c1", "a map", "ann", files=(Media("image/png", data="aGk=", name="map.png"),)),
    e.ModelResponded(2, ModelResponse(Message("assistant", (Text("hi"),)), ANSWER_USAGE), wasted=USAGE),
    e.ModelResponded(
        1,
        ModelResponse(
            Message("assistant", (Text("no"),)),
            stop="refusal",
            notes=("temperature was not sent",),
            detail="cyber",
            sources=(Source("https://example.com", "Example", "a quote", 0, 2),),
        ),
    ),
    e.RunCreated("clerk", "sha256:00", identity=Identity("ann", via="schedule:nightly", ordered_by=("cy", "root"))),
    e.ModelDelayed(2, 17.5, "no room", "default/spare", USAGE, "overloaded"),
    e.RunClaimed(2, "worker-1", 9, "north"),
    e.RunCreated("clerk", "sha256:00", workspace=SNAPSHOT),
    e.ToolFinished(ToolResult("c1", "bash"), workspace=SNAPSHOT),
    e.ToolUnknown("c1", "timeout", workspace=SNAPSHOT),
    e.ModelResponded(3, ModelResponse(Message("assistant", (Text("done"),))), workspace=SNAPSHOT),
    e.RunCreated("clerk", "sha256:00", after="r0", before=4),
    e.RunCreated("clerk", "sha256:00", after="r0", before=4, session="s-1", turn=3, inputs=(4, 5)),
    e.ToolFinished(ToolResult("c1", "look"), hooks=("redact",)),
    e.InputReceived("i1", Message("user", (Text("and Rome"),)), "followup", "ann", arrival=7),
    e.RunCreated("clerk", "sha256:00", after="r7", before=3, base="r5", summarised=40, sized=900, compacts=True),
    e.SessionCompacted(
        4, INPUT, USAGE, 5, 8, "r3", "r4", "r5", "fallback", "size", "acme/fast", tokens_before=900, tokens_after=80
    ),
    e.InputReceived("i1", Message("user", (Text("pay"),)), "steer", arrival=8, ordered_by=("cy", "root")),
    e.InputReceived("i2", Message("user", (Text("and Oslo"),)), "collect", arrival=9, said_at=1000.5, debounce=0.5),
    e.ToolFinished(ToolResult("c1", "bash"), workspace=replace(SNAPSHOT, data=FOLDER)),
    e.RunCreated(
        "clerk",
        "sha256:00",
        fork=e.Fork(
            "run-0", 7, (e.PastEffect("run-0", 2, "c1", "pay", "amount=5", "sha256:08", "once", "done", "5 euros"),)
        ),
    ),
    e.RunCreated("clerk", "sha256:00", fork=e.Fork("run-0", 7, step=2), missing=('missing tool "refnd"',)),
    e.RunCreated(
        "clerk",
        "sha256:00",
        past=(e.PastEffect("run-0", 2, "c1", "pay", "amount=5", "sha256:08", "once", "done", "5 euros"),),
    ),
    e.RunClaimed(2, "worker-2", 11, released=True),
)
