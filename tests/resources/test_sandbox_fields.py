"""Sandbox fields of tools and policies: what they accept, what they become, and that editors are told the same."""

from __future__ import annotations

import random
from typing import Any, get_args

import jsonschema_rs
import pytest

from foliot.common import sizes
from foliot.resources.definitions.sandbox import LEAST, Feature, SandboxSpec
from foliot.resources.schema import json_schema
from foliot.resources.validate import validate_document
from foliot.sandbox import base
from tests.resources.test_mutants import READER_ALONE, mutant

DIGEST = "sha256:" + "a" * 64
FULL: dict[str, Any] = {
    "network": [{"hosts": ["api.example", "*.cdn.example"], "ports": [443], "methods": ["GET"], "deny": False}],
    "secrets": [
        {
            "secretRef": "github:token",
            "hosts": ["api.example"],
            "ports": [443],
            "variable": "TOKEN",
            "cleartext": False,
        }
    ],
    "mounts": [{"source": "/srv/data", "target": "/data", "writable": False}],
    "limits": {"memory": "512Mi", "processes": 20, "cpus": 0.5, "cpu_seconds": 3, "file_size": "1Gi", "seconds": 5.0},
    "require": ["memory", "seccomp"],
    "image": f"registry.example/tools/curl@{DIGEST}",
    "runtime": "gvisor",
    "workspace": "read_only",
    "env": {"LANG": "C"},
}


def tool(sandbox: Any, **spec: Any) -> dict[str, Any]:
    made = {"type": "cli", "cli": {"command": ["curl"]}, "sandbox": sandbox, **spec}
    return {"apiVersion": "foliot.dev/v1", "kind": "Tool", "metadata": {"name": "fetch"}, "spec": made}


def read(sandbox: Any, **spec: Any) -> Any:
    document, problems = validate_document(tool(sandbox, **spec))
    assert document is not None, problems
    return document["spec"]


def refused(sandbox: Any, **spec: Any) -> list[tuple[str, str]]:
    document, problems = validate_document(tool(sandbox, **spec))
    assert document is None
    return [(problem.field, problem.message) for problem in problems]


def test_a_full_sandbox_is_its_own_normal_form() -> None:
    assert read(FULL)["sandbox"] == FULL


def test_people_write_sizes_hosts_and_names_as_they_like() -> None:
    given = {
        "network": [{"hosts": "API.Example."}, {"hosts": ["bücher.example"], "methods": "get"}],
        "secrets": [{"secret_ref": "github", "hosts": "api.example"}],
        "limits": {"memory": "0.5 GiB", "cpuSeconds": 3, "tmpSize": 65536, "output": "1M"},
        "require": "Memory",
    }

    found = read(given)["sandbox"]

    assert [rule["hosts"] for rule in found["network"]] == [["api.example"], ["xn--bcher-kva.example"]]
    assert (found["network"][0]["ports"], found["network"][1]["methods"]) == ([443], ["GET"])
    assert found["secrets"] == [{"secretRef": "github", "hosts": ["api.example"], "ports": [443], "cleartext": False}]
    assert found["limits"] == {"memory": "512Mi", "cpu_seconds": 3, "tmp_size": "64Ki", "output": "1000000"}
    assert found["require"] == ["memory"]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"network": [{"hosts": ["http://a.example"]}]}, "network[0].hosts[0]", "is no host"),
    ({"network": [{"hosts": ["2130706433"]}]}, "network[0].hosts[0]", "is no host"),
    ({"network": [{"hosts": ["a.example"], "ports": [0]}]}, "network[0].ports[0]", ">= 1"),
    ({"network": [{"hosts": ["a.example"], "methods": ["TRACE"]}]}, "network[0].methods[0]", "method"),
    ({"network": [{"hosts": ["a.example"], "methods": ["GTE"]}]}, "network[0].methods[0]", "method"),
    ({"network": [{"hosts": ["a.example"], "methods": ["GET /"]}]}, "network[0].methods[0]", "method"),
    ({"network": [{}]}, "network[0].hosts", "required"),
    ({"secrets": [{"secretRef": "s", "hosts": ["a.example"]}]}, "network", "required"),
    ({"network": [{"hosts": "*"}], "secrets": [{"secretRef": "s", "hosts": "*"}]}, "secrets[0].hosts", "named"),
    ({"mounts": [{"source": "data", "target": "/data"}]}, "mounts[0].source", "absolute"),
    ({"mounts": [{"source": "/srv/../etc", "target": "/data"}]}, "mounts[0].source", "'..'"),
    (
        {"mounts": [{"source": "/a", "target": "/x"}, {"source": "/b", "target": "/x/"}]},
        "mounts[1].target",
        "lie in one another",
    ),
    ({"limits": {"memory": "1Mi"}}, "limits.memory", "16Mi or more"),
    ({"limits": {"memory": "much"}}, "limits.memory", "not a size"),
    ({"limits": {"cpus": 0}}, "limits.cpus", "> 0"),
    ({"require": ["walls"]}, "require[0]", "walls"),
    ({"image": "curl:latest"}, "image", "sha256"),
    ({"env": {"A B": "x"}}, 'env["A B"]', "variable"),
    ({"workspace": "all"}, "workspace", "read_only"),
]


