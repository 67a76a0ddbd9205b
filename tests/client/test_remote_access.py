"""What a client with few rights sees of the work of others: nothing; and what it may do: what its roles say."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Client, Runtime
from foliot.errors import Denied, NotFound, Unavailable
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.server.http.serve import HttpServer, Listen
from foliot.settings.settings import Settings
from foliot.store.base import Filter
from foliot.work.tasks.base import Command


def team(namespace: str) -> list[dict[str, Any]]:
    brain = {"provider": "scripted", "default_model": "scripted", "script": [{"say": "done"}]}
    kinds = {"ModelEndpoint": ("brain", brain), "Agent": ("writer", {"model_ref": "brain", "prompt": "Write."})}
    return [
        {
            "apiVersion": "foliot.dev/v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        for kind, (name, spec) in kinds.items()
    ]


@pytest.fixture
async def admin(site) -> AsyncIterator[Client]:
    async with Client(site.url, token=await site.token("root")) as client:
        await client.resources.apply([*team("team-a"), *team("team-b")])
        yield client


async def test_a_client_sees_the_work_of_its_namespaces_and_no_other(site, admin):
    await admin.tasks.submit(Command("agent", "writer", namespace="team-a", name="mine", message="go"))
    hidden = await admin.tasks.submit(Command("agent", "writer", namespace="team-b", name="theirs", message="go"))
    (run,) = await admin.runs.list(namespace="team-b")

    async with Client(site.url, token=await site.token("bob", ("operator",), "team-a")) as bob:
        assert [info.name for info in (await bob.tasks.list(namespace=None))[0]] == ["mine"]
        assert (await bob.tasks.list(namespace="team-b"))[0] == []
        assert {info.namespace for info in await bob.runs.list(namespace=None)} == {"team-a"}
        assert {d["metadata"]["namespace"] for d in (await bob.resources.list(Filter())).items} == {"team-a"}
        for attempt in (
            bob.tasks.get(hidden.task.name, namespace="team-b"),
            bob.tasks.story(hidden.task.name, namespace="team-b"),
            bob.tasks.cancel(hidden.task.name, namespace="team-b"),
            bob.tasks.submit(Command("agent", "writer", namespace="team-b", message="go")),
            bob.runs.find(run.id),
            bob.runs.find(run.id[:6] + run.id[6:-1]),
            bob.runs.events(run.id),
            bob.runs.cancel(run.id),
        ):
            with pytest.raises(NotFound):
                await attempt
        assert (await bob.runs.find((await bob.runs.list(namespace=None))[0].id[:-1])).namespace == "team-a"
    assert (await admin.tasks.get("theirs", namespace="team-b")).phase == "queued"


async def test_who_only_reads_changes_nothing(site, admin):
    accepted = await admin.tasks.submit(Command("agent", "writer", namespace="team-a", name="t1", message="go"))

    async with Client(site.url, token=await site.token("eve", ("reader",), "team-a")) as eve:
        assert (await eve.tasks.story("t1", namespace="team-a")).info.name == accepted.task.name
        for attempt in (
            eve.tasks.cancel("t1", namespace="team-a"),
            eve.tasks.submit(Command("agent", "writer", namespace="team-a", message="go")),
            eve.resources.apply(team("team-a")),
            eve.approvals.approve("ap-x", by="root", namespace="team-a"),
            eve.approvals.grant("pay", by="root", seconds=60, namespace="team-a"),
        ):
            with pytest.raises(Denied) as caught:
                await attempt
            assert caught.value.exit_code == 6


async def test_a_token_that_is_not_good_is_told_and_what_to_do(site, admin):
    async with Client(site.url, token="fol_000000000000_" + "x" * 43) as nobody:
        with pytest.raises(Denied) as caught:
            await nobody.resources.list(Filter("Agent"))
    assert "FOLIOT_TOKEN" in (caught.value.hint or "")


async def test_who_did_it_is_whom_the_server_knows_whatever_the_client_says(site, admin):
    command = Command("agent", "writer", namespace="team-a", name="t1", message="go", by="the president")
    await admin.tasks.submit(command)
    await admin.tasks.cancel("t1", namespace="team-a", by="the president", reason="no need")

    records = await admin.tasks.records("t1", namespace="team-a")
    said = {getattr(record.event, "by", "") for record in records} - {""}
    assert said == {"root"}


# --- TLS ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for this machine that signs itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert_file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file


async def test_only_a_server_whose_certificate_is_trusted_is_spoken_to(certificate, settings: Settings):
    cert, key = certificate
    async with Runtime(settings=settings) as runtime:
        app = create_app(runtime, settings=settings, auth=Anonymous())
        async with HttpServer(app, Listen("localhost", 0, cert, key), grace=5) as server:
            url = f"https://localhost:{server.url.rpartition(':')[2]}"
            async with Client(url, ca=cert) as client:
                assert (await client.resources.list(Filter("Agent"))).items == []
            async with Client(url) as stranger:
                with pytest.raises(Unavailable, match="certificate"):
                    await stranger.resources.list(Filter("Agent"))
    assert ssl.HAS_TLSv1_2
