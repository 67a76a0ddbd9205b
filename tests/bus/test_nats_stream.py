"""What is found on a NATS server under our names, and how one gets in."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
from contextlib import AsyncExitStack
from importlib.resources import files

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from foliot.bus.nats import NatsTransport
from foliot.bus.nats_link import NatsLink, NatsOptions
from foliot.bus.nats_stream import StreamPlan, StreamUnusable, covers
from foliot.bus.open import nats_options, open_live, open_transport
from foliot.bus.postgres import PostgresTransport
from foliot.bus.store import StoreTransport
from foliot.dev.nats import find_nats_server
from foliot.errors import UsageError
from foliot.settings.settings import load_settings
from foliot.store.open import open_database
from tests.conformance.transports import SOON, gather, ticket


@pytest.fixture
async def opened():
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def js(nats_url, opened):
    client = await nats.connect(nats_url, allow_reconnect=False)
    opened.push_async_callback(client.close)
    return client.jetstream()


async def open_nats(opened: AsyncExitStack, url: str, plan: StreamPlan | None = None) -> NatsTransport:
    transport = await NatsTransport.open(NatsLink(NatsOptions(url)), plan)
    opened.push_async_callback(transport.close)
    return transport


async def test_stream_and_consumer_are_made_as_planned(nats_url, js, opened) -> None:
    await open_nats(opened, nats_url, StreamPlan(ack_wait=7.0))
    stream = (await js.stream_info("FOLIOT_AGENT_MESSAGES")).config
    assert stream.subjects == ["foliot.agentmsg.>"]
    assert (stream.retention, stream.storage) == (RetentionPolicy.WORK_QUEUE, StorageType.FILE)
    assert stream.duplicate_window == 120
    (info,) = await js.consumers_info("FOLIOT_AGENT_MESSAGES")
    assert (info.name, info.config.ack_policy, info.config.ack_wait) == ("foliot-workers", AckPolicy.EXPLICIT, 7.0)
    assert info.config.max_deliver == -1


async def test_a_message_goes_to_the_subject_of_its_agent_and_is_gone_when_done(nats_url, js, opened) -> None:
    transport = await open_nats(opened, nats_url)
    await transport.publish([ticket(1, namespace="Team.A", agent="Clerk")])
    (got,) = await gather(transport, want=1, names=True)
    kept = await js.get_last_msg("FOLIOT_AGENT_MESSAGES", "foliot.agentmsg.team_a.clerk.inbox")
    assert json.loads(kept.data)["to_agent"] == "Clerk"
    await got.done()
    async with asyncio.timeout(SOON):
        while (await js.stream_info("FOLIOT_AGENT_MESSAGES")).state.messages:
            await asyncio.sleep(0.01)


async def test_a_stream_with_other_habits_is_used_and_what_differs_is_told(nats_url, js, opened, caplog) -> None:
    await js.add_stream(
        StreamConfig(
            name="FOLIOT_AGENT_MESSAGES",
            subjects=["foliot.>"],
            storage=StorageType.MEMORY,
            duplicate_window=10,
        )
    )
    with caplog.at_level(logging.WARNING):
        transport = await open_nats(opened, nats_url)
    assert "retention is limits" in caplog.text
    assert "storage is memory" in caplog.text
    assert "for 10 s only" in caplog.text
    await transport.publish([ticket(1)])
    await gather(transport, want=1, names=True)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (StreamConfig(name="FOLIOT_AGENT_MESSAGES", subjects=["orders.>"]), "does not take 'foliot.agentmsg.>'"),
        (StreamConfig(name="OTHER", subjects=["foliot.agentmsg.team.>"]), "another JetStream stream takes"),
    ],
)
async def test_a_stream_that_cannot_carry_tickets_is_refused_with_what_to_do(nats_url, js, config, told) -> None:
    await js.add_stream(config)
    with pytest.raises(StreamUnusable, match=told) as refused:
        await NatsTransport.open(NatsLink(NatsOptions(nats_url)))
    assert refused.value.hint


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (ConsumerConfig(durable_name="foliot-workers", deliver_subject="x", ack_policy=AckPolicy.EXPLICIT), "pushed"),
        (ConsumerConfig(durable_name="somebody", ack_policy=AckPolicy.EXPLICIT), "has another consumer"),
    ],
)
async def test_a_consumer_that_cannot_serve_workers_is_refused(nats_url, js, config, told) -> None:
    subjects, retention = ["foliot.agentmsg.>"], RetentionPolicy.WORK_QUEUE
    await js.add_stream(StreamConfig(name="FOLIOT_AGENT_MESSAGES", subjects=subjects, retention=retention))
    await js.add_consumer("FOLIOT_AGENT_MESSAGES", config)
    with pytest.raises(StreamUnusable, match=told):
        await NatsTransport.open(NatsLink(NatsOptions(nats_url)))


async def test_what_is_no_message_is_thrown_away_and_the_next_one_comes(nats_url, js, opened, caplog) -> None:
    transport = await open_nats(opened, nats_url)
    await js.publish("foliot.agentmsg.team.clerk.inbox", b"sesame")
    await transport.publish([ticket(1)])
    with caplog.at_level(logging.WARNING):
        (got,) = await gather(transport, want=1, names=True)
    assert got.ticket == ticket(1)
    await got.done()
    assert "thrown away" in caplog.text
    assert "sesame" not in caplog.text
    async with asyncio.timeout(SOON):
        while (await js.stream_info("FOLIOT_AGENT_MESSAGES")).state.messages:
            await asyncio.sleep(0.01)


async def test_a_ticket_whose_time_is_not_there_by_the_receivers_clock_waits(nats_url, opened) -> None:
    ahead = await NatsTransport.open(NatsLink(NatsOptions(nats_url)), clock=lambda: 1000.0)
    opened.push_async_callback(ahead.close)
    now = 999.6
    behind = await NatsTransport.open(NatsLink(NatsOptions(nats_url)), clock=lambda: now)
    opened.push_async_callback(behind.close)
    await ahead.publish([ticket(1, due_at=1000.0)])
    assert list(await behind.receive(want=1, timeout=0.2)) == []
    now = 1000.0
    assert [each.ticket for each in await gather(behind, want=1, names=True)] == [ticket(1, due_at=1000.0)]


@pytest.mark.parametrize(
    ("pattern", "yes"),
    [
        ("a.b.>", True),
        ("a.>", True),
        (">", True),
        ("a.*.>", True),
        ("*.b.>", True),
        ("a.b", False),
        ("a.b.c.>", False),
        ("a.b.*", False),
        ("x.>", False),
    ],
)
def test_which_subjects_of_a_stream_take_all_of_ours(pattern: str, yes: bool) -> None:
    assert covers(pattern, "a.b.>") is yes


class TestGettingIn:
    def test_no_password_is_in_what_is_shown(self) -> None:
        options = NatsOptions("nats://me:ses,ame@one:4222, tls://token@two:4222")
        assert options.servers == ["nats://me:ses,ame@one:4222", "tls://token@two:4222"]
        assert options.place == "one:4222, two:4222"
        assert "ame" not in repr(options)

    async def test_a_wrong_password_is_told_without_it(self, nats_url, caplog) -> None:
        wrong = nats_url.replace("nats://", "nats://x").rpartition("@")
        link = NatsLink(NatsOptions(f"{wrong[0]}sesame@{wrong[2]}"))
        with caplog.at_level(logging.DEBUG):
            transport = await NatsTransport.open(link, patience=0.5)
        await transport.close()
        assert "cannot be reached" in caplog.text
        assert "sesame" not in caplog.text

    def test_a_file_that_is_not_there_is_named(self, tmp_path) -> None:
        with pytest.raises(UsageError, match=r"ca\.pem"):
            NatsOptions("tls://h:4222", ca=tmp_path / "ca.pem").check()
        (tmp_path / "ca.pem").write_text("not a certificate")
        with pytest.raises(UsageError, match="TLS files"):
            NatsOptions("tls://h:4222", ca=tmp_path / "ca.pem").arguments()

    def test_the_kind_of_credentials_is_seen_in_the_file(self, tmp_path) -> None:
        file = tmp_path / "user"
        file.write_text("-----BEGIN NATS USER JWT-----\n")
        assert NatsOptions("nats://h", credentials=file).arguments()["user_credentials"] == str(file)
        file.write_text("SUAM\n")
        assert NatsOptions("nats://h", credentials=file).arguments()["nkeys_seed"] == str(file)


class TestOpening:
    async def test_the_settings_choose_the_transport(self, tmp_path, postgres_url, nats_url, opened) -> None:
        plain = {"FOLIOT_HOME": str(tmp_path)}
        file, server = await open_database(f"sqlite:///{tmp_path / 'foliot.db'}"), await open_database(postgres_url)
        opened.push_async_callback(file.close)
        opened.push_async_callback(server.close)
        with_nats = {**plain, "FOLIOT_NATS": nats_url, "FOLIOT_NATS_STREAM": "MINE", "FOLIOT_NATS_PREFIX": "mine."}
        for environ, database, kind, live in (
            (plain, file, StoreTransport, "LocalLive"),
            (plain, server, PostgresTransport, "PostgresLive"),
            (with_nats, server, NatsTransport, "NatsLive"),
        ):
            settings = load_settings({}, environ)
            transport, bus = await open_transport(settings, database), await open_live(settings, database)
            assert isinstance(transport, kind)
            assert type(bus).__name__ == live
            await transport.publish([ticket(1)])
            (got, *_) = await gather(transport, want=1, names=kind is NatsTransport)
            await got.done()
            await bus.close()
            await transport.close()

    def test_files_and_names_of_the_settings_reach_nats(self, tmp_path) -> None:
        environ = {"FOLIOT_HOME": str(tmp_path), "FOLIOT_NATS": "tls://h:1", "FOLIOT_NATS_CA": str(tmp_path / "ca")}
        options = nats_options(load_settings({}, environ), name="n")
        assert (options.url, options.ca, options.cert) == ("tls://h:1", tmp_path / "ca", None)
        with pytest.raises(UsageError, match="no NATS server"):
            nats_options(load_settings({}, {"FOLIOT_HOME": str(tmp_path)}), name="n")


def test_the_shipped_configuration_is_accepted_and_syncs_before_it_acknowledges(tmp_path) -> None:
    text = files("foliot.bus").joinpath("nats-server.conf").read_text()
    assert "\n    sync_interval: always\n" in text
    (tmp_path / "nats-server.conf").write_text(text)
    command = [str(find_nats_server()), "-t", "--config", str(tmp_path / "nats-server.conf")]
    subprocess.run([*command, "--store_dir", str(tmp_path)], check=True, capture_output=True, timeout=110)