@pytest.mark.parametrize(("sandbox", "field", "said"), WRONG)
def test_what_makes_no_sense_is_refused_by_its_field(sandbox: dict[str, Any], field: str, said: str) -> None:
    places = [(place, message) for place, message in refused(sandbox) if said in message]

    assert [place for place, _ in places] == [f"spec.sandbox.{field}"]


RESERVED = ["PATH", "HOME", "HOME_DIR", "TMPDIR", "LANG", "LC_ALL", "XDG_RUNTIME_DIR", "FOLIOT_RUN_ID", "LD_PRELOAD"]
RESERVED += ["PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV", "ENV", "NODE_OPTIONS", "path"]
UNSOUND = ["1X", "A=B"]


@pytest.mark.parametrize("variable", [*RESERVED, *UNSOUND, "lower", "X" * 129])
def test_a_secret_is_no_variable_that_is_set_for_every_program_or_decides_what_runs(variable: str) -> None:
    secret = {"secretRef": "s", "hosts": ["a.example"], "variable": variable}
    found = dict(refused({"network": [{"hosts": "a.example"}], "secrets": [secret]}))
    assert "variable" in found["spec.sandbox.secrets[0].variable"]


@pytest.mark.parametrize("variable", [*RESERVED, *UNSOUND])
def test_a_secret_of_an_mcp_server_is_none_of_them_either(variable: str) -> None:
    server = {"transport": "stdio", "command": "x", "env": [{"name": variable, "secretRef": "s"}]}
    document, problems = validate_document({"kind": "McpServer", "metadata": {"name": "m"}, "spec": server})
    assert document is None
    assert [each.field for each in problems] == ["spec.env[0].name"]


@pytest.mark.parametrize("variable", ["GITHUB_TOKEN", "HOMEASSISTANT_TOKEN", "PATHFINDER", "MY_HOME", "LDAP_PASSWORD"])
def test_a_secret_may_be_any_other_variable(variable: str) -> None:
    secret = {"secretRef": "s", "hosts": ["a.example"], "variable": variable}
    read({"network": [{"hosts": "a.example"}], "secrets": [secret]})


def test_a_secret_of_a_runner_is_no_variable_that_the_runner_sets() -> None:
    secret = {"secretRef": "s", "hosts": ["a.example"], "variable": "ACME_RUN_ID"}
    sandbox = {"network": [{"hosts": "a.example"}], "secrets": [secret]}
    for prefix, fields in (("ACME_", ["spec.runner.sandbox.secrets[0].variable"]), ("OTHER_", [])):
        runner = {"command": ["x"], "env_prefix": prefix, "sandbox": sandbox}
        agent = {"kind": "Agent", "metadata": {"name": "a"}, "spec": {"runner": runner}}
        assert [each.field for each in validate_document(agent)[1] if each.severity == "error"] == fields


@pytest.mark.parametrize("other", ["team/a", "team.a", "TEAM_A"])
def test_two_secrets_that_read_alike_are_refused(other: str) -> None:
    both = [{"secretRef": ref, "hosts": ["a.example"], "variable": f"V{n}"} for n, ref in enumerate(("team-a", other))]

    assert "spec.sandbox.secrets[1].secretRef" in dict(refused({"network": [{"hosts": "a.example"}], "secrets": both}))


