"""The outbound guard: classes of addresses, tricks of spelling, rebinding, and redirects on real sockets."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from foliot.common.waits import Waits
from foliot.errors import InvalidInput
from foliot.tools.base import ToolError, ToolTimeout, ToolUnreachable
from foliot.tools.outbound.client import OutboundClient, ToolAnswerTooLarge
from foliot.tools.outbound.guard import Guard, Outbound, OutboundRefused, OutboundTarget, address_class
from foliot.tools.outbound.pinned import CHECKED, PinnedResolver, pinned_socket
from tests.tools.web_service import saying, self_signed, serving, way_out

PUBLIC = "93.184.216.34"


class Names:
    """A resolver whose answers a test writes: for each name a list of answers, the last one for ever."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self._answers = {name.replace("_", "."): list(found) for name, found in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self._answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        found = self._answers[host]
        return found.pop(0) if len(found) > 1 else found[0]


def guard(policy: Outbound | None = None, **answers: list[list[str]]) -> Guard:
    return Guard(policy or Outbound(), lookup=Names(**answers))


class TestClasses:
    @pytest.mark.parametrize(
        ("address", "expected"),
        [
            (PUBLIC, "public"),
            ("2606:2800:220:1::1", "public"),
            ("127.0.0.1", "loopback"),
            ("127.255.255.254", "loopback"),
            ("::1", "loopback"),
            ("169.254.1.1", "link_local"),
            ("fe80::1", "link_local"),
            ("169.254.169.254", "metadata"),
            ("fd00:ec2::254", "metadata"),
            ("100.100.100.200", "metadata"),
            ("168.63.129.16", "metadata"),
            ("10.1.2.3", "private"),
            ("172.31.255.255", "private"),
            ("192.168.0.1", "private"),
            ("fc00::1", "private"),
            ("fec0::1", "private"),
            ("100.64.0.1", "shared"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.250", "multicast"),
            ("ff02::1", "multicast"),
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "unspecified"),
            ("::", "unspecified"),
            ("255.255.255.255", "reserved"),
            ("240.0.0.1", "reserved"),
            ("198.18.0.1", "reserved"),
            ("192.0.2.1", "reserved"),
            ("2001:db8::1", "reserved"),
            ("64:ff9b:1::1", "reserved"),
            ("4000::1", "reserved"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:10.0.0.1", "private"),
            (f"::ffff:{PUBLIC}", "public"),
            ("::127.0.0.1", "loopback"),
            ("2002:7f00:1::", "loopback"),
            ("2002:a9fe:a9fe::", "metadata"),
            ("64:ff9b::10.0.0.1", "private"),
            (f"64:ff9b::{PUBLIC}", "public"),
            ("2001:0:a00:1::", "reserved"),
            ("2606:2800::5efe:192.168.1.1", "private"),
        ],
    )
    def test_the_class_of_an_address(self, address: str, expected: str) -> None:
        assert address_class(ipaddress.ip_address(address)) == expected

    @given(st.ip_addresses(v=4).filter(lambda address: not address.is_global))
    def test_what_is_not_global_stays_inside_however_it_is_wrapped(self, address: ipaddress.IPv4Address) -> None:
        number = int(address)
        wrapped = [
            address,
            ipaddress.IPv6Address((0xFFFF << 32) | number),
            ipaddress.IPv6Address((0x2002 << 112) | (number << 80)),
            ipaddress.IPv6Address((0x0064FF9B << 96) | number),
            ipaddress.IPv6Address((0x20010000 << 96) | (number ^ 0xFFFFFFFF)),
        ]
        policy = Outbound()
        assert all(policy.refusal("x.example", form) is not None for form in wrapped)

    @given(st.ip_addresses(v=6).filter(lambda address: not address.is_global and address.ipv4_mapped is None))
    def test_no_address_that_is_not_global_is_public(self, address: ipaddress.IPv6Address) -> None:
        if address not in ipaddress.IPv6Network("64:ff9b::/96") and address.sixtofour is None:
            assert address_class(address) != "public"


class TestSpellings:
    @pytest.mark.parametrize(
        "url",
        [
            "http://127.0.0.1/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[0:0:0:0:0:ffff:7f00:1]/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0x7f.0.0.1/",
            "http://0177.0.0.1/",
            "http://127.1/",
            "http://127.0.0.1./",
            "http://127.000.000.001/",
            "http://00000000000000000000177.1/",
            "http://１２７.０.０.１/",
            "http://127。0。0。1/",
            "http://[fe80::1%25eth0]/",
            "http://[fe80::1%eth0]/",
            "http://[::]/",
            "http://0/",
            "http://0.0.0.0/",
            "http://169.254.169.254/latest/meta-data",
            "http://user@example.com/",
            "http://example.com@127.0.0.1/",
            "http://example.com:80@127.0.0.1/",
            "http://example.com/?token=sesame with blanks",
            "http://:sesame@example.com/",
            "http://example.com\\@127.0.0.1/",
            "http:\\\\127.0.0.1\\",
            "http://exa mple.com/",
            "http://example.com\t/",
            "http://example.com:0/",
            "http://example.com:99999/",
            "http://-bad.example/",
            "http:///path",
            "http:example.com",
            "//example.com",
            "example.com:80",
            "",
            "file:///etc/passwd",
            "ftp://example.com/",
            "gopher://example.com/",
            "unix:///var/run/docker.sock",
            "ws://example.com/",
        ],
    )
    async def test_tricks_of_spelling_lead_nowhere(self, url: str) -> None:
        with pytest.raises(OutboundRefused) as caught:
            await guard(example_com=[[PUBLIC]]).check_url(url)
        error = caught.value
        assert (error.code, error.retryable, error.kind) == ("runtime_policy_invalid", False, "policy_denied")
        assert "sesame" not in f"{error.message} {error.hint} {error.details}"

    @pytest.mark.parametrize(
        ("url", "target"),
        [
            ("http://example.com/x?y#z", ("http", "example.com", 80)),
            ("HTTPS://EXAMPLE.com:8443", ("https", "example.com", 8443)),
            ("https://example.com./", ("https", "example.com", 443)),
            (f"http://{PUBLIC}/", ("http", PUBLIC, 80)),
        ],
    )
    async def test_ordinary_addresses_pass(self, url: str, target: tuple[str, str, int]) -> None:
        found = await guard(example_com=[[PUBLIC]], example_com_=[[PUBLIC]]).check_url(url)
        assert found.origin == target
        assert found.addresses == (ipaddress.ip_address(PUBLIC),)


class TestPolicy:
    @pytest.mark.parametrize(
        ("address", "policy", "allowed"),
        [
            ("10.0.0.1", Outbound(), False),
            ("10.0.0.1", Outbound(allow_private=True), True),
            ("100.64.0.1", Outbound(allow_private=True), True),
            ("127.0.0.1", Outbound(allow_private=True), False),
            ("169.254.169.254", Outbound(allow_private=True, allow_loopback=True), False),
            ("0.0.0.0", Outbound(allow_private=True, allow_loopback=True), False),
            ("127.0.0.1", Outbound(allow_loopback=True), True),
            ("10.0.0.1", Outbound(allow_hosts=["host.example"]), True),
            ("10.0.0.1", Outbound(allow_hosts=["*.example"]), True),
            ("10.0.0.1", Outbound(allow_hosts=["example"]), False),
            ("10.0.0.1", Outbound(allow_hosts=["other.example"]), False),
            ("169.254.1.1", Outbound(allow_hosts=["host.example"]), False),
            ("169.254.169.254", Outbound(allow_hosts=["host.example"]), False),
            ("10.0.0.1", Outbound(allow_hosts=["10.0.0.0/8"]), True),
            ("::ffff:10.0.0.1", Outbound(allow_hosts=["10.0.0.0/8"]), True),
            ("11.0.0.1", Outbound(deny_hosts=["11.0.0.0/8"]), False),
            ("169.254.169.254", Outbound(allow_hosts=["0.0.0.0/0"]), False),
            ("169.254.169.254", Outbound(allow_hosts=["169.254.169.254"]), True),
            ("224.0.0.1", Outbound(allow_hosts=["224.0.0.1"]), False),
            ("10.0.0.1", Outbound(allow_hosts=["10.0.0.1"], deny_hosts=["host.example"]), False),
            (PUBLIC, Outbound(deny_hosts=["*.example"]), False),
        ],
    )
    async def test_what_is_allowed(self, address: str, policy: Outbound, allowed: bool) -> None:
        checking = guard(policy, host_example=[[address]]).check_url("http://host.example/")
        if allowed:
            assert (await checking).addresses == (ipaddress.ip_address(address),)
        else:
            with pytest.raises(OutboundRefused):
                await checking

    async def test_one_bad_address_among_good_ones_is_enough(self) -> None:
        with pytest.raises(OutboundRefused, match="its address is private"):
            await guard(mixed_example=[[PUBLIC, "10.0.0.1"]]).check_url("http://mixed.example/")

    async def test_a_zone_in_an_answer_is_still_link_local(self) -> None:
        with pytest.raises(OutboundRefused, match="link-local"):
            await guard(host_example=[["fe80::1%lo"]]).check_url("http://host.example/")

    @pytest.mark.parametrize("entry", ["http://x", "10.0.0.1/8", "a b", "127.1", "*"])
    def test_a_malformed_entry_is_refused(self, entry: str) -> None:
        with pytest.raises(InvalidInput):
            Outbound(allow_hosts=[entry])

    async def test_names_that_do_not_resolve_may_do_so_later(self) -> None:
        with pytest.raises(ToolUnreachable, match=r"nowhere\.example") as caught:
            await guard().check_url("http://nowhere.example/")
        assert caught.value.retryable

    async def test_a_resolver_that_hangs_is_not_waited_for(self) -> None:
        async def hangs(host: str, port: int) -> Sequence[str]:
            await asyncio.Event().wait()
            return []

        with pytest.raises(ToolUnreachable, match="was not resolved"):
            await Guard(Outbound(), lookup=hangs, timeout=0.01).check_host("slow.example", 80)

    async def test_other_clients_get_addresses_as_text(self) -> None:
        assert await guard(host_example=[[PUBLIC]]).addresses("host.example", 443) == [PUBLIC]


class TestPinning:
    async def test_a_name_is_resolved_once_and_the_connection_goes_to_that_address(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(text=request.host)

        async with serving(answer) as service:
            port = service.url.rpartition(":")[2]
            # The second answer is what an attacker switches to once the first has been checked.
            names = Names(rebind_example=[["127.0.0.1"], ["127.0.0.2"]])
            client = OutboundClient(Guard(Outbound(allow_hosts=["127.0.0.1"]), lookup=names))
            try:
                async with client.send("GET", f"http://rebind.example:{port}/") as got:
                    assert await got.read() == f"rebind.example:{port}".encode()
                assert names.asked == ["rebind.example"]
            finally:
                await client.close()

    async def test_a_name_that_moved_inside_is_refused_although_a_connection_is_open(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(text="ok")

        now = [0.0]
        async with serving(answer) as service:
            port = service.url.rpartition(":")[2]
            names = Names(rebind_example=[["127.0.0.1"], ["169.254.169.254"]])
            checked = Guard(Outbound(allow_hosts=["127.0.0.1"]), lookup=names, clock=lambda: now[0])
            client = OutboundClient(checked)
            try:
                async with client.send("GET", f"http://rebind.example:{port}/") as got:
                    await got.read()
                now[0] = 60.0
                with pytest.raises(OutboundRefused, match="metadata"):
                    async with client.send("GET", f"http://rebind.example:{port}/"):
                        pass
                assert len(service.requests) == 1
            finally:
                await client.close()

    async def test_no_socket_is_made_for_an_address_that_was_not_checked(self) -> None:
        info = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 80))
        with pytest.raises(OSError, match="not checked"):
            pinned_socket(Waits(), info)
        token = CHECKED.set(OutboundTarget("http", "x.example", 80, (ipaddress.ip_address(PUBLIC),)))
        try:
            with pytest.raises(OSError, match="not checked"):
                pinned_socket(Waits(), info)
            with pytest.raises(OSError, match="not checked"):
                await PinnedResolver().resolve("y.example")
            assert [found["host"] for found in await PinnedResolver().resolve("x.example", 80)] == [PUBLIC]
        finally:
            CHECKED.reset(token)


class TestRedirects:
    async def test_they_are_followed_and_answered(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            if request.path == "/a":
                raise web.HTTPTemporaryRedirect("/b?x=1")
            return web.Response(text=f"{request.method} {request.path_qs} {request.headers['X-Key']}")

        async with serving(answer) as service, way_out() as out:
            async with out.client.send("POST", f"{service.url}/a", credentials={"X-Key": "k"}, body=b"body") as got:
                assert await got.read() == b"POST /b?x=1 k"
            assert service.bodies == [b"body", b"body"]

    @pytest.mark.parametrize("status", [301, 302, 303])
    async def test_a_post_that_is_sent_elsewhere_becomes_a_get(self, status: int) -> None:
        async def answer(request: web.Request) -> web.Response:
            if request.path == "/a":
                return web.Response(status=status, headers={"Location": "/b"})
            return web.Response(text=f"{request.method} {request.headers.get('Content-Type')}")

        async with serving(answer) as service, way_out() as out:
            headers = {"Content-Type": "application/json"}
            async with out.client.send("POST", f"{service.url}/a", headers=headers, body=b"{}") as got:
                assert await got.read() == b"GET None"

    @pytest.mark.parametrize(
        "location", ["http://127.0.0.2:9/", "http://169.254.169.254/", "//127.0.0.2/", "file:///etc/passwd", "http://["]
    )
    async def test_every_hop_is_checked(self, location: str) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(status=302, headers={"Location": location})

        async with serving(answer) as service, way_out(policy=Outbound(allow_hosts=["127.0.0.1"])) as out:
            with pytest.raises(OutboundRefused):
                async with out.client.send("GET", service.url):
                    pass

    async def test_they_end(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            raise web.HTTPFound("/again")

        async with serving(answer) as service, way_out() as out:
            with pytest.raises(OutboundRefused, match="too often"):
                async with out.client.send("GET", service.url):
                    pass
            assert len(service.requests) == 6

    async def test_credentials_stay_with_their_origin_for_good(self) -> None:
        async def back(request: web.Request) -> web.Response:
            raise web.HTTPTemporaryRedirect(f"{home.url}/there")

        async def answer(request: web.Request) -> web.Response:
            if request.path == "/start":
                raise web.HTTPTemporaryRedirect(elsewhere.url)
            return web.Response(text="done")

        async with serving(answer) as home, serving(back) as elsewhere, way_out() as out:
            async with out.client.send(
                "POST",
                f"{home.url}/start",
                headers={"X-Custom": "c", "Idempotency-Key": "i"},
                credentials={"Authorization": "Bearer t"},
                body=b"{}",
            ) as got:
                assert await got.read() == b"done"
            first, second = home.requests
            (away,) = elsewhere.requests
            assert first.headers["Authorization"] == "Bearer t"
            for request in (away, second):
                assert "Authorization" not in request.headers
                assert "X-Custom" not in request.headers
                assert request.headers["Idempotency-Key"] == "i"


class TestClient:
    async def test_a_closed_port_is_unreachable_and_nothing_was_sent(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers, and nobody else can take it
            async with way_out() as out:
                with pytest.raises(ToolUnreachable) as caught:
                    async with out.client.send("GET", f"http://127.0.0.1:{taken.getsockname()[1]}/"):
                        pass
        assert (caught.value.kind, caught.value.retryable, caught.value.details["sent"]) == ("network", True, "no")

    async def test_a_server_that_does_not_take_connections_is_given_up(self) -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            waiting = [socket.socket() for _ in range(4)]
            try:
                for one in waiting:  # fill the queue of the system, so that the next one gets no answer at all
                    one.setblocking(False)
                    one.connect_ex(("127.0.0.1", port))
                async with way_out(waits=Waits(lease=1.0)) as out:
                    with pytest.raises(ToolTimeout) as caught:
                        async with out.client.send("GET", f"http://127.0.0.1:{port}/"):
                            pass
                assert caught.value.details["sent"] == "no"
            finally:
                for one in waiting:
                    one.close()

    async def test_a_connection_that_breaks_leaves_open_whether_the_server_acted(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        async with serving(answer) as service, way_out() as out:
            with pytest.raises(ToolUnreachable) as caught:
                async with out.client.send("POST", service.url, body=b"x"):
                    pass
        assert caught.value.details["sent"] == "unknown"

    async def test_a_certificate_that_nobody_vouches_for_is_not_accepted(self, tmp_path: Path) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(text="trust me")

        async with serving(answer, tls=self_signed(tmp_path)) as service, way_out() as out:
            with pytest.raises(ToolUnreachable, match="secure connection") as caught:
                async with out.client.send("GET", service.url):
                    pass
            assert service.requests == []
        assert (caught.value.retryable, caught.value.details["sent"]) == (False, "no")

    async def test_what_is_no_http_is_told_as_such(self) -> None:
        async with saying(b"SSH-2.0-nonsense\r\n\r\n") as url, way_out() as out:
            with pytest.raises(ToolError, match="does not speak HTTP") as caught:
                async with out.client.send("GET", url):
                    pass
        assert not caught.value.retryable

    async def test_an_encoding_that_nobody_asked_for_is_refused(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            assert request.headers["Accept-Encoding"] == "identity"
            return web.Response(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})

        async with serving(answer) as service, way_out() as out:
            with pytest.raises(ToolError, match="gzip"):
                async with out.client.send("GET", service.url):
                    pass

    async def test_a_length_beyond_the_limit_is_not_even_begun(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(body=b"x" * 1000)

        async with serving(answer) as service, way_out() as out, out.client.send("GET", service.url) as got:
            with pytest.raises(ToolAnswerTooLarge, match="more than 999 bytes"):
                await got.read(999)

    async def test_cookies_are_not_kept(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            response = web.Response(text=request.headers.get("Cookie", "none"))
            response.set_cookie("session", "of-somebody")
            return response

        async with serving(answer) as service, way_out() as out:
            for _ in range(2):
                async with out.client.send("GET", service.url) as got:
                    assert await got.read() == b"none"
