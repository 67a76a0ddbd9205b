# ruff: noqa: E501 - the table shows each line as it is printed
"""Each file in data/invalid beside everything that is said about it, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

from foliot.resources.problems import ManifestError
from foliot.resources.reader import read_manifests

INVALID = Path(__file__).parent / "data" / "invalid"

# What stands behind the file name and a colon.
FINDINGS: dict[str, list[str]] = {
    "alias_bomb.yaml": [
        "9:15: error: aliases repeat more than a manifest may hold (write the values out, or split the file)",
    ],
    "api_version.yaml": [
        '1:13: error: unsupported apiVersion "foliot.dev/v9" (expected foliot.dev/v1)',
    ],
    "binary.yaml": [
        "1:1: error: this is a binary file, not text",
    ],
    "broken_between.yaml": [
        '4:8: error: spec.regoin: unknown field "regoin" (did you mean region?)',
        "7:11: error: the mapping opened with { is not closed, or a comma is missing (add the } or the comma)",
        '12:16: error: spec.region must be a string, not a number (put it in quotes: "7")',
        '12:19: error: spec.gpu: unknown field "gpu" (did you mean spec.capabilities.gpu?)',
    ],
    "colon.yaml": [
        "7:19: error: a ':' is not expected here (quote the text if it contains ': ', or check the indentation of this line)",
    ],
    "comments.yaml": [
        "1:1: error: there is no manifest here, only comments",
    ],
    "deep.yaml": [
        "5:72: error: values are nested more than 64 deep",
    ],
    "duplicate_key.json": [
        "4:28: error: metadata.name: the key 'name' is given twice (it is first given in line 4, column 15; remove one of them)",
        '5:11: error: spec.regions: unknown field "regions" (did you mean region?)',
    ],
    "duplicate_key.yaml": [
        "5:3: error: metadata.name: the key 'name' is given twice (it is first given in line 4, column 3; remove one of them)",
        "8:3: error: spec.region: the key 'region' is given twice (it is first given in line 7, column 3; remove one of them)",
    ],
    "duplicate_resource.yaml": [
        "9:9: error: metadata.name: Worker/w in namespace 'default' is declared twice (it is first declared in duplicate_resource.yaml:1; remove or rename one of them)",
    ],
    "duplicate_spelling.yaml": [
        "6:3: error: spec.modelRef: given twice: as model_ref and as modelRef (keep one of the two)",
    ],
    "empty.yaml": [
        "1:1: error: there is no manifest here, the file is empty",
    ],
    "every_problem_at_once.yaml": [
        "4:9: error: invalid metadata.name \"not a name\": expected 1 to 253 letters, digits, '-', '_' or '.', beginning and ending with a letter or digit",
        '6:9: error: invalid spec.type "carrier-pigeon": expected http, external, grpc, queue, webhook-callback, mcp, wasm, function, or cli',
        '7:15: error: invalid spec.risk_level "extreme": expected low, medium, high, or critical',
        '9:14: error: invalid spec.runtime.timeout "soon": not a duration; the units are ns, us, ms, s, m, h and d (expected a duration such as 30s or 1h30m)',
        '10:21: error: invalid spec.runtime.retry.jitter "some": expected none, full, or equal',
        "11:3: error: spec.auth.secretRef is required when auth.profile is set",
    ],
    "graph.yaml": [
        '10:11: error: spec.graph.a.edges[1].target: unknown field "target"',
        '12:20: error: invalid spec.graph.b.join.mode "most": expected wait_for_all or quorum',
        "12:41: error: invalid spec.graph.b.join.quorumPercent 140: expected <= 100",
    ],
    "indentation.yaml": [
        "5:2: error: this line does not fit the indentation above it (fields of one mapping start in the same column; items of a list start with '- ')",
    ],
    "latin1.yaml": [
        "4:12: error: the file is not UTF-8: byte 0xE9 at offset 60 does not belong there (save the file as UTF-8; now it may be Latin-1 or Windows-1252)",
    ],
    "list.yaml": [
        "3:1: error: unknown field in a List: itmes (expected items)",
        "8:5: error: spec.model_ref is required",
        "9:5: error: items[1]: this is text, not a manifest (expected a mapping with apiVersion, kind, metadata and spec)",
        '14:7: error: spec.maxConcurrentTask: unknown field "maxConcurrentTask" (did you mean max_concurrent_tasks?)',
    ],
    "missing_kind.yaml": [
        "1:1: error: kind is required (expected one of Agent, AgentSystem, ModelEndpoint, Tool, Secret, Memory, Skill, McpServer, AgentPolicy, AgentRole, ToolPermission, ToolApproval, Task, TaskSchedule, TaskWebhook, TaskHook, Channel, Worker, Budget, ReferenceGrant)",
    ],
    "missing_name.yaml": [
        "3:1: error: metadata.name is required",
    ],
    "missing_required.yaml": [
        "4:1: error: spec.task_ref is required (or name a session with spec.session)",
        "4:1: error: spec.schedule is required (or give one time with spec.at)",
    ],
    "not_a_mapping.yaml": [
        "1:1: error: this is a list, not a manifest (expected a mapping with apiVersion, kind, metadata and spec; separate several manifests by lines with '---')",
    ],
    "numeric_keys.yaml": [
        '7:5: error: spec.input.1: the key 1 is a number, not text (quote it: "1")',
        '8:5: error: spec.input.true: the key true is true or false, not text (quote it: "true")',
    ],
    "plain_text.yaml": [
        "1:1: error: this is text, not a manifest (expected a mapping with apiVersion, kind, metadata and spec)",
    ],
    "secret_value.yaml": [
        "6:12: error: spec.data.token must be valid base64 (put plain text under stringData)",
        "7:12: error: spec.data.empty is empty",
    ],
    "tabs.yaml": [
        "4:1: error: a tab is used for indentation; YAML allows only spaces (replace the tab with spaces)",
    ],
    "tags.yaml": [
        "4:9: error: metadata.name: tags are not allowed in a manifest (remove it: manifests hold plain values only; quote a text that starts with '!')",
        "6:14: error: spec.model_ref: tags are not allowed in a manifest (remove it: manifests hold plain values only; quote a text that starts with '!')",
    ],
    "trailing_comma.json": [
        "4:27: error: a ',' before '}' is not allowed in JSON (remove the comma)",
    ],
    "unclosed_bracket.yaml": [
        "6:10: error: the list opened with [ is not closed, or a comma is missing (add the ] or the comma)",
    ],
    "unclosed_quote.yaml": [
        "4:9: error: a quoted text is not closed (add the closing quote)",
    ],
    "unknown_alias.yaml": [
        "5:14: error: spec.model_ref: this alias refers to nothing in this document (define it above with '&', or quote a text that starts with '*')",
    ],
    "unknown_field.yaml": [
        "5:1: error: spec.model_ref is required",
        '6:3: error: spec.model_reff: unknown field "model_reff" (did you mean model_ref?)',
        '7:3: error: spec.promt: unknown field "promt" (did you mean prompt?)',
        '9:5: error: spec.limits.max_step: unknown field "max_step" (did you mean max_steps?)',
    ],
    "unknown_kind.yaml": [
        '2:7: error: unsupported kind "Agnet" (did you mean Agent?)',
    ],
    "unstorable.yaml": [
        "6:11: error: spec.prompt: the text holds a NUL character, which cannot be stored (remove the escape for it)",
        '7:26: error: spec.limits.max_cost_usd: .inf is not a number that can be stored (if it is meant as text, quote it: ".inf")',
    ],
    "utf16.yaml": [
        "1:1: error: the file is UTF-16, but manifests are UTF-8 (save the file as UTF-8)",
    ],
    "wrong_types.yaml": [
        "5:11: error: metadata.labels must be a mapping, not a list",
        "9:5: error: spec.tools must be a list, not a mapping",
        "11:16: error: spec.limits.max_steps must be a whole number, not text",
        '12:14: error: invalid spec.limits.timeout "90": a duration needs a unit (expected a duration such as 30s or 1h30m; did you mean 90s?)',
    ],
}


@pytest.mark.parametrize("name", FINDINGS)
def test_everything_that_is_wrong_is_told_with_its_place(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(INVALID)

    bundle = read_manifests([name])

    assert [str(finding) for finding in bundle.findings] == [f"{name}:{line}" for line in FINDINGS[name]]
    with pytest.raises(ManifestError) as caught:
        bundle.raise_for_errors()
    assert caught.value.findings == bundle.findings
    assert caught.value.exit_code == 5


def test_every_file_is_in_the_table():
    assert {path.name for path in INVALID.iterdir()} == set(FINDINGS)


def test_no_finding_repeats_a_secret():
    assert not [text for texts in FINDINGS.values() for text in texts if "hunter2" in text]
