"""Applying beside others: what they own survives, what is disputed is named, and a dry run says the same."""

from __future__ import annotations

from typing import Any

import pytest

from foliot.errors import InvalidInput
from foliot.resources.field_owners import FieldConflict
from foliot.resources.problems import ManifestError
from foliot.resources.reader import parse_text
from foliot.resources.validate import validate_document
from foliot.store.base import Key, Requirement

AGENT = "kind: Agent\nmetadata: {name: clerk, labels: {team: desk}}\nspec:\n  model_ref: brain\n  prompt: Be brief.\n"
SECRET = "kind: Secret\nmetadata: {name: keys}\nspec: {stringData: {a: hunter2}}\n"


def given(text: str) -> list[dict[str, Any]]:
    bundle = parse_text(text, "m.yaml")
    bundle.raise_for_errors()
    return bundle.given


async def live(both, kind: str = "Agent", name: str = "clerk", **how: Any) -> dict[str, Any]:
    return await both.client.resources.get(kind, name, namespace="default", **how)


async def edited(both, kind: str = "Agent", name: str = "clerk", *, labels: Any = None, **spec: Any) -> None:
    """As `foliot edit` does it: read, changed, written back whole."""
    read = await live(both, kind, name)
    metadata = {**read["metadata"], **({"labels": labels} if labels else {})}
    await both.client.resources.replace({**read, "metadata": metadata, "spec": {**read["spec"], **spec}})


async def owners(both, kind: str = "Agent", name: str = "clerk") -> dict[str, list[str]]:
    shown = await live(both, kind, name, show_owners=True)
    return {each["manager"]: each["fields"] for each in shown["metadata"]["managedFields"]}


async def test_what_others_set_survives_and_what_i_leave_out_goes(both):
    await both.client.resources.apply(
        given(AGENT + "  tools: [look, send]\n  limits: {timeout: 9s}\n"), allow_missing=True
    )
    labels = {"team": "desk", "cost": "low"}
    await edited(both, labels=labels, limits={"timeout": "9s", "max_steps": 3}, description="by hand")

    foretold = await both.client.resources.apply(given(AGENT + "  tools: [look]\n"), dry_run=True, allow_missing=True)
    done = await both.client.resources.apply(given(AGENT + "  tools: [look]\n"), allow_missing=True)

    after = await live(both)
    assert after["metadata"]["labels"] == labels
    assert after["spec"]["limits"] == {"max_steps": 3}
    assert after["spec"]["tools"] == ["look"]
    assert after["spec"]["description"] == "by hand"
    assert foretold.outcomes[0].document["spec"] == after["spec"] == done.outcomes[0].document["spec"]
    assert foretold.outcomes[0].owners == done.outcomes[0].owners
    assert await owners(both) == {
        "foliot": ["/metadata/labels/team", "/spec/model_ref", "/spec/prompt", "/spec/tools"],
        "foliot-edit": ["/metadata/labels/cost", "/spec/description", "/spec/limits/max_steps"],
    }
    assert (await both.client.resources.apply(given(AGENT + "  tools: [look]\n"), allow_missing=True)).outcomes[
        0
    ].action == "unchanged"


async def test_a_conflict_names_field_manager_and_both_values_until_it_is_forced(both):
    await both.client.resources.apply(given(AGENT), allow_missing=True)
    await edited(both, prompt="Be kind.")
    before = await live(both)

    for dry_run in (True, False):
        with pytest.raises(FieldConflict) as caught:
            await both.client.resources.apply(given(AGENT), dry_run=dry_run, allow_missing=True)
        message = 'Agent/clerk in namespace \'default\': spec.prompt is "Be kind." by foliot-edit, and "Be brief." here'
        assert message in caught.value.message
        assert caught.value.exit_code == 4
        assert caught.value.details["conflicts"] == [
            {
                "resource": "Agent/clerk in namespace 'default'",
                "field": "spec.prompt",
                "managers": ["foliot-edit"],
                "live": '"Be kind."',
                "wanted": '"Be brief."',
            }
        ]
    assert await live(both) == before

    foretold = await both.client.resources.apply(given(AGENT), dry_run=True, force_conflicts=True, allow_missing=True)
    done = await both.client.resources.apply(given(AGENT), force_conflicts=True, allow_missing=True)

    assert foretold.outcomes[0].owners == done.outcomes[0].owners
    assert (await live(both))["spec"]["prompt"] == "Be brief."
    assert "foliot-edit" not in await owners(both)


FILTER = """\
kind: McpServer
metadata: {name: x}
spec: {transport: http, endpoint: "https://mcp.example", tool_filter: {include: LIST}}
"""
TOOL = """\
kind: Tool
metadata: {name: x}
spec: {type: http, endpoint: "https://a.example", capabilities: LIST}
"""
CLERK = "kind: Agent\nmetadata: {name: x}\nspec: {model_ref: m, tools: LIST}\n"
GRANTS = {
    "tools of a server": ("McpServer", FILTER, "spec.tool_filter.include"),
    "tools of an agent": ("Agent", CLERK, "spec.tools"),
    "capabilities of a tool": ("Tool", TOOL, "spec.capabilities"),
}


