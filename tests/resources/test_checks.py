from __future__ import annotations

from typing import Any

import pytest

from foliot.resources.checks import check_references
from foliot.resources.graph import CYCLE
from foliot.resources.validate import validate_document


def made(kind: str, name: str = "it", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    document, problems = validate_document(
        {"kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}
    )
    assert problems == []
    assert document is not None
    return document


def nothing(kind: str, namespace: str, name: str) -> bool:
    return False


def found(
    *documents: dict[str, Any], known: Any = nothing, find: Any = None, names: Any = lambda *_: ()
) -> list[tuple[int, str, str, str]]:
    return [(i, p.severity, p.field, p.message) for i, p in check_references(documents, known, find, names=names)]


def servers(kind: str, namespace: str) -> list[str]:
    return ["files"] if kind == "McpServer" else []


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            made("Agent", model_ref="m"),
            [("spec.model_ref", 'agent "it" model resolution failed: model endpoint "m" not found')],
        ),
        (
            made("Agent", model_ref="m", tools=["t"], roles=["ops/r"], memory={"ref": "n"}, fallbacks=["f"]),
            [
                ("spec.model_ref", 'agent "it" model resolution failed: model endpoint "m" not found'),
                ("spec.fallbacks[0]", 'agent "it" model resolution failed: model endpoint "f" not found'),
                ("spec.tools[0]", 'agent "it" references missing tool "t"'),
                ("spec.roles[0]", 'agent "it" references missing role "ops/r"'),
                ("spec.memory.ref", 'agent "it" references missing memory "n"'),
            ],
        ),
        (made("AgentSystem", agents=["a"]), [("spec.agents[0]", 'agent "a" not found')]),
        (made("Task", system="s"), [("spec.system", 'agentsystem "s" not found')]),
        (made("Task", agent="a"), [("spec.agent", 'agent "a" not found')]),
        (
            made("TaskSchedule", task_ref="ops/t", schedule="@daily"),
            [("spec.task_ref", 'task template "ops/t" not found')],
        ),
        (
            made("Tool", type="mcp", mcp_server_ref="files", mcp_tool_name="read"),
            [("spec.mcp_server_ref", 'tool "it" references missing MCP server "files"')],
        ),
        (
            made("Tool", type="function", function="a:b", requires=["x", "secret:ops/k", "capability:web"]),
            [
                ("spec.requires[0]", 'tool "it" references missing tool "x"'),
                ("spec.requires[1]", 'tool "it" references missing secret'),
            ],
        ),
        (
            made("McpServer", transport="stdio", command="x", env=[{"name": "A", "secretRef": "k:v"}]),
            [("spec.env[0].secretRef", 'mcpserver "it" references missing secret "k"')],
        ),
        (
            made("TaskWebhook", task_ref="t", auth={"secret_ref": "k"}),
            [
                ("spec.task_ref", 'task template "t" not found'),
                ("spec.auth.secret_ref", 'taskwebhook "it" references missing secret "k"'),
            ],
        ),
    ],
)
def test_what_is_named_and_not_there_is_an_error(document: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert found(document) == [(0, "error", field, message) for field, message in expected]
    assert found(document, known=None) == [(0, "warning", field, message) for field, message in expected]


def test_what_may_have_been_meant_is_told_of_ones_own_namespace_alone() -> None:
    documents = [made("ToolPermission", tool_ref="refnd"), made("Tool", "refund", type="function", function="a:b")]
    agent = made("Agent", "a", model_ref="ops/modle")

    def names(kind: str, namespace: str) -> list[str]:
        return ["model"]

    hints = [problem.hint for _, problem in check_references([*documents, agent], nothing, names=names)]
    assert hints == ["did you mean refund?", None]


def test_a_key_that_was_pasted_in_the_place_of_a_name_is_not_repeated() -> None:
    key = "sk-abcdefghijklmnopqrstuvwxyz"
    document = made("ModelEndpoint", default_model="m", auth={"secretRef": key})
    ((_, problem),) = [each for each in check_references([document], nothing) if each[1].missing]
    assert (problem.message, key in str(problem)) == ('modelendpoint "it" references missing secret', False)


def test_a_rule_knows_a_tool_by_its_token_and_may_mean_many_by_a_pattern() -> None:
    tool = made("Tool", "web-search", type="function", function="a:b")
    policy = made("AgentPolicy", blocked_tools=["Web_Search", "web-*", "wbe-search"], apply_mode="global")
    assert [field for _, _, field, _ in found(policy, tool)] == ["spec.blocked_tools[2]"]


def test_a_tool_that_a_synced_server_does_not_offer_is_missing() -> None:
    server = made("McpServer", "files", transport="stdio", command="x")
    server["status"] = {"lastSyncedAt": "2026-01-01T00:00:00Z", "discoveredTools": [{"tool": "files--held"}]}
    agent = made("Agent", model_ref="m", tools=["files--held", "files--raed"])

    def find(kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return server if name == "files" else None

    def known(kind: str, namespace: str, name: str) -> bool:
        return name in ("files", "m")

    assert [field for _, _, field, _ in found(agent, known=known, find=find, names=servers)] == ["spec.tools[1]"]


def test_a_tool_that_is_there_in_another_version_is_missing() -> None:
    tool = made("Tool", "pay", type="function", function="a:b", version="1.2.0")
    asked = ["pay", "pay@1", "pay@^1.1", "pay@1.2.0", "pay@9.9.9", "pay@~1.3"]
    agents = [made("Agent", f"a{number}", model_ref="m", tools=[each]) for number, each in enumerate(asked)]
    told = found(tool, made("ModelEndpoint", "m", provider="mock"), *agents)
    assert [(i, field) for i, _, field, _ in told] == [(6, "spec.tools[0]"), (7, "spec.tools[0]")]


@pytest.mark.parametrize("field", ["tools", "allowed_tools"])
def test_each_version_of_a_tool_is_looked_at(field: str) -> None:
    tool = made("Tool", "pay", type="function", function="a:b", version="1.2.0")
    agent = made("Agent", model_ref="m", **({"tools": ["pay"]} | {field: ["pay", "pay@1", "pay@9"]}))
    agent["spec"].setdefault("allowed_tools", []).append("pay@nonsense")
    told = found(tool, made("ModelEndpoint", "m", provider="mock"), agent)
    assert [path for _, _, path, _ in told] == [f"spec.{field}[2]", f"spec.allowed_tools[{3 * (field != 'tools')}]"]


def test_what_is_there_is_not_mentioned() -> None:
    agent = made("Agent", "a", model_ref="shared/m", tools=["t"], roles=["r"], memory={"ref": "n"})
    asked: set[tuple[str, str, str]] = set()

    def known(kind: str, namespace: str, name: str) -> bool:
        asked.add((kind, namespace, name))
        return True

    assert found(agent, known=known) == []
    assert asked == {
        ("ModelEndpoint", "shared", "m"),
        ("Tool", "default", "t"),
        ("AgentRole", "default", "r"),
        ("Memory", "default", "n"),
    }


def test_documents_that_come_together_know_each_other() -> None:
    documents = [
        made("Agent", "a", "ops", model_ref="m"),
        made("ModelEndpoint", "m", "ops", provider="mock"),
        made("AgentSystem", "s", "ops", agents=["a"]),
        made("Task", "t", "ops", system="s"),
    ]
    assert found(*documents) == []


def test_the_same_name_in_another_namespace_does_not_count() -> None:
    agent, model = made("Agent", "a", "ops", model_ref="m"), made("ModelEndpoint", "m", provider="mock")
    assert len(found(agent, model)) == 1


def test_without_a_store_the_warning_says_so() -> None:
    ((_, problem),) = check_references([made("Task", system="s")], None)
    assert problem.hint == "not among these manifests"


def test_a_secret_may_come_from_the_environment() -> None:
    document = made("ModelEndpoint", default_model="m", auth={"secretRef": "key"})
    ((_, problem),) = check_references([document], nothing)
    assert (problem.severity, problem.hint) == ("error", "the environment may provide it")


def test_a_key_in_clear_among_the_headers_of_a_tool_is_doubted_without_repeating_it() -> None:
    headers = {"authorization": "Bearer sesame", "Accept": "text/csv"}
    tool = made("Tool", endpoint="https://x.example", http={"headers": headers})
    ((_, problem),) = check_references([tool], nothing)
    assert (problem.severity, problem.field) == ("warning", "spec.http.headers.authorization")
    assert "sesame" not in str(problem)


def test_tools_of_memory_and_of_a_known_server_need_no_declaration() -> None:
    agent = made("Agent", model_ref="m", tools=["memory.read", "files--read", "other--read"])

    def known(kind: str, namespace: str, name: str) -> bool:
        return name in ("m", "files")

    problems = check_references([agent], known, names=servers, built_in="memory.read".__eq__)
    assert [problem.field for _, problem in problems] == ["spec.tools[2]"]


def test_what_is_named_in_several_lists_is_mentioned_once() -> None:
    agent = made("Agent", model_ref="m", tools=["t"], allowed_tools=["t"])
    assert [field for _, _, field, _ in found(agent)] == ["spec.model_ref", "spec.tools[0]"]


def test_the_graph_of_a_system_is_checked_with_it() -> None:
    system = made("AgentSystem", agents=["a"], graph={"a": {"next": "b"}})
    assert (0, "error", "spec.graph.a.next", 'graph edge "a" -> "b" points to unknown agent') in found(
        system, known=lambda *_: True
    )


LOOP = {"a": {"next": "b"}, "b": {"next": "a"}}


@pytest.mark.parametrize("mode", ["run", "template"])
def test_a_task_that_could_run_for_ever_is_an_error(mode: str) -> None:
    system = made("AgentSystem", "s", agents=["a", "b"], graph=LOOP)
    task = made("Task", "t", system="s", mode=mode)
    assert (1, "error", "spec.max_turns", CYCLE) in found(system, task, known=lambda *_: True)


@pytest.mark.parametrize(("of_system", "of_task"), [(3, 0), (None, 3)])
def test_a_turn_limit_in_either_place_is_enough(of_system: int | None, of_task: int) -> None:
    system = made("AgentSystem", "s", agents=["a", "b"], graph=LOOP, max_turns=of_system)
    task = made("Task", "t", system="s", max_turns=of_task)
    assert not [problem for problem in found(system, task, known=lambda *_: True) if problem[1] == "error"]


def test_a_task_is_checked_against_a_stored_system() -> None:
    stored = made("AgentSystem", "s", agents=["a", "b"], graph=LOOP)
    task = made("Task", "t", system="s")
    assert found(task, known=lambda *_: True, find=lambda *_: stored) == [(0, "error", "spec.max_turns", CYCLE)]
    assert found(task, known=lambda *_: True, find=lambda *_: None) == []


def test_a_schedule_needs_a_template() -> None:
    schedule = made("TaskSchedule", task_ref="t", schedule="@daily")
    runs, template = made("Task", "t", agent="a"), made("Task", "t", agent="a", mode="template")
    message = 'task template "t" must set spec.mode=template'
    assert found(schedule, runs, known=lambda *_: True) == [(0, "warning", "spec.task_ref", message)]
    assert found(schedule, template, known=lambda *_: True) == []


def test_a_tool_without_an_address_is_doubtful() -> None:
    assert found(made("Tool")) == [
        (0, "warning", "spec.endpoint", "a tool of type http without spec.endpoint cannot be called")
    ]


@pytest.mark.parametrize("field", ["after", "requires_prior"])
def test_tools_that_wait_for_each_other_are_an_error(field: str) -> None:
    one = made("Tool", "one", type="function", function="a:b", **{field: ["two"]})
    two = made("Tool", "two", type="function", function="a:b", **{field: ["one"]})
    assert found(one, two) == [(0, "error", f"spec.{field}", "these tools wait for each other: one -> two -> one")]


def test_a_key_that_a_secret_has_not_is_a_warning() -> None:
    secret = made("Secret", "llm-key", stringData={"key": "sk-1"})
    plain = made("ModelEndpoint", provider="openai", default_model="m", auth={"secretRef": "llm-key"})
    keyed = made("ModelEndpoint", provider="openai", default_model="m", auth={"secretRef": "llm-key:key"})
    hook = made("TaskWebhook", task_ref="t", auth={"profile": "generic", "secret_ref": "llm-key"})
    said = ("warning", "spec.auth.secretRef", "Secret/llm-key has no key `value`; it has `key`")

    assert found(secret, plain) == [(1, *said)], "given along with it"
    assert found(plain, known=lambda *_: True, find=lambda *_: secret) == [(0, *said)], "stored before"
    assert found(secret, keyed) == []
    assert [each for each in found(secret, hook) if "key" in each[3]] == [], "a webhook takes the first key"


def test_a_scoped_policy_without_targets_is_doubted() -> None:
    said = [(0, "warning", "spec", "a scoped policy without targets holds for nothing")]
    assert found(made("AgentPolicy", blocked_tools=["p*"])) == said
    assert found(made("AgentPolicy", blocked_tools=["p*"], apply_mode="global")) == []
    targeted = made("AgentPolicy", blocked_tools=["p*"], target_tasks=["nightly"])
    assert found(targeted, known=lambda *_: True) == []


def test_the_very_name_that_is_asked_for_is_never_what_was_meant() -> None:
    def names(kind: str, namespace: str) -> list[str]:
        return ["refund", "refunds"]

    http = {"type": "http", "endpoint": "http://127.0.0.1:9/"}
    for document in (made("Tool", **http, requires=["refund"]), made("ToolPermission", tool_ref="refund")):
        ((_, problem),) = [each for each in check_references([document], nothing, names=names) if each[1].missing]
        assert problem.hint == "did you mean refunds?"
