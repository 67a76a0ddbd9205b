"""get, describe, wait, explain, schema, config, completion."""

from __future__ import annotations

import json

import pytest
import yaml

from foliot.resources.kinds import KINDS


def test_get_lists_a_table_with_ages(foliot, team):
    heading, *rows = foliot("get", "agents").out.splitlines()

    assert heading.split() == ["NAME", "MODEL_REF", "STATUS", "TOOLS", "AGE"]
    assert [row.split()[0] for row in rows] == ["editor", "writer"]
    assert rows[0].split()[-1].endswith("s")


def test_kinds_are_understood_in_every_spelling(foliot, team):
    expected = foliot("get", "model-endpoints", "-o", "name").out

    for word in ("modelendpoint", "ModelEndpoint", "model-endpoint", "models", "model_endpoints"):
        assert foliot("get", word, "-o", "name").out == expected == "model-endpoint/brain\n"


def test_several_kinds_and_all_put_the_kind_before_the_name(foliot, team):
    assert foliot("get", "agents,models", "-o", "name").out == foliot("get", "all", "-o", "name").out
    assert "agent/writer" in foliot("get", "all").out
    assert "model-endpoint/brain" in foliot("get", "agent/writer", "models/brain").out


def test_namespaces_are_apart_and_all_can_be_seen(foliot, team):
    foliot("apply", "-f", team, "-n", "other")

    assert len(foliot("get", "agents").out.splitlines()) == 3
    everywhere = foliot("get", "agents", "-A").out.splitlines()
    assert everywhere[0].split()[0] == "NAMESPACE"
    assert [row.split()[0] for row in everywhere[1:]] == ["default", "default", "other", "other"]


def test_selectors_choose(foliot, team):
    assert foliot("get", "agents", "-l", "team=docs", "-o", "name").out.split() == ["agent/editor", "agent/writer"]
    assert foliot("get", "agents", "-l", "team!=docs", "-o", "name").out == ""
    chosen = foliot("get", "agents", "--field-selector", "metadata.name=writer", "-o", "name")
    assert chosen.out == "agent/writer\n"


@pytest.mark.parametrize("words", [("-l", "a in ("), ("--field-selector", "nonsense=1"), ("-l", "=")])
def test_a_selector_that_cannot_be_read_is_invalid(foliot, words):
    assert foliot("get", "agents", *words).code == 2


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("agents", "--field-selector", "spec.model_reff=m"), "spec.model_ref"),
        (("agents", "--field-selector", "status.phse!=Ready", "-w"), "status.phase"),
        (("all", "--field-selector", "metadata.nme=x"), "metadata.name"),
        (("agents,tools", "--field-selector", "spec.limit.max_steps=3"), "spec.limits.max_steps"),
    ],
)
def test_a_misspelt_field_in_a_selector_is_told_with_what_was_meant(foliot, team, words, meant):
    said = foliot("get", *words)

    assert said.code == 2
    assert f"did you mean {meant}?" in said.err


def test_a_field_selector_reads_both_spellings(foliot, team):
    for field in ("spec.model_ref", "spec.modelRef"):
        assert "agent/writer" in foliot("get", "agents", "--field-selector", f"{field}!=x", "-o", "name").out
        assert foliot("get", "agents", "--field-selector", f"{field}=x", "-o", "name").out == ""
        assert foliot("get", "agents", "--field-selector", f"!{field}", "-o", "name").out == ""


def test_nothing_found_is_no_error_and_goes_to_stderr(foliot):
    said = foliot("get", "agents", "-n", "empty")

    assert (said.code, said.out, said.err) == (0, "", "No agents found in namespace empty.\n")
    assert json.loads(foliot("get", "agents", "-o", "json").out)["items"] == []


def test_one_by_name_is_the_object_itself(foliot, team):
    document = json.loads(foliot("get", "agent", "writer", "-o", "json").out)

    assert (document["kind"], document["metadata"]["name"]) == ("Agent", "writer")


@pytest.mark.parametrize("output", ["yaml", "json"])
def test_what_get_prints_can_be_applied_again(foliot, team, output):
    printed = foliot("get", "all", "-o", output).out

    # Defaults that were left out are said by the manifest now, so the applier owns them; nothing else is new.
    assert foliot("apply", "-f", "-", stdin=printed).code == 0
    printed = foliot("get", "all", "-o", output).out
    assert foliot("apply", "-f", "-", stdin=printed).out.splitlines()[-1] == "3 unchanged"


def test_a_missing_name_is_told_beside_those_that_are_there(foliot, team):
    said = foliot("get", "agent", "wirter", "editor", "-o", "name")

    assert said.code == 3
    assert said.out == "agent/editor\n"
    assert "Agent/wirter in namespace 'default' does not exist.\nhint: did you mean writer?" in said.err


def test_a_name_in_another_namespace_is_pointed_to(foliot, team):
    assert "add `-n default`" in foliot("get", "agent", "writer", "-n", "elsewhere").err


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("agnts",),
        ("all", "x"),
        ("agent/",),
        ("agent/a/b",),
        ("agent", "a", "-l", "x=y"),
        ("agents,tools", "--limit", "1"),
        ("agents", "--limit", "0"),
        ("agents", "-o", "xml"),
        (",",),
    ],
)
def test_get_refuses_what_makes_no_sense(foliot, words):
    assert foliot("get", *words).code == 2