@pytest.mark.parametrize("what", GRANTS)
async def test_who_widens_a_list_that_grants_is_heard_of_and_can_be_undone(both, what):
    kind, text, field = GRANTS[what]
    mine, wider, none = (given(text.replace("LIST", each)) for each in ("[peek]", "[peek, wipe]", "[]"))
    await both.client.resources.apply(mine, allow_missing=True)
    with pytest.raises(FieldConflict):
        await both.client.resources.apply(wider, field_manager="team-b", allow_missing=True)
    await both.client.resources.apply(wider, field_manager="team-b", force_conflicts=True, allow_missing=True)

    for documents in (mine, none):
        with pytest.raises(FieldConflict, match=f'{field} is \\["peek", "wipe"\\] by team-b'):
            await both.client.resources.apply(documents, allow_missing=True)
    await both.client.resources.apply(none, force_conflicts=True, allow_missing=True)

    after = await live(both, kind, "x")
    assert "peek" not in str(after["spec"])
    assert field not in str(await owners(both, kind, "x"))
    assert (await both.client.resources.apply(none, allow_missing=True)).outcomes[0].action == "unchanged"


async def test_managers_share_a_field_that_they_agree_on_and_keep_it_for_each_other(both):
    await both.client.resources.apply(given(AGENT), field_manager="team-a", allow_missing=True)
    shared = await both.client.resources.apply(given(AGENT), field_manager="team-b", allow_missing=True)
    assert [each.action for each in shared.outcomes] == ["updated"], "somebody more owns it"

    bare = "kind: Agent\nmetadata: {name: clerk}\nspec: {model_ref: brain}\n"
    await both.client.resources.apply(given(bare), field_manager="team-a", allow_missing=True)
    assert (await live(both))["spec"]["prompt"] == "Be brief."

    await both.client.resources.apply(given(bare), field_manager="team-b", allow_missing=True)
    assert "prompt" not in (await live(both))["spec"]
    assert "labels" not in (await live(both))["metadata"]


async def test_an_explicit_default_is_owned_and_one_that_was_filled_in_is_not(both):
    await both.client.resources.apply(
        given(AGENT + "  limits: {max_steps: 10}\n"), field_manager="team-a", allow_missing=True
    )

    assert "/spec/limits/max_steps" in (await owners(both))["team-a"]
    with pytest.raises(FieldConflict, match="max_steps"):
        await both.client.resources.apply(
            given(AGENT + "  limits: {max_steps: 20}\n"), field_manager="team-b", allow_missing=True
        )
    await both.client.resources.apply(given(AGENT), field_manager="team-a", allow_missing=True)
    await both.client.resources.apply(
        given(AGENT + "  limits: {max_steps: 20}\n"), field_manager="team-b", allow_missing=True
    )


async def test_secret_values_of_others_stay_and_disputes_do_not_tell_them(both):
    await both.client.resources.apply(given(SECRET), allow_missing=True)
    await edited(both, "Secret", "keys", data={"a": "***", "b": "c2VzYW1l"})

    await both.client.resources.apply(given(SECRET.replace("hunter2", "hunter3")), allow_missing=True)
    assert set((await live(both, "Secret", "keys"))["spec"]["data"]) == {"a", "b"}

    disputed = SECRET.replace("a: hunter2", "a: hunter3, b: sesame2")
    with pytest.raises(FieldConflict) as caught:
        await both.client.resources.apply(given(disputed), allow_missing=True)
    told = f"{caught.value.message} {caught.value.hint} {caught.value.details}"
    assert "spec.data.b is *** by foliot-edit, and *** (changed) here" in told
    assert "sesame" not in told
    assert "c2VzYW1l" not in told
    same = SECRET.replace("a: hunter2", "a: hunter3, b: sesame")
    await both.client.resources.apply(given(same), allow_missing=True)
    revealed = await both.runtime.inside.resources.reveal(Key("Secret", "default", "keys"))
    assert revealed == {"a": b"hunter3", "b": b"sesame"}


async def test_parts_that_do_not_go_together_are_refused_with_their_place(both):
    task = "kind: Task\nmetadata: {name: mould}\nspec: {mode: template, WHO, input: {q: x}}\n"
    await both.client.resources.apply(
        given(task.replace("WHO", "agent: a")), field_manager="team-a", allow_missing=True
    )

    with pytest.raises(ManifestError) as caught:
        await both.client.resources.apply(
            given(task.replace("WHO", "system: s")), field_manager="team-b", allow_missing=True
        )

    assert "exclude each other" in caught.value.message


async def test_a_manager_has_a_name_that_is_its_own(both):
    for name in ("system", "a b", "x" * 129):
        with pytest.raises(InvalidInput):
            await both.client.resources.apply(given(AGENT), field_manager=name, allow_missing=True)


