"""init, validate, diff, apply, create, edit, delete: wrong input included."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from foliot.cli.commands.init import BLUEPRINTS


@pytest.mark.parametrize("blueprint", BLUEPRINTS)
def test_every_blueprint_validates_strictly_and_applies_clean(foliot, tmp_path, blueprint):
    folder = tmp_path / "Weekly Report"

    made = foliot("init", folder, "--blueprint", blueprint)
    checked = foliot("validate", "-f", folder, "--strict")
    applied = foliot("apply", "-f", folder)
    again = foliot("diff", "-f", folder)

    assert (made.code, checked.code, applied.code, again.code) == (0, 0, 0, 0)
    assert (checked.err, applied.err) == ("", "")
    assert f"{'agent' if blueprint == 'agent' else 'agent-system'}/weekly-report created" in applied.out
    assert "my-project" not in "".join(path.read_text() for path in folder.rglob("*.*"))


@pytest.mark.parametrize("blueprint", BLUEPRINTS)
def test_the_script_of_a_blueprint_can_be_played_by_each_of_its_agents(foliot, tmp_path, blueprint):
    from foliot.kernel.messages import ModelRequest
    from foliot.models.scripted.script import read_script

    foliot("init", tmp_path / "p", "-b", blueprint)
    foliot("apply", "-f", tmp_path / "p")
    script = read_script(json.loads(foliot("get", "model", "p-model", "-o", "json").out)["spec"]["script"])
    agents = foliot("get", "agents", "-o", "name").out.split()

    assert agents
    for agent in agents:
        request = ModelRequest(model="scripted", agent=agent.removeprefix("agent/"), messages=())
        scene = script.scene_for(request)
        assert scene is not None
        assert scene.pick(request)[0] is not None


def test_init_overwrites_nothing_unless_forced(foliot, tmp_path):
    foliot("init", tmp_path / "p")
    (tmp_path / "p" / "agent.yaml").write_text("mine")

    refused = foliot("init", tmp_path / "p")
    assert refused.code == 4
    assert "is there already" in refused.err
    assert (tmp_path / "p" / "agent.yaml").read_text() == "mine"

    assert foliot("init", tmp_path / "p", "--force").code == 0
    assert "kind: Agent" in (tmp_path / "p" / "agent.yaml").read_text()


@pytest.mark.parametrize("name", ["Upper", "a b", "-x", "../up", "a: b"])
def test_init_refuses_a_name_that_would_not_be_valid(foliot, tmp_path, name):
    assert foliot("init", tmp_path / "p", f"--name={name}").code == 2
    assert not (tmp_path / "p").exists()


WRONG = "kind: Agent\nmetadata: {name: writer}\nspec:\n  model_reff: x\n  prompt: 5\n"


def test_validate_tells_everything_with_line_and_caret_and_needs_no_store(foliot, tmp_path, manifest, home):
    (tmp_path / "wrong.yaml").write_text(WRONG)

    said = foliot("validate", "-f", "wrong.yaml", "-f", manifest)

    assert said.code == 5
    assert "valid  agent/editor" in said.out
    assert 'wrong.yaml:4:3: error: spec.model_reff: unknown field "model_reff" (did you mean model_ref?)' in said.err
    assert "    4 |   model_reff: x\n      |   ^" in said.err
    assert "wrong.yaml:5:11: error: spec.prompt must be a string" in said.err
    assert not home.exists()


def test_validate_never_shows_a_line_of_a_secret(foliot, tmp_path):
    broken = "kind: Secret\nmetadata: {name: s}\nspec:\n  stringData:\n    token: [hunter2\n  bogus: hunter3\n"
    (tmp_path / "s.yaml").write_text(broken)

    said = foliot("validate", "-f", "s.yaml")

    assert said.code == 5
    assert "hunter" not in said.out + said.err


def test_validate_reports_as_json_and_strict_makes_warnings_count(foliot, tmp_path):
    (tmp_path / "a.yaml").write_text("kind: Agent\nmetadata: {name: a}\nspec: {model_ref: nowhere}\n")

    loose, strict = (foliot("validate", "-f", "a.yaml", "-o", "json", *more) for more in ((), ("--strict",)))

    assert (loose.code, strict.code) == (0, 5)
    report = json.loads(loose.out)
    assert report["valid"]
    assert report["resources"][0]["name"] == "a"
    assert report["findings"][0]["severity"] == "warning"
    assert report["findings"][0]["line"] == 3


@pytest.mark.parametrize(
    ("runner", "said"),
    [
        ("{}", ""),
        ("{type: '', provider: '  '}", ""),
        ("{timeout: 5m}", ""),
        ("{type: codex}", 'runner "codex" is not supported'),
        ("{provider: acme}", 'provider "acme" is not supported'),
        ("{type: 'a b'}", 'runner "a b" is not supported'),
        ("5", "spec.runner must be a mapping"),
    ],
)
def test_validate_and_apply_agree_about_the_runner_of_an_agent(foliot, tmp_path, runner, said):
    path = tmp_path / "agent.yaml"
    path.write_text(f"kind: Agent\nmetadata: {{name: a}}\nspec:\n  runner: {runner}\n")

    answers = [foliot("validate", "-f", path), foliot("apply", "-f", path)]

    assert [answer.code for answer in answers] == ([5, 5] if said else [0, 0])
    assert all(said in answer.err and "is required" not in answer.err for answer in answers)


def test_apply_creates_then_leaves_alone_then_updates(foliot, manifest):
    first = foliot("apply", "-f", manifest)
    second = foliot("apply", "-f", manifest)
    manifest.write_text(manifest.read_text().replace("Write.", "Write well."))
    third = foliot("apply", "-f", manifest)

    assert first.out.splitlines() == [
        "model-endpoint/brain created",
        "agent/writer created",
        "agent/editor created",
        "3 created",
    ]
    assert second.out.splitlines()[-1] == "3 unchanged"
    assert third.out.splitlines()[-1] == "1 updated, 2 unchanged"


def test_a_dry_run_says_what_would_happen_and_changes_nothing(foliot, manifest):
    said = foliot("apply", "-f", manifest, "--dry-run")

    assert "agent/writer created (dry run)" in said.out
    assert foliot("get", "all", "-o", "name").out == ""


def test_one_wrong_manifest_keeps_all_others_out(foliot, manifest, tmp_path):
    (tmp_path / "wrong.yaml").write_text(WRONG)

    said = foliot("apply", "-f", manifest, "-f", "wrong.yaml")

    assert said.code == 5
    assert "nothing was changed" in said.err
    assert foliot("get", "all", "-o", "name").out == ""


def test_an_error_found_only_with_the_store_is_still_shown_in_the_file(foliot, tmp_path):
    system = "kind: AgentSystem\nmetadata: {name: s}\nspec:\n  agents: [a]\n  graph:\n    a: {edges: [{to: ghost}]}\n"
    (tmp_path / "s.yaml").write_text(system)

    said = foliot("apply", "-f", "s.yaml")

    assert said.code == 5
    assert "s.yaml:6:" in said.err
    assert "ghost" in said.err


def test_the_namespace_flag_fills_in_and_contradicts(foliot, manifest, tmp_path):
    assert foliot("apply", "-f", manifest, "-n", "team-a").code == 0
    assert "writer" in foliot("get", "agents", "-n", "team-a").out

    (tmp_path / "own.yaml").write_text("kind: AgentRole\nmetadata: {name: r, namespace: other}\nspec: {}\n")
    refused = foliot("apply", "-f", "own.yaml", "-n", "team-a")

    assert refused.code == 5
    assert "names namespace 'other', the command line 'team-a'" in refused.err
    assert "role/r created in namespace other" in foliot("apply", "-f", "own.yaml").out


def test_prune_deletes_only_what_apply_made_and_the_selector_names(foliot, team):
    foliot("create", "secret", "key", "--from-literal", "value=x")
    kept, *rest = team.read_text().split("---\n")
    team.write_text("---\n".join([kept, rest[0]]))

    said = foliot("apply", "-f", team, "--prune", "-l", "team=docs")

    assert "agent/editor deleted" in said.out
    assert foliot("get", "all", "-o", "name").out.split() == ["agent/writer", "model-endpoint/brain", "secret/key"]


@pytest.mark.parametrize("command", ["apply", "diff"])
def test_a_folder_of_comments_prunes_nothing_unless_it_is_allowed_to(foliot, team, tmp_path, command):
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "todo.yaml").write_text("# nothing yet\n")
    words = (command, "-f", tmp_path / "bare", "--prune", "-l", "team=docs")

    refused = foliot(*words)

    assert refused.code == 2
    assert "there are no manifests: 3 resources would be deleted" in refused.err
    assert "--allow-empty" in refused.err
    assert len(foliot("get", "all", "-o", "name").out.split()) == 3
    allowed = foliot(*words, "--allow-empty")
    assert allowed.code == (0 if command == "apply" else 1)
    assert "agent/editor" in allowed.out


PART = "kind: Tool\nmetadata: {name: pay, labels: {app: x}}\nspec: {type: http, endpoint: 'http://127.0.0.1:9/'}\n"
NAMES_IT = "kind: ToolPermission\nmetadata: {name: guard, labels: {app: x}}\nspec: {tool_ref: pay}\n"


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def test_prune_does_not_take_what_the_same_manifests_name(foliot, monkeypatch, request, database):
    if database == "postgres":
        monkeypatch.setenv("FOLIOT_STORE", request.getfixturevalue("postgres_url"))
    assert foliot("apply", "-f", "-", stdin=f"{PART}---\n{NAMES_IT}").code == 0
    words = ("-f", "-", "--prune", "-l", "app=x")

    refused = foliot("apply", *words, stdin=NAMES_IT)

    assert refused.code == 5
    assert "spec.tool_ref" in refused.err
    assert "prune deletes it" in refused.err
    assert "--allow-missing" in refused.err
    assert foliot("diff", *words, stdin=NAMES_IT).code > 1
    assert foliot("get", "all", "-o", "name").out.split() == ["tool/pay", "tool-permission/guard"]
    allowed = foliot("apply", *words, "--allow-missing", stdin=NAMES_IT)
    assert (allowed.code, "references missing tool" in allowed.err) == (0, True)
    assert foliot("get", "all", "-o", "name").out.split() == ["tool-permission/guard"]


def test_prune_says_which_work_it_ends(foliot, team, tmp_path):
    task = "kind: Task\nmetadata: {name: brief, labels: {team: docs}}\nspec: {agent: writer, input: {topic: x}}\n"
    (tmp_path / "task.yaml").write_text(task)
    foliot("apply", "-f", team, "-f", "task.yaml")
    words = ("-f", team, "--prune", "-l", "team=docs")

    assert "the work of 1 task would end" in foliot("diff", *words).err
    assert "task/brief deleted, its work cancelled (dry run)" in foliot("apply", *words, "--dry-run").out
    assert "task/brief deleted, its work cancelled\n" in foliot("apply", *words).out
    assert "No tasks" in foliot("get", "tasks").err


@pytest.mark.parametrize("words", [("--prune",), ("-l", "a=b"), ("--prune", "-l", "a in (")])
def test_prune_and_selector_need_each_other_and_sense(foliot, manifest, words):
    assert foliot("apply", "-f", manifest, *words).code in (2, 5)


@pytest.mark.parametrize(("output", "start"), [("name", "model-endpoint/brain"), ("json", "{"), ("yaml", "apiVersion")])
def test_apply_prints_for_programs(foliot, manifest, output, start):
    assert foliot("apply", "-f", manifest, "-o", output).out.startswith(start)


def test_diff_shows_the_change_and_says_so_by_its_exit_code(foliot, team):
    assert foliot("diff", "-f", team).code == 0
    team.write_text(team.read_text().replace("Write.", "Write well."))

    said = foliot("diff", "-f", team)

    assert said.code == 1
    assert "--- agent/writer (live)\n+++ agent/writer (manifest)" in said.out
    assert "-  prompt: Write.\n+  prompt: Write well." in said.out
    assert "resourceVersion" not in said.out
    assert foliot("diff", "-f", "nowhere.yaml").code > 1


def test_apply_after_an_edit_names_the_dispute_and_diff_says_the_same(foliot, team, tmp_path, monkeypatch, drafts):
    monkeypatch.setenv("VISUAL", editor(tmp_path, 'sed -i "s/Write\\./Write well./" "$1"'))
    foliot("edit", "agent", "writer")
    dispute = 'spec.prompt is "Write well." by foliot-edit, and "Write." here'

    refused = [foliot("apply", "-f", team), foliot("apply", "-f", team, "--dry-run"), foliot("diff", "-f", team)]
    shown = foliot("diff", "-f", team, "--force-conflicts")
    forced = foliot("apply", "-f", team, "--force-conflicts")

    assert [each.code for each in refused] == [4, 4, 4]
    assert all(dispute in each.err and "--force-conflicts" in each.err for each in refused)
    assert (shown.code, forced.code) == (1, 0)
    assert "-  prompt: Write well.\n+  prompt: Write." in shown.out
    assert "agent/writer updated" in forced.out
    assert foliot("diff", "-f", team).code == 0


def test_owners_are_shown_when_they_are_asked_for_and_when_only_they_would_change(foliot, team):
    plain = foliot("get", "agent", "writer", "-o", "yaml").out
    shown = foliot("get", "agent", "writer", "-o", "json", "--show-managed-fields").out

    assert "managedFields" not in plain
    managers = {each["manager"]: each["fields"] for each in json.loads(shown)["metadata"]["managedFields"]}
    assert "/spec/prompt" in managers["foliot"]
    assert "/spec/limits/max_steps" not in managers["foliot"], "nobody wrote it"
    assert foliot("get", "agents", "--show-managed-fields").code == 2
    foretold = foliot("diff", "-f", team, "--field-manager", "ci")
    assert (foretold.code, "+    - manager: ci" in foretold.out) == (1, True)
    assert "agent/writer updated, only who owns its fields" in foliot("apply", "-f", team, "--field-manager", "ci").out
    assert foliot("apply", "-f", team, "--field-manager", "system").code == 2


def test_secret_values_are_nowhere_to_be_seen_but_a_change_is(foliot, tmp_path, home):
    (tmp_path / "s.yaml").write_text("kind: Secret\nmetadata: {name: s}\nspec: {stringData: {token: hunter2}}\n")
    said = [foliot("apply", "-f", "s.yaml"), foliot("diff", "-f", "s.yaml"), foliot("get", "secret", "s", "-o", "yaml")]
    (tmp_path / "s.yaml").write_text("kind: Secret\nmetadata: {name: s}\nspec: {stringData: {token: hunter3}}\n")
    said += [foliot("diff", "-f", "s.yaml"), foliot("describe", "secret", "s"), foliot("apply", "-f", "s.yaml")]

    assert [each.code for each in said] == [0, 0, 0, 1, 0, 0]
    assert "*** (changed)" in said[3].out
    everything = "".join(each.out + each.err for each in said)
    assert "hunter" not in everything
    assert "aHVudGVy" not in everything  # the same in base64
    assert b"hunter" not in b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


def test_a_secret_is_created_from_everything_and_never_echoed(foliot, tmp_path):
    (tmp_path / "cert.pem").write_bytes(b"\x00\xffbinary")
    (tmp_path / ".env").write_text("# comment\nexport A='one'\nB=two=2\n\n")

    said = foliot(
        *("create", "secret", "s", "--from-literal", "value=-", "--from-file", "cert.pem"),
        *("--from-file", "named=cert.pem", "--from-env-file", ".env"),
        stdin="hunter2\n",
    )

    assert (said.code, said.out) == (0, "secret/s created (5 values)\n")
    assert set(json.loads(foliot("get", "secret", "s", "-o", "json").out)["spec"]["data"].values()) == {"***"}
    assert foliot("create", "secret", "s", "--from-literal", "a=b").code == 4
    assert foliot("create", "secret", "s", "--from-literal", "a=b", "--replace").code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("s",),
        ("s", "--from-literal", "hunter2"),
        ("s", "--from-literal", "=hunter2"),
        ("Bad/Name", "--from-literal", "a=hunter2"),
        ("s", "--from-literal", "a b=hunter2"),
        ("s", "--from-file", "nowhere"),
        ("s", "--from-env-file", "bad.env"),
    ],
)
def test_a_secret_given_wrongly_is_refused_without_its_value(foliot, tmp_path, words):
    (tmp_path / "bad.env").write_text("hunter2 is no assignment\n")

    said = foliot("create", "secret", *words)

    assert said.code in (1, 2, 5)
    assert "hunter2" not in said.out + said.err
    assert foliot("get", "secrets", "-o", "name").out == ""


def test_a_secret_is_bound_to_hosts_and_stays_so_with_another_value(foliot):
    made = foliot(
        "create", "secret", "s", "--from-literal", "value=one", "--host", "API.example", "--host", "*.x.example"
    )
    assert made.code == 0
    assert foliot("create", "secret", "s", "--from-literal", "value=two", "--replace").code == 0
    assert json.loads(foliot("get", "secret", "s", "-o", "json").out)["spec"]["hosts"] == ["api.example", "*.x.example"]
    said = foliot("create", "secret", "t", "--from-literal", "value=hunter2", "--host", "http://api.example")
    assert said.code != 0
    assert "hosts" in said.err
    assert "hunter2" not in said.err


def test_rotating_the_key_keeps_every_secret(foliot):
    foliot("create", "secret", "s", "--from-literal", "a=b")

    said = foliot("secrets", "rotate-key")

    assert said.code == 0
    assert "1 value of 1 secret sealed with it" in said.out
    active = said.out.split()[1]
    told = foliot("secrets", "rotate-key", "--forget-retired").out
    assert "gone for good" in told
    assert f"Kept to open backups of before: {active}." in told
    assert "unchanged" in foliot("create", "secret", "s", "--from-literal", "a=b", "--replace").out


def editor(tmp_path: Path, script: str) -> str:
    path = tmp_path / "editor.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def drafts(tmp_path, monkeypatch) -> Path:
    """Where the drafts of `edit` go, so that what is left behind can be seen."""
    import tempfile

    folder = tmp_path / "drafts"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_edit_stores_what_was_saved(foliot, team, tmp_path, monkeypatch, drafts):
    monkeypatch.setenv("VISUAL", editor(tmp_path, 'sed -i "s/Write\\./Write well./" "$1"'))

    said = foliot("edit", "agent", "writer")

    assert (said.code, said.out) == (0, "agent/writer updated\n")
    assert "Write well." in foliot("get", "agent/writer", "-o", "yaml").out
    assert list(drafts.iterdir()) == []


@pytest.mark.parametrize(("before", "after"), [("1", "true"), ("1", "1.0"), ('"1"', "1"), ("true", '"true"')])
def test_edit_sees_a_change_of_type(foliot, team, tmp_path, monkeypatch, before, after):
    manifest = tmp_path / "typed.yaml"
    settings = f"model_settings: {{extra: {{flag: {before}}}}}"
    manifest.write_text(f"kind: Agent\nmetadata: {{name: typed}}\nspec:\n  model_ref: m\n  {settings}\n")
    foliot("apply", "-f", manifest, "--allow-missing")
    monkeypatch.setenv("EDITOR", editor(tmp_path, f"sed -i 's/flag: .*/flag: {after}/' \"$1\""))

    said = foliot("edit", "agent", "typed")

    assert (said.code, said.out) == (0, "agent/typed updated\n")
    assert f"flag: {after}\n" in foliot("get", "agent/typed", "-o", "yaml").out


@pytest.mark.parametrize("script", ["true", ': > "$1"'])
def test_edit_without_a_change_changes_nothing(foliot, team, tmp_path, monkeypatch, drafts, script):
    monkeypatch.setenv("EDITOR", editor(tmp_path, script))

    said = foliot("edit", "agent/writer")

    assert (said.code, said.err) == (0, "agent/writer: no changes\n")
    assert list(drafts.iterdir()) == []


def test_an_invalid_edit_opens_again_with_the_problems_on_top(foliot, team, tmp_path, monkeypatch, drafts):
    script = (
        f'cp "$1" {tmp_path}/seen; if grep -q modell "$1"; then sed -i "s/modell_ref/model_ref/; s/Edit/Cut/" "$1";'
    )
    script += ' else sed -i "s/model_ref/modell_ref/" "$1"; fi'
    monkeypatch.setenv("EDITOR", editor(tmp_path, script))

    said = foliot("edit", "agent", "editor")

    assert (said.code, said.out) == (0, "agent/editor updated\n")
    seen = (tmp_path / "seen").read_text()
    assert "# It cannot be stored like this:" in seen
    assert 'unknown field "modell_ref" (did you mean model_ref?)' in seen


def test_an_edit_given_up_keeps_the_text(foliot, team, tmp_path, monkeypatch, drafts):
    monkeypatch.setenv("EDITOR", editor(tmp_path, 'grep -q mine "$1" || echo "mine: 1" >> "$1"'))

    said = foliot("edit", "agent", "writer")

    assert said.code == 5
    (draft,) = drafts.iterdir()
    assert f"Your text is kept in {draft}" in said.err
    assert "mine: 1" in draft.read_text()
    assert stat.S_IMODE(draft.stat().st_mode) == 0o600


@pytest.mark.parametrize("change", ["s/name: writer$/name: other/", "s/kind: Agent$/kind: AgentRole/"])
def test_an_edit_cannot_rename(foliot, team, tmp_path, monkeypatch, drafts, change):
    monkeypatch.setenv("EDITOR", editor(tmp_path, f'sed -i "{change}" "$1"'))

    assert foliot("edit", "agent", "writer").code == 5
    assert foliot("get", "agents", "-o", "name").out.split() == ["agent/editor", "agent/writer"]


def test_an_editor_that_never_gets_it_right_is_not_opened_for_ever(foliot, team, tmp_path, monkeypatch, drafts):
    monkeypatch.setenv("EDITOR", editor(tmp_path, f'echo x >> {tmp_path}/rounds; echo "wrong: 1" >> "$1"'))

    said = foliot("edit", "agent", "writer")

    assert said.code == 5
    assert "giving up" in said.err
    assert len((tmp_path / "rounds").read_text().split()) == 10


def test_an_edit_that_came_too_late_is_a_conflict_and_keeps_the_text(foliot, team, tmp_path, monkeypatch, drafts):
    import sys

    later = tmp_path / "later.yaml"
    later.write_text(team.read_text().replace("Write.", "Somebody was faster."))
    script = f'sed -i "s/Write\\./Too late./" "$1"; {sys.executable} -m foliot.cli apply -f {later} >/dev/null'
    monkeypatch.setenv("EDITOR", editor(tmp_path, script))

    said = foliot("edit", "agent", "writer")

    assert said.code == 4
    (draft,) = drafts.iterdir()
    assert "Too late." in draft.read_text()
    assert f"foliot apply -f {draft}" in said.err
    assert "Somebody was faster." in foliot("get", "agent/writer", "-o", "yaml").out


@pytest.mark.parametrize(("value", "code"), [("no-such-editor-here", 2), ("'unclosed", 2), ("false", 1)])
def test_an_editor_that_does_not_work_is_told_and_leaves_nothing(foliot, team, monkeypatch, drafts, value, code):
    monkeypatch.setenv("EDITOR", value)

    assert foliot("edit", "agent", "writer").code == code
    assert list(drafts.iterdir()) == []


def test_a_secret_can_be_edited_without_being_seen_or_lost(foliot, tmp_path, monkeypatch, drafts):
    foliot("create", "secret", "s", "--from-literal", "a=hunter2")
    script = f'cp "$1" {tmp_path}/seen; sed -i "s/namespace: default/&\\n  labels: {{x: y}}/" "$1"'
    monkeypatch.setenv("EDITOR", editor(tmp_path, script))

    assert foliot("edit", "secret", "s").out == "secret/s updated\n"
    assert "hunter2" not in (tmp_path / "seen").read_text()
    assert "unchanged" not in foliot("create", "secret", "s", "--from-literal", "a=other", "--replace", "--dry-run").out


def test_delete_by_name_file_label_and_all(foliot, team):
    assert foliot("delete", "agent", "writer", "-n", "default").out == "agent/writer deleted\n"
    assert foliot("delete", "agents", "--all", "--dry-run").out == "agent/editor deleted (dry run)\n"
    assert foliot("delete", "all", "-l", "team=docs").out == "agent/editor deleted\nmodel-endpoint/brain deleted\n"
    foliot("apply", "-f", team)
    assert foliot("delete", "-f", team).code == 0
    assert foliot("get", "all", "-o", "name").out == ""


def test_deleting_what_is_not_there_is_an_error_unless_ignored_and_does_not_keep_the_others(foliot, team):
    said = foliot("delete", "agent", "wirter", "editor")

    assert said.code == 3
    assert said.out == "agent/editor deleted\n"
    assert "did you mean writer?" in said.err
    assert foliot("delete", "agent", "wirter", "--ignore-not-found").code == 0


@pytest.mark.parametrize("words", [("agents",), ("agent", "a", "--all"), ("-f", "x", "agents"), ("all", "a"), ()])
def test_delete_refuses_what_is_not_clear(foliot, words):
    assert foliot("delete", *words).code == 2


def test_a_changed_value_of_a_secret_is_no_change_of_owners(foliot, tmp_path):
    manifest = tmp_path / "secret.yaml"
    for value, said in (("one", "secret/s created"), ("two", "secret/s updated"), ("two", "secret/s unchanged")):
        manifest.write_text(f"kind: Secret\nmetadata: {{name: s}}\nspec: {{stringData: {{a: {value}}}}}\n")
        assert foliot("apply", "-f", manifest).out.splitlines()[0] == said


def test_replacing_a_secret_leaves_no_value_that_somebody_else_added(foliot, tmp_path):
    foliot("create", "secret", "s", "--from-literal", "a=1", "--host", "api.example")
    manifest = tmp_path / "more.yaml"
    spec = "spec: {hosts: [api.example], stringData: {a: '1', pin: '2'}}"
    manifest.write_text(f"kind: Secret\nmetadata: {{name: s}}\n{spec}\n")
    assert foliot("apply", "-f", manifest, "--field-manager", "other").code == 0

    assert foliot("create", "secret", "s", "--from-literal", "b=1", "--replace").code == 0
    stored = foliot("get", "secret", "s", "-o", "yaml").out
    assert "pin" not in stored
    assert "api.example" in stored


def test_a_number_in_the_data_of_a_secret_is_sent_to_string_data(foliot, tmp_path):
    manifest = tmp_path / "s.yaml"
    manifest.write_text("kind: Secret\nmetadata: {name: s}\nspec: {data: {pin: 0043}}\n")
    said = foliot("validate", "-f", manifest)
    assert said.code == 5
    assert "stringData" in said.err + said.out
    assert "0043" not in said.err + said.out


def test_rules_of_an_inbox_that_are_none_are_shown_where_they_stand(foliot, tmp_path):
    (tmp_path / "a.yaml").write_text(
        "kind: Agent\nmetadata: {name: a}\nspec:\n  model_ref: b\n  inbox:\n    cap: 0\n    drop: all\n"
    )

    said = foliot("validate", "-f", "a.yaml")

    assert said.code == 5
    assert "a.yaml:6:10: error: invalid spec.inbox.cap 0: expected >= 1" in said.err
    assert "    6 |     cap: 0\n      |          ^" in said.err
    assert "a.yaml:7:11: error: invalid spec.inbox.drop" in said.err