def test_a_sandbox_fences_the_tool_and_an_image_puts_it_into_a_container() -> None:
    function = {"type": "function", "function": "desk:find", "cli": None}

    assert read({"workspace": "none"}, **function)["runtime"]["isolation_mode"] == "sandboxed"
    assert read({"image": f"x@{DIGEST}"}, **function)["runtime"]["isolation_mode"] == "container"
    assert read({"runtime": "gvisor"})["runtime"]["isolation_mode"] == "container"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"type": "http", "cli": None}, "spec.sandbox"),
        ({"type": "function", "function": "a:b", "cli": None, "runtime": {"isolation_mode": "none"}}, "spec.sandbox"),
        ({"runtime": {"isolation_mode": "sandboxed"}}, "spec.sandbox.image"),
        ({"cli": {"command": ["curl"], "workspace": "read_write"}}, "spec.sandbox.workspace"),
        ({"cli": {"command": ["curl"], "env": {"LANG": "de"}}}, "spec.sandbox.env.LANG"),
    ],
)
def test_a_sandbox_that_does_not_fit_its_tool_is_refused(spec: dict[str, Any], field: str) -> None:
    assert field in dict(refused(FULL, **spec))


def test_empty_lists_of_a_policy_are_kept_because_they_say_none() -> None:
    none: dict[str, Any] = {"network": [], "mounts": []}
    policy = {"kind": "AgentPolicy", "metadata": {"name": "p"}, "spec": {"sandbox": none}}

    once, _ = validate_document(policy)
    assert once is not None
    twice, _ = validate_document(once)

    assert once["spec"]["sandbox"] == none
    assert twice == once


def test_schema_and_reader_accept_the_same_sandboxes() -> None:
    validator, chance = jsonschema_rs.validator_for(json_schema("Tool")), random.Random("sandbox")
    for number in range(400):
        document = tool({})
        document["spec"]["sandbox"] = mutant({"sandbox": FULL}, chance).get("sandbox")
        found, problems = validate_document(document)
        told = f"{number}: {document['spec']['sandbox']}"
        if found is not None:
            assert [error.message for error in validator.iter_errors(document)] == [], f"only the reader accepts {told}"
        elif validator.is_valid(document):
            said = [problem.message for problem in problems]
            assert any(map(READER_ALONE.search, said)), f"only the schema accepts {told}\n{said}"


def test_the_names_and_least_values_are_those_of_the_sandbox() -> None:
    assert set(get_args(get_args(Feature)[0])) == set(base.FEATURES)
    for name, least in LEAST.items():
        assert base.Limits(**{name: least})
        with pytest.raises(base.SandboxPolicyRefused, match=f"limits.{name}"):
            base.check_policy(
                base.SandboxPolicy(limits=base.Limits(**{name: least - 1})), base.Enforcement("process", True)
            )


@pytest.mark.parametrize("size", [0, 1, 1000, 1023, 1024, 1536, 512 * 1024**2, 2**53 - 1])
def test_the_text_of_a_size_is_read_as_that_size(size: int) -> None:
    assert sizes.bytes_of(sizes.canonical(size)) == size


@pytest.mark.parametrize("text", ["", "Mi", "-1", "1 2", "1e3", "9" * 19, "1.2.3Mi", "1kk", "٣Mi"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|larger"):
        sizes.bytes_of(text)


def test_a_misspelt_method_is_named_with_the_one_that_was_meant() -> None:
    _, problems = validate_document(tool({"network": [{"hosts": ["a.example"], "methods": ["GTE"]}]}))

    assert [(problem.field, problem.hint) for problem in problems] == [
        ("spec.sandbox.network[0].methods[0]", "did you mean GET?")
    ]


@pytest.mark.parametrize("method", ["get", "PATCH", "PROPFIND", "M-SEARCH", "purge"])
def test_methods_of_http_and_of_its_extensions_are_ruled_on(method: str) -> None:
    found = read({"network": [{"hosts": ["a.example"], "methods": [method]}]})

    assert found["sandbox"]["network"][0]["methods"] == [method.upper()]


@pytest.mark.parametrize("command", ["echo hi", ["echo hi"], ["/bin/echo {word} there"]])
def test_a_command_in_one_text_is_refused_with_the_list_that_was_meant(command: Any) -> None:
    _, problems = validate_document(tool({}, cli={"command": command}))

    (found,) = [problem for problem in problems if problem.field == "spec.cli.command"]
    words = (command if isinstance(command, str) else command[0]).split()
    assert found.expected == f"a list: [{', '.join(words)}]"


def test_fields_that_an_agent_may_not_have_say_so_where_they_are_listed() -> None:
    fields = SandboxSpec.model_fields

    assert all("Not in spec.sandbox of an Agent" in str(fields[name].description) for name in ("image", "runtime"))