async def test_prune_deletes_what_its_own_manager_applied(both):
    role = "kind: AgentRole\nmetadata: {name: NAME, labels: {app: x}}\nspec: {permissions: [read]}\n"
    await both.client.resources.apply(given(role.replace("NAME", "mine")), field_manager="team-a", allow_missing=True)
    await both.client.resources.apply(given(role.replace("NAME", "theirs")), field_manager="team-b", allow_missing=True)

    kept = given(role.replace("NAME", "other"))
    applied = await both.client.resources.apply(kept, field_manager="team-a", prune=(Requirement("app", "=", ("x",)),))

    gone = [each.document["metadata"]["name"] for each in applied.outcomes if each.action == "deleted"]
    assert gone == ["mine"]


async def test_prune_keeps_what_others_own_fields_of_and_says_so(both):
    role = "kind: AgentRole\nmetadata: {name: NAME, labels: {app: x}}\nspec: {permissions: [read]}\n"
    shared, edit, other = (given(role.replace("NAME", name)) for name in ("shared", "edit", "other"))
    await both.client.resources.apply(shared, field_manager="team-a", allow_missing=True)
    await both.client.resources.apply([*shared, *edit, *other], field_manager="team-b", allow_missing=True)
    await edited(both, "AgentRole", "edit", description="by hand")
    before = await live(both, "AgentRole", "shared", show_owners=True)
    prune: dict[str, Any] = {"field_manager": "team-b", "prune": (Requirement("app", "=", ("x",)),)}

    for dry_run in (True, False):
        applied = await both.client.resources.apply(other, dry_run=dry_run, **prune, allow_missing=True)
        assert [each.action for each in applied.outcomes] == ["unchanged"]
        one, two = sorted(applied.warnings)
        assert "AgentRole/edit" in one
        assert "foliot-edit" in one
        assert "AgentRole/shared in namespace 'default' is not pruned" in two
        assert "besides team-b, fields of it belong to team-a" in two
        assert "--force-conflicts" in two
    assert await live(both, "AgentRole", "shared", show_owners=True) == before

    forced = await both.client.resources.apply(other, force_conflicts=True, **prune, allow_missing=True)
    gone = [each.document["metadata"]["name"] for each in forced.outcomes if each.action == "deleted"]
    assert (gone, forced.warnings) == (["edit", "shared"], [])


EMPTIES = {
    "an annotation and a label": "kind: Agent\nmetadata: {name: x, annotations: {n: ''}, labels: {l: ''}}\n"
    "spec: {model_ref: brain, prompt: Be brief.}\n",
    "fields": "kind: Agent\nmetadata: {name: x, labels: {}, annotations: {n: a}}\n"
    "spec: {model_ref: brain, prompt: Be brief., description: '', tools: [], limits: {}, roles: null}\n",
    "defaults": "kind: Agent\nmetadata: {name: x}\n"
    "spec: {model_ref: brain, prompt: Be brief., limits: {max_steps: 10}, execution: {profile: dynamic}}\n",
    "a task's input": "kind: Task\nmetadata: {name: x}\nspec: {system: s, mode: template, input: {a: '', b: c}}\n",
    "a node": "kind: AgentSystem\nmetadata: {name: x}\nspec: {agents: [a, b], graph: {a: {next: b}, b: {}}}\n",
    "headers": "kind: Tool\nmetadata: {name: x}\n"
    "spec: {type: http, endpoint: 'https://a.example', http: {headers: {X-A: ''}, query: {q: ''}}}\n",
}


@pytest.mark.parametrize("what", EMPTIES)
async def test_what_is_written_down_empty_or_as_its_default_is_applied_as_it_is(both, what):
    """And it is its author's: another manager's apply leaves it."""
    (document,) = given(EMPTIES[what])
    kind, name = document["kind"], document["metadata"]["name"]
    put, _ = validate_document(document)
    assert put is not None
    await both.client.resources.apply([document], allow_missing=True)
    applied = await live(both, kind, name)
    assert applied["spec"] == put["spec"]
    for part in ("labels", "annotations"):
        assert marks(applied, part) == marks(put, part)

    other = {**document, "metadata": {"name": name, "namespace": "default", "annotations": {"other": ""}}}
    await both.client.resources.apply([other], field_manager="other", allow_missing=True)
    beside = await live(both, kind, name)
    assert beside["spec"] == put["spec"]
    assert marks(beside, "labels") == marks(put, "labels")
    assert marks(beside, "annotations") == {**marks(put, "annotations"), "other": ""}
    assert (await both.client.resources.apply([document], allow_missing=True)).outcomes[0].action == "unchanged"


def marks(document: dict[str, Any], part: str) -> dict[str, str]:
    found = document["metadata"].get(part, {})
    return {name: value for name, value in found.items() if not name.startswith("foliot.dev/")}