def test_pages_come_with_the_way_to_the_next(foliot, team):
    first = foliot("get", "agents", "--limit", "1", "-o", "name")
    cursor = first.err.split("--continue ")[1].strip()
    second = foliot("get", "agents", "--limit", "1", "-o", "name", "--continue", cursor)

    assert (first.out, second.out) == ("agent/editor\n", "agent/writer\n")
    assert second.err == ""
    assert foliot("get", "agents", "--limit", "1", "--continue", "forged").code == 2


def test_more_than_a_page_is_listed_whole(foliot):
    roles = [f"kind: AgentRole\nmetadata: {{name: r{number:04}}}\nspec: {{}}\n" for number in range(1203)]
    assert foliot("apply", "-f", "-", "-o", "name", stdin="---\n".join(roles)).code == 0

    names = foliot("get", "roles", "-o", "name").out.split()

    assert len(names) == len(set(names)) == 1203
    assert foliot("apply", "-f", "-", stdin="---\n".join(roles)).out.splitlines()[-1] == "1203 unchanged"


def test_describe_shows_both_directions_and_the_last_changes(foliot, team):
    team.write_text(team.read_text().replace("Write.", "Write well."))
    foliot("apply", "-f", team)

    agent = foliot("describe", "agent", "writer").out
    model = foliot("describe", "model/brain").out

    assert "Name:         writer" in agent
    assert "  prompt: Write well." in agent
    assert "Uses:\n  model-endpoint/brain   spec.model_ref   found" in agent
    assert agent.rstrip().endswith("updated   spec.prompt")
    assert "Used by:\n  agent/editor  (spec.model_ref)\n  agent/writer  (spec.model_ref)" in model


def test_describe_says_what_is_missing(foliot, team):
    foliot("delete", "model", "brain")

    assert "missing" in foliot("describe", "agent/writer").out
    assert foliot("describe", "agent/nobody").code == 3
    assert foliot("describe", "agents").code == 2


def test_wait_returns_when_it_is_so_and_fails_when_time_is_over(foliot, team):
    assert foliot("wait", "agent/writer", "--for", "create").out == "agent/writer: create\n"
    assert foliot("wait", "agent", "writer", "--for", "spec.model_ref=brain").code == 0
    assert foliot("wait", "agent/nobody", "--for=delete").code == 0
    assert foliot("wait", "agent/writer", "--for", "phase=Running", "--timeout", "50ms").code == 1


@pytest.mark.parametrize("words", [("--for", "x"), ("--for", "delete", "--timeout", "soon"), ("--for", "bad.path=1")])
def test_wait_refuses_what_it_cannot_understand(foliot, words):
    assert foliot("wait", "agent/writer", *words).code == 2


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_explained_whole(foliot, kind):
    said = foliot("explain", kind, "--recursive")

    assert said.code == 0
    assert said.out.startswith(f"{kind}  <object>")
    assert "spec" in said.out


def test_explain_goes_into_lists_and_maps_and_corrects(foliot):
    assert "max_steps  <integer>  default 10" in foliot("explain", "agent.spec.limits").out
    assert "wait_for_all, quorum" in foliot("explain", "agentsystem.spec.graph.node.join.mode").out
    assert "<integer>" in foliot("explain", "agent.spec.limits.maxSteps").out
    wrong = foliot("explain", "agent.spec.limits.max_stepz")
    assert (wrong.code, "did you mean max_steps?" in wrong.err) == (2, True)
    assert foliot("explain", "agent.spec.prompt.x").code == 2
    assert foliot("explain", "nothing").code == 2


def test_schemas_are_printed_and_written(foliot, tmp_path):
    assert json.loads(foliot("schema", "agent").out)["title"] == "Agent"
    assert json.loads(foliot("schema").out)["title"] == "Foliot manifest"
    assert foliot("schema", "--out", tmp_path / "schemas").code == 0
    assert len(list((tmp_path / "schemas").glob("*.schema.json"))) == len(KINDS) + 1
    assert foliot("schema", "nothing").code == 2


def test_config_shows_where_values_came_from_and_hides_passwords(foliot, monkeypatch):
    monkeypatch.setenv("FOLIOT_STORE", "postgresql://me:hunter2@db/foliot")

    said = foliot("config", "show")

    assert "environment FOLIOT_STORE" in said.out
    assert "hunter2" not in said.out
    assert json.loads(foliot("config", "show", "-o", "json").out)["namespace"]["origin"] == "default"


def test_a_setting_that_cannot_be_used_is_named(foliot):
    said = foliot("get", "agents", "--store", "mysql://x")

    assert said.code == 2
    assert "--store" in said.err


def test_a_misspelt_variable_is_pointed_out(foliot, monkeypatch):
    monkeypatch.setenv("FOLIOT_NAMSPACE", "x")

    assert "did you mean FOLIOT_NAMESPACE?" in foliot("get", "agents").err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_us_back(foliot, shell):
    assert "_FOLIOT_COMPLETE" in foliot("completion", shell).out


def test_completion_for_an_unknown_shell_is_refused(foliot):
    assert foliot("completion", "tcsh").code == 2


def test_the_default_configuration_of_an_agent_is_shown_by_its_name(foliot):
    shown = yaml.safe_load(foliot("explain", "agent", "--defaults", "coder").out)
    assert shown["workspace_dir"] == "/workspace/agents/coder"
    assert {*shown} == {"runner", "provider", "workspace_dir", "system_prompt"}
    refused = foliot("explain", "tool", "--defaults", "coder")
    assert (refused.code, "`foliot explain agent --defaults coder`" in refused.err) == (2, True)
