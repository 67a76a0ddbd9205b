"""Secrets of tools: references, the chain, the environment, and the boundary between namespaces."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import pytest

from foliot.errors import InvalidInput, NotFound, SecretError, Unavailable
from foliot.resources.references import Origin, Target, refused
from foliot.settings.settings import load_settings
from foliot.store.base import Key, Put, Revealed
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import load_keyring
from foliot.tools.base import ToolSecretMissing
from foliot.tools.secrets.masking import MASK, Masker
from foliot.tools.secrets.secrets import EnvironmentSecrets, SecretChain, SecretRef, Secrets, StoreSecrets


def store(**sealed: dict[str, bytes]) -> StoreSecrets:
    async def reveal(namespace: str, name: str) -> Revealed:
        if name == "broken":
            raise SecretError("the key is not the one it was sealed with")
        if namespace != "default" or name not in sealed:
            raise NotFound(f"{namespace}/{name} is not there")
        return Revealed(sealed[name])

    return StoreSecrets(reveal)


def ref(text: str, namespace: str = "default") -> SecretRef:
    return SecretRef.parse(text, namespace)


class TestReference:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("key", SecretRef("team", "key", "value")),
            ("key:", SecretRef("team", "key", "value")),
            (" key:id ", SecretRef("team", "key", "id")),
            ("other/key:id", SecretRef("other", "key", "id")),
        ],
    )
    def test_it_is_taken_apart(self, text: str, expected: SecretRef) -> None:
        assert SecretRef.parse(text, "team") == expected

    @pytest.mark.parametrize("text", ["", ":key", "/key", "a/b/c", "sk-live secret!", "name:ke y"])
    def test_a_malformed_one_is_refused_without_being_repeated(self, text: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            SecretRef.parse(text, "team")
        assert caught.value.message == "a reference to a secret is malformed"


class TestStore:
    async def test_values_are_trimmed_text(self) -> None:
        assert await store(key={"value": b" sesame\n", "id": b"me"}).resolve(ref("key")) == "sesame"
        assert await store(key={"id": b"me"}).resolve(ref("key:id")) == "me"

    @pytest.mark.parametrize("name", ["other", "key:missing"])
    async def test_what_is_missing_is_not_found(self, name: str) -> None:
        with pytest.raises(NotFound):
            await store(key={"value": b"x"}).resolve(ref(name))

    @pytest.mark.parametrize("value", [b"", b" \n", b"\xff\xfe"])
    async def test_what_cannot_be_used_is_an_error_of_another_kind(self, value: bytes) -> None:
        with pytest.raises(SecretError):
            await store(key={"value": value}).resolve(ref("key"))


class TestEnvironment:
    @pytest.mark.parametrize(
        ("text", "variable"),
        [
            ("search-api-key", "FOLIOT_SECRET_SEARCH_API_KEY"),
            ("creds:client_id", "FOLIOT_SECRET_CREDS_CLIENT_ID"),
            ("search-api-key", "FOLIOT_SECRET_DEFAULT__SEARCH_API_KEY"),
            ("creds:value", "FOLIOT_SECRET_CREDS_VALUE"),
        ],
    )
    async def test_names_become_variables(self, text: str, variable: str) -> None:
        assert await EnvironmentSecrets({variable: " v "}).resolve(ref(text)) == "v"

    async def test_the_variable_of_the_namespace_wins(self) -> None:
        secrets = EnvironmentSecrets({"FOLIOT_SECRET_K1": "any", "FOLIOT_SECRET_TEAM_A__K1": "own"})
        assert await secrets.resolve(ref("k1", "team-a")) == "own"
        assert await secrets.resolve(ref("k1", "team-b")) == "any"

    async def test_no_name_spells_the_variable_of_another_namespace(self) -> None:
        secrets = EnvironmentSecrets({"FOLIOT_SECRET_TEAM_A__K1": "own"})
        for text in ("team-a--k1", "team-a__k1", "team_a.-k1"):
            with pytest.raises(NotFound):
                await secrets.resolve(ref(text, "team-b"))

    @pytest.mark.parametrize("namespace", ["team.a", "team_a", "Team-A", "team--a", "TEAM_A"])
    async def test_no_namespace_spells_the_variable_of_another(self, namespace: str) -> None:
        secrets = EnvironmentSecrets({"FOLIOT_SECRET_TEAM_A__K1": "own", "FOLIOT_SECRET_K2": "any"})
        with pytest.raises(NotFound):
            await secrets.resolve(ref("k1", namespace))
        assert await secrets.resolve(ref("k2", namespace)) == "any"

    @pytest.mark.parametrize("text", ["path", "home", "PATH"])
    async def test_no_other_variable_can_be_reached(self, text: str) -> None:
        with pytest.raises(NotFound):
            await EnvironmentSecrets({"PATH": "x", "HOME": "y"}).resolve(ref(text))

    @pytest.mark.parametrize("text", ["key", "key-file", "key:file"])
    async def test_the_key_that_seals_all_secrets_cannot_be_reached(self, text: str) -> None:
        environ = {"FOLIOT_SECRET_KEY": "master", "FOLIOT_SECRET_KEY_FILE": "/master"}
        with pytest.raises(NotFound):
            await EnvironmentSecrets(environ).resolve(ref(text))

    async def test_a_list_can_narrow_it_further(self) -> None:
        secrets = EnvironmentSecrets({"FOLIOT_SECRET_A": "1", "FOLIOT_SECRET_B": "2"}, allow={"FOLIOT_SECRET_A"})
        assert await secrets.resolve(ref("a")) == "1"
        with pytest.raises(NotFound):
            await secrets.resolve(ref("b"))

    async def test_a_blank_variable_is_an_error_and_not_a_miss(self) -> None:
        with pytest.raises(SecretError, match="FOLIOT_SECRET_A is empty"):
            await EnvironmentSecrets({"FOLIOT_SECRET_A": " "}).resolve(ref("a"))


class TestChain:
    async def test_the_first_that_has_it_wins(self) -> None:
        chain = SecretChain([store(key={"value": b"stored"}), None, EnvironmentSecrets({"FOLIOT_SECRET_OTHER": "env"})])
        assert await chain.resolve(ref("key")) == "stored"
        assert await chain.resolve(ref("other")) == "env"

    async def test_an_error_ends_the_search(self) -> None:
        chain = SecretChain([store(), EnvironmentSecrets({"FOLIOT_SECRET_BROKEN": "env"})])
        with pytest.raises(SecretError):
            await chain.resolve(ref("broken"))

    async def test_an_empty_chain_finds_nothing(self) -> None:
        with pytest.raises(NotFound):
            await SecretChain([None]).resolve(ref("key"))


class TestForTools:
    async def test_a_value_is_hidden_from_the_moment_it_is_known(self) -> None:
        secrets = Secrets(EnvironmentSecrets({"FOLIOT_SECRET_K1": "sesame"}), Masker())
        assert secrets.masker.mask("sesame") == "sesame"
        assert await secrets.value("k1", namespace="default") == "sesame"
        assert secrets.masker.mask("sesame") == MASK

    async def test_a_missing_secret_says_what_to_do(self) -> None:
        secrets = Secrets(EnvironmentSecrets({}), Masker())
        with pytest.raises(ToolSecretMissing, match="secret 'k1' of tool 't' is not there") as caught:
            await secrets.value("k1", namespace="default", tool="t")
        assert (caught.value.code, caught.value.retryable) == ("secret_resolution_failed", False)
        assert caught.value.details["cause"] == "not_found"
        assert not await secrets.has("default", "k1")

    async def test_other_failures_are_told_apart(self) -> None:
        class Down:
            async def resolve(self, ref: SecretRef, hosts: Sequence[str] | None = None) -> str:
                raise Unavailable("the store does not answer")

        with pytest.raises(ToolSecretMissing, match="the store does not answer") as caught:
            await Secrets(Down(), Masker()).value("k1", namespace="default")
        assert caught.value.details["cause"] == "failed"

    async def test_the_secret_of_another_namespace_is_out_of_reach(self) -> None:
        async def may(origin: Origin, target: Target) -> None:
            if target.namespace != "commons":
                raise refused(origin, target)

        environ = {"FOLIOT_SECRET_K1": "x"}
        for secrets in (
            Secrets(EnvironmentSecrets(environ), Masker()),
            Secrets(EnvironmentSecrets(environ), Masker(), may=may),
        ):
            with pytest.raises(ToolSecretMissing, match="may not refer to a Secret of namespace 'other'"):
                await secrets.value("other/k1", namespace="default")
        assert await secrets.value("commons/k1", namespace="default") == "x"
        assert await secrets.has("default", "default/k1")


async def test_a_secret_that_was_declared_in_a_real_store_is_opened(tmp_path: Path) -> None:
    settings = load_settings({}, {"FOLIOT_HOME": str(tmp_path)})
    database = await open_database(settings.store)
    store = SqlResourceStore(database, lambda: load_keyring(settings))
    try:
        data = {"value": base64.b64encode(b"sesame").decode()}
        document = {"kind": "Secret", "metadata": {"name": "k1", "namespace": "default"}, "spec": {"data": data}}
        await store.write([Put(document)])
        opened = StoreSecrets(lambda namespace, name: store.reveal(Key("Secret", namespace, name)))
        assert await opened.resolve(ref("k1")) == "sesame"
        with pytest.raises(NotFound):
            await opened.resolve(ref("other"))
    finally:
        await database.close()
