"""Resources on a store in this process: near names, preconditions, and that it is lazy about what it loads."""

from __future__ import annotations

import pytest

from foliot.errors import Conflict, NotFound, UsageError
from foliot.runtime.local.groups import opened_store
from foliot.runtime.local.resources import LocalResources
from foliot.settings.settings import load_settings
from foliot.store.base import Filter


def role(name: str, namespace: str = "default", *permissions: str) -> dict[str, object]:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": "AgentRole",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"permissions": list(permissions)},
    }


@pytest.fixture
async def client(store) -> LocalResources:
    return LocalResources(store)


async def test_a_name_like_another_is_suggested(client):
    await client.apply([role("writer"), role("reader")])

    with pytest.raises(NotFound) as caught:
        await client.get("AgentRole", "wirter", namespace="default")

    assert caught.value.hint == "did you mean writer?"
    assert caught.value.details == {"kind": "AgentRole", "name": "wirter", "namespace": "default"}


async def test_the_same_name_elsewhere_is_pointed_to(client):
    await client.apply([role("writer", "team-a")])

    with pytest.raises(NotFound) as caught:
        await client.delete("AgentRole", "writer", namespace="default")

    assert "team-a" in (caught.value.hint or "")


async def test_where_nothing_is_alike_the_hint_says_how_to_list(client):
    with pytest.raises(NotFound) as caught:
        await client.get("AgentRole", "writer", namespace="default")

    assert caught.value.hint == "`foliot get agent-roles` lists them."


async def test_replace_needs_the_version_it_was_read_at(client):
    await client.apply([role("a")])
    read = await client.get("AgentRole", "a", namespace="default")
    await client.apply([role("a", "default", "faster")])

    with pytest.raises(Conflict):
        await client.replace({**read, "spec": {"permissions": ["late"]}})
    with pytest.raises(Conflict, match="without the version"):
        await client.replace(role("a"))

    fresh = await client.get("AgentRole", "a", namespace="default")
    outcome = await client.replace({**fresh, "spec": {"permissions": ["new"]}})
    assert (outcome.action, outcome.before) == ("updated", fresh)


async def test_delete_with_an_old_version_is_a_conflict(client):
    await client.apply([role("a")])

    with pytest.raises(Conflict):
        await client.delete("AgentRole", "a", namespace="default", version="999")

    assert (await client.delete("AgentRole", "a", namespace="default"))["metadata"]["name"] == "a"


async def test_a_watch_takes_over_where_a_list_ended(client):
    await client.apply([role("a")])
    page = await client.list(Filter("AgentRole", "default"))
    await client.apply([role("b")])

    change = await anext(client.watch(Filter("AgentRole", "default"), after=page.revision))

    assert (change.action, change.document["metadata"]["name"]) == ("created", "b")


async def test_a_store_is_opened_by_settings_without_a_key(tmp_path):
    async with opened_store(load_settings({"home": str(tmp_path)}, {})) as store:
        assert (await store.resources.list(Filter())).items == []
    assert not (tmp_path / "secret.key").exists()  # no secret was touched, so no key was made


async def test_a_store_that_cannot_be_is_a_usage_error():
    with pytest.raises(UsageError):
        async with opened_store(load_settings({"store": "mysql://x"}, {})):
            pass
