"""The egress broker: the only way from one fence to the network.

It listens on one Unix socket, which is all that the fence has, and speaks the two languages of HTTP proxies: requests
with whole addresses, and CONNECT. It alone resolves names, and connects only to addresses that `resolve` has checked.

A connection carries one request. Whatever follows it is never read as another, so no disagreement with the host about
where a request ends can be used. TLS to hosts for which a secret is meant, or methods are ruled on, is opened here with
a certificate of the session's own authority; other TLS is carried as it is, once it asks for the host of its CONNECT.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import msgspec
from msgspec import Struct

from foliot.common.hosts import is_address, shown_host
from foliot.common.threads import on_thread
from foliot.errors import FoliotError
from foliot.sandbox.base import (
    BROKER_SOCKET,
    KIB,
    MIB,
    EndedBy,
    Finished,
    Mount,
    OnOutput,
    Sandbox,
    SandboxGone,
    SandboxPolicy,
    SandboxPolicyRefused,
    SandboxProcess,
    SandboxSession,
)
from foliot.sandbox.egress import forwarder, messages
from foliot.sandbox.egress.credentials import EgressSecret, Leak, Placeholders, Reveal
from foliot.sandbox.egress.messages import Head, Malformed
from foliot.sandbox.egress.rules import EgressRecord, EgressRule, EgressRules, Outcome
from foliot.sandbox.interpreter import own_command, own_mount, system_interpreter

if TYPE_CHECKING:
    from foliot.sandbox.egress.authority import SessionAuthority

log = logging.getLogger(__name__)

# The addresses of a host that may be connected to; raises a `FoliotError` for a host that may not be reached, and a
# retryable one when that is not known: `Guard.addresses` of the outbound room. What the host is not the reason for has
# the detail `refusal`: the reason in the record.
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
Record: TypeAlias = Callable[[EgressRecord], None]

PORT: Final = 3128
_PREFIX: Final = "foliot-egress-"
_INSIDE: Final = "/run/foliot-egress"
_BUNDLE: Final = f"{_INSIDE}/ca.pem"
_FORWARDER: Final = f"{_INSIDE}/forwarder.py"
_PROXY: Final = f"http://127.0.0.1:{PORT}"
_LOCAL: Final = "localhost,127.0.0.1,::1"
_PROXIES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), _PROXY),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), _LOCAL),
}
# The names by which OpenSSL and Python, requests, curl, git, pip and Node find whom to trust.
_AUTHORITIES: Final = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
)
_PIECE: Final = 64 * KIB
_REASONS: Final = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway", 503: "Service Unavailable"}
# Frameworks take the method from these when they are there.
_OTHER_METHOD: Final = frozenset({b"x-http-method-override", b"x-http-method", b"x-method-override"})
# A fatal alert: unrecognized_name.
_WRONG_NAME: Final = b"\x15\x03\x01\x00\x02\x02\x70"


class EgressLimits(Struct, frozen=True):
    """The bounds of one session. `connections` are open at once; `requests` and `bytes`, both ways, are in all.

    A connection on which nothing moves ends after `idle` seconds, any after `seconds`. `head` is the longest head of a
    request, in bytes; `connect` is how long a host has for taking a connection.
    """

    connections: int = 64
    requests: int = 10_000
    bytes: int = 1024 * MIB
    head: int = 32 * KIB
    connect: float = 10.0
    idle: float = 60.0
    seconds: float = 600.0


class _Refused(Exception):
    """The end of an exchange before it is done. `status` is 0 when nobody waits for an answer any more."""

    def __init__(self, reason: str, message: str = "", *, status: int = 403, verdict: Outcome = "denied") -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.verdict: Outcome = verdict


class _Exchange:
    """One connection from inside: both its ends, what is known of it, and its clock."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: EgressLimits) -> None:
        self.reader, self.writer = reader, writer
        self.host, self.port, self.method = "", 0, ""
        self.bytes_in = self.bytes_out = 0
        self.verdict: Outcome = "allowed"
        self.reason = ""
        # Whether an answer of the broker can still be read as one.
        self.answerable = True
        self.is_cut = False
        self.began = time.monotonic()
        self._idle = limits.idle
        self._end = asyncio.get_running_loop().time() + limits.seconds
        self.clock = asyncio.timeout(min(limits.idle, limits.seconds))

    def touch(self) -> None:
        """Begin the idle time anew: something moved."""
        self.clock.reschedule(min(asyncio.get_running_loop().time() + self._idle, self._end))

    def end(self, verdict: Outcome, reason: str) -> None:
        if self.is_cut and verdict == "failed":
            # A client that has its whole answer may be done before the connection is: that was let through.
            verdict, reason = ("allowed" if self.bytes_in else "failed"), "closed"
        self.verdict, self.reason = verdict, reason

    def cut(self) -> None:
        """Let nothing more pass, whatever was read already."""
        self.is_cut = True
        self.writer.transport.abort()

    @property
    def record(self) -> EgressRecord:
        return EgressRecord(
            self.host,
            self.port,
            self.method,
            self.verdict,
            self.reason,
            self.bytes_in,
            self.bytes_out,
            time.monotonic() - self.began,
        )


class Broker:
    """The broker of one sandbox session. It listens while it is entered (`async with`), in one event loop."""

    def __init__(
        self,
        rules: Sequence[EgressRule],
        *,
        resolve: Resolve,
        record: Record,
        within: Sequence[Sequence[EgressRule]] = (),
        secrets: Sequence[EgressSecret] = (),
        reveal: Reveal | None = None,
        limits: EgressLimits | None = None,
        authorities: str | None = None,
        folder: str | None = None,
    ) -> None:
        """`resolve` gives the checked addresses of a host; `record` is given every exchange when it is over.

        Each set of rules in `within` must allow a request as well.
        When `record` fails nothing more is let through. `reveal` gives the value of a secret by its name.
        `authorities` is a file of certificates (PEM) to trust instead of the system's, outside and inside.
        `folder` is where a private folder for the socket is made. Raises `SandboxPolicyRefused`.
        """
        self._rules = EgressRules(rules, within)
        self._placeholders = Placeholders(secrets, reveal)
        if taken := sorted(self._placeholders.environment.keys() & {*_PROXIES, *_AUTHORITIES}):
            raise SandboxPolicyRefused("secrets", f"{taken[0]} is a variable of the broker", hint="choose another one")
        self._resolve = resolve
        self._record = record
        self._limits = limits or EgressLimits()
        for name in EgressLimits.__struct_fields__:
            if not 0 < getattr(self._limits, name) < float("inf"):
                raise SandboxPolicyRefused(f"limits.{name}", "must be more than 0, and bounded")
        self._authorities = authorities
        self._folder = folder
        self._private: Path | None = None
        self._lock: int | None = None
        self._server: asyncio.Server | None = None
        self._authority: SessionAuthority | None = None
        self._outward: ssl.SSLContext | None = None
        self._tasks: dict[asyncio.Task[None], _Exchange] = {}
        self._interpreter = system_interpreter()
        self._requests = 0
        self._bytes = 0
        self._blind = False

    # --- its life -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        private = self._private = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._folder))
        try:
            await on_thread(self._prepare, private)
            self._server = await asyncio.start_unix_server(self._accept, private / "broker.sock", limit=_PIECE)
            os.chmod(private / "broker.sock", 0o600)
        except BaseException as error:
            self._remove(private)
            if isinstance(error, OSError):
                raise SandboxPolicyRefused(
                    "folder",
                    f"the broker cannot listen in {private}: {error.strerror or error}",
                    hint="the whole path of a socket is at most 107 bytes long",
                ) from None
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections and stop listening. Doing so twice is harmless."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self.disconnect()
        private, self._private = self._private, None
        if private is not None:
            self._remove(private)

    async def disconnect(self) -> None:
        """End all connections that there are. Not a byte passes from now on; on return each of them is recorded."""
        tasks = dict(self._tasks)
        for task, exchange in tasks.items():
            exchange.cut()
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _remove(self, private: Path) -> None:
        shutil.rmtree(private, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _prepare(self, private: Path) -> None:
        """Put the files there that the fence shows."""
        self._lock = os.open(private / "new", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(private / "new", private / "lock")  # nobody finds it without its lock
        sweep(private.parent)
        (private / "forwarder.py").write_bytes(Path(forwarder.__file__).read_bytes())
        if not self._opens_tls:
            return
        from foliot.sandbox.egress.authority import SessionAuthority, trusted  # cryptography takes time to load

        self._authority = SessionAuthority()
        system = trusted(self._authorities)
        (private / "ca.pem").write_bytes(system.encode() + b"\n" + self._authority.certificate)
        self._outward = ssl.create_default_context(cadata=system if system.strip() else None)
        self._outward.set_alpn_protocols(["http/1.1"])

    @property
    def _opens_tls(self) -> bool:
        return bool(self._placeholders) or self._rules.any_by_method

    # --- its side of the fence ----------------------------------------------------------------------------------------

    @property
    def socket_path(self) -> str:
        """The socket outside: `SandboxPolicy.broker_socket`."""
        return str(self._place / "broker.sock")

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that make programs use the broker and trust it, and the placeholders of secrets."""
        trust = dict.fromkeys(_AUTHORITIES, _BUNDLE) if self._opens_tls else {}
        return {**_PROXIES, **trust, **self._placeholders.environment}

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """The files that the fence must show for that: the forwarder, and the certificates to trust."""
        found = [Mount(str(self._place / "forwarder.py"), _FORWARDER, part=True)]
        if self._opens_tls:
            found.append(Mount(str(self._place / "ca.pem"), _BUNDLE, part=True))
        if self._interpreter is None:
            found.append(own_mount())
        return tuple(found)

    def command(self, argv: Sequence[str]) -> list[str]:
        """A command that has the forwarder beside it: it listens before the command begins, and ends with it."""
        python = [self._interpreter] if self._interpreter is not None else own_command()
        return [*python, "-I", "-S", _FORWARDER, BROKER_SOCKET, str(PORT), *argv]

    def policy(self, policy: SandboxPolicy) -> SandboxPolicy:
        """A policy with the broker in it. Raises `SandboxPolicyRefused` when it sets one of the same variables."""
        if policy.image:  # neither the system's nor that of the worker is sure to run there
            self._interpreter = "python3"
        own = self.environment
        if both := sorted(own.keys() & policy.environment.keys()):
            raise SandboxPolicyRefused("environment", f"the broker sets {', '.join(both)}", hint="leave them out")
        return msgspec.structs.replace(
            policy,
            network="broker",
            broker_socket=self.socket_path,
            mounts=(*policy.mounts, *self.mounts),
            environment={**policy.environment, **own},
        )

    async def open(self, sandbox: Sandbox, policy: SandboxPolicy) -> BrokeredSession:
        """Open a session whose programs reach the network through this broker, which ends with it."""
        return BrokeredSession(self, await sandbox.open(self.policy(policy)))

    @property
    def _place(self) -> Path:
        if self._private is None:
            raise SandboxGone("the broker is not listening", hint="enter it with `async with`")
        return self._private

    # --- connections --------------------------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        exchange = _Exchange(reader, writer, self._limits)
        task = asyncio.get_running_loop().create_task(self._serve(exchange))
        self._tasks[task] = exchange
        task.add_done_callback(self._tasks.pop)

    async def _serve(self, exchange: _Exchange) -> None:
        writer, heard = exchange.writer, True
        try:
            async with exchange.clock:
                try:
                    heard = await self._exchange(exchange)
                except Malformed as error:
                    raise _Refused("malformed", f"the request is refused: {error}", status=400) from None
                except Leak as error:
                    raise _Refused(error.reason, str(error)) from None
        except _Refused as refused:
            exchange.end(refused.verdict, refused.reason)
            self._note(exchange)  # before the answer: the record is there when the program goes on
            heard = False
            await self._answer(exchange, refused)
        except TimeoutError:
            exchange.end("failed", "timeout")
        except (OSError, asyncio.IncompleteReadError):
            exchange.end("failed", "connection_lost")
        except asyncio.CancelledError:
            exchange.end("failed", "closed")
            writer.transport.abort()
        except Exception:
            log.exception("the egress broker failed on a request to %s", exchange.host or "an unknown host")
            exchange.end("failed", "internal")
            await self._answer(exchange, _Refused("internal", "the broker failed", status=502))
        finally:
            if heard:
                self._note(exchange)
            writer.close()
        try:
            async with asyncio.timeout(self._limits.idle):
                await writer.wait_closed()  # until what was answered is read
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()

    def _note(self, exchange: _Exchange) -> None:
        # One record says that there are too many, and the rest are not kept: records are not a place to fill.
        if exchange.reason == "requests" and self._requests > self._limits.requests + 1:
            return
        try:
            self._record(exchange.record)
        except Exception:
            self._blind = True
            log.exception("an exchange of the egress broker could not be recorded; nothing more is let through")

    async def _answer(self, exchange: _Exchange, refused: _Refused) -> None:
        if not refused.status or not exchange.answerable:
            return
        place = f"{shown_host(exchange.host)}:{exchange.port}: " if exchange.host else ""
        text = f"foliot egress broker: {place}{refused} ({refused.reason})\n".encode()
        head = (
            f"HTTP/1.1 {refused.status} {_REASONS[refused.status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(text)}\r\nConnection: close\r\nX-Foliot-Egress: {refused.reason}\r\n\r\n"
        )
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._limits.connect):
                exchange.writer.write(head.encode() + text)
                await exchange.writer.drain()

    async def _exchange(self, exchange: _Exchange) -> bool:
        """Serve one connection; False when nothing was asked on it."""
        # Before anything is read: connections that say nothing, or nonsense, count as well.
        self._requests += 1
        if self._blind:
            raise _Refused("unrecorded", "requests cannot be recorded, so none is let through", status=503)
        if self._requests > self._limits.requests:
            raise _Refused("requests", f"there were {self._limits.requests} requests, which is all", status=503)
        if len(self._tasks) > self._limits.connections:
            raise _Refused("connections", f"{self._limits.connections} connections are open", status=503)
        head = await self._read_head(exchange)
        if head is None:
            return False
        exchange.method = head.method
        if head.method == "CONNECT":
            exchange.host, exchange.port = messages.read_authority(head.target, None)
            await self._connect(exchange, head)
        else:
            exchange.host, exchange.port, path = messages.read_absolute(head.target)
            await self._request(exchange, head, path, None)
        return True

    async def _read_head(self, exchange: _Exchange) -> Head | None:
        data = b""
        while not data.endswith(b"\r\n\r\n"):
            try:
                line = await exchange.reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as error:
                if not data and not error.partial:
                    return None
                raise Malformed("it ends within its head") from None
            except asyncio.LimitOverrunError:
                raise Malformed("its head is too long") from None
            exchange.touch()
            data += line
            if len(data) > self._limits.head:
                raise Malformed("its head is too long")
            if not line.endswith(b"\r\n") or data == b"\r\n":
                raise Malformed("a line ends without a carriage return, or is empty")
        return messages.read_head(data)

    def _check_rules(self, exchange: _Exchange, method: str | None) -> None:
        refusal = self._rules.refusal(exchange.host, exchange.port, method)
        if refusal:
            words = {
                "host": "no rule allows this host",
                "port": "no rule allows this port of the host",
                "method": f"no rule allows {exchange.method} here",
                "rule": "a rule denies this",
                "policy": "a policy does not allow this",
            }
            raise _Refused(refusal, words[refusal])

    async def _addresses(self, exchange: _Exchange) -> Sequence[str]:
        try:
            return await self._resolve(exchange.host, exchange.port)
        except FoliotError as error:
            if error.retryable:
                raise _Refused("unresolved", error.message, status=502, verdict="failed") from None
            why, refusal = error.details.get("why"), error.details.get("refusal")
            reason = f"address_{why}" if isinstance(why, str) else "address"
            raise _Refused(refusal if isinstance(refusal, str) else reason, error.message) from None
        except OSError:
            raise _Refused("unresolved", "the name cannot be resolved", status=502, verdict="failed") from None

    async def _reach(
        self, exchange: _Exchange, addresses: Sequence[str], context: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the first of the checked addresses that answers, and to nothing else."""
        name = exchange.host if context is not None else None
        reason = "unreachable"
        for address in addresses:
            try:
                async with asyncio.timeout(self._limits.connect):
                    return await asyncio.open_connection(
                        address, exchange.port, ssl=context, server_hostname=name, limit=_PIECE
                    )
            except ssl.SSLCertVerificationError:
                reason = "certificate"
            except ssl.SSLError:
                reason = "tls"
            except (OSError, TimeoutError):
                continue
        words = {"unreachable": "the host does not answer", "certificate": "its certificate is not trusted"}
        raise _Refused(reason, words.get(reason, "TLS with the host failed"), status=502, verdict="failed")

    def _count(self, exchange: _Exchange, *, came: int = 0, went: int = 0) -> None:
        if exchange.is_cut:
            raise _Refused("closed", status=0, verdict="failed")
        exchange.touch()
        exchange.bytes_in += came
        exchange.bytes_out += went
        self._bytes += came + went
        if self._bytes > self._limits.bytes:
            raise _Refused("bytes", f"more than {self._limits.bytes} bytes were moved, which is all", status=503)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _request(self, exchange: _Exchange, head: Head, path: str, addresses: Sequence[str] | None) -> None:
        """Pass one request on. `addresses` are there when TLS was opened for it."""
        host, port, tls = exchange.host, exchange.port, addresses is not None
        if head.host is None and head.version == b"HTTP/1.1":
            raise Malformed("it names no host")
        if head.host is not None and messages.read_authority(head.host, 443 if tls else 80) != (host, port):
            raise _Refused("host_mismatch", "the header Host names another host", status=400)
        headers = head.forwarded
        self._placeholders.check_target(head.target)
        self._placeholders.check(headers, host, port, tls=tls)
        self._check_rules(exchange, head.method)
        if self._rules.by_method(host, port) and any(messages.header_name(key) in _OTHER_METHOD for key, _ in headers):
            raise _Refused("method", "a header asks for another method than that of the request")
        if addresses is None:
            addresses = await self._addresses(exchange)
        reader, writer = await self._reach(exchange, addresses, self._outward if tls else None)
        try:
            try:
                headers = await self._placeholders.swap(headers, host, port, tls=tls)
            except FoliotError as error:
                # Never its text: it is about the store of secrets, which is not for those inside.
                log.warning("the egress broker could not get a secret for %s: %s", host, error.message)
                raise _Refused(
                    "secret_unavailable", "a secret cannot be had now", status=502, verdict="failed"
                ) from None
            shown = shown_host(host) if port == (443 if tls else 80) else f"{shown_host(host)}:{port}"
            lines = [f"{head.method} {path} ".encode() + head.version, b"Host: " + shown.encode()]
            lines += [key + b": " + value for key, value in headers]
            lines += [b"Connection: close", *([b"Transfer-Encoding: chunked"] if head.length is None else []), b"", b""]
            whole = b"\r\n".join(lines)
            self._count(exchange, went=len(whole))
            writer.write(whole)
            exchange.touch()
            await self._both(
                self._send_body(exchange, head, writer), self._pass_on(exchange, reader, exchange.writer, inward=True)
            )
        finally:
            await _shut(writer)

    async def _send_body(self, exchange: _Exchange, head: Head, writer: asyncio.StreamWriter) -> None:
        left = head.length
        chunks = messages.Chunks() if left is None else None
        while left or (chunks is not None and not chunks.done):
            data = await exchange.reader.read(_PIECE if left is None else min(left, _PIECE))
            if not data:
                raise _Refused("connection_lost", status=0, verdict="failed")
            if chunks is not None:
                data = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in chunks.feed(data))
                data += b"0\r\n\r\n" if chunks.done else b""
            elif left is not None:
                left -= len(data)
            self._count(exchange, went=len(data))
            writer.write(data)
            await writer.drain()
        await writer.drain()

    async def _pass_on(
        self, exchange: _Exchange, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, inward: bool
    ) -> None:
        """Carry bytes one way until their end."""
        while data := await reader.read(_PIECE):
            if inward:
                exchange.answerable = False
                self._count(exchange, came=len(data))
            else:
                self._count(exchange, went=len(data))
            writer.write(data)
            await writer.drain()
            exchange.touch()

    async def _both(self, out: Awaitable[None], back: Awaitable[None]) -> None:
        """Run both ways until the answer has ended, or one of them fails."""
        sending, answering = asyncio.ensure_future(out), asyncio.ensure_future(back)
        try:
            await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not isinstance(sending.exception(), OSError):
                sending.result()  # a host that has answered may close before it has read all
            await answering
        finally:
            await _stop(sending, answering)

    # --- tunnels ------------------------------------------------------------------------------------------------------

    async def _connect(self, exchange: _Exchange, head: Head) -> None:
        if head.length != 0:
            raise Malformed("CONNECT has no body")
        if head.host is not None and messages.read_authority(head.host, exchange.port)[0] != exchange.host:
            raise _Refused("host_mismatch", "the header Host names another host", status=400)
        self._placeholders.check(head.forwarded, exchange.host, exchange.port, tls=False)
        self._check_rules(exchange, None)
        addresses = await self._addresses(exchange)
        opened = self._rules.by_method(exchange.host, exchange.port)
        if opened or self._placeholders.meant_for(exchange.host, exchange.port):
            await self._opened(exchange, addresses)
        else:
            await self._tunnel(exchange, addresses)

    async def _opened(self, exchange: _Exchange, addresses: Sequence[str]) -> None:
        """Open TLS with a certificate of the session, and pass on the request in it."""
        assert self._authority is not None
        context = self._authority.context(exchange.host)
        self._establish(exchange)
        try:
            await exchange.writer.start_tls(context, ssl_handshake_timeout=self._limits.connect)
        except (OSError, TimeoutError) as error:
            # Another name than that of the CONNECT, or a program that does not trust the authority of its session.
            raise _Refused("tls_refused", str(error), status=0) from None
        exchange.answerable = True
        head = await self._read_head(exchange)
        if head is None:
            raise _Refused("nothing_asked", status=0, verdict="failed")
        exchange.method = head.method
        await self._request(exchange, head, messages.read_path(head.target), addresses)

    async def _tunnel(self, exchange: _Exchange, addresses: Sequence[str]) -> None:
        """Carry TLS as it is, once it has asked for the host of the CONNECT."""
        reader, writer = await self._reach(exchange, addresses, None)
        try:
            self._establish(exchange)
            data = b""
            while (hello := self._hello(exchange, data)) is None:
                piece = await exchange.reader.read(_PIECE)
                if not piece:
                    raise _Refused("nothing_asked", status=0, verdict="failed")
                exchange.touch()
                data += piece
            asked = hello.name
            if hello.hidden or asked != (None if is_address(exchange.host) and asked is None else exchange.host):
                exchange.writer.write(_WRONG_NAME)
                raise _Refused("sni_hidden" if hello.hidden else "sni", status=0)
            self._count(exchange, went=len(data))
            writer.write(data)
            ways = [asyncio.ensure_future(way) for way in self._ways(exchange, reader, writer)]
            try:
                await asyncio.gather(*ways)
                writer.close()
                await writer.wait_closed()  # until the host has what was sent last
            finally:
                await _stop(*ways)
        finally:
            await _shut(writer)

    def _hello(self, exchange: _Exchange, data: bytes) -> messages.Hello | None:
        try:
            return messages.read_hello(data)
        except Malformed:
            raise _Refused("not_tls", status=0) from None

    def _ways(
        self, exchange: _Exchange, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> list[Awaitable[None]]:
        async def way(source: asyncio.StreamReader, target: asyncio.StreamWriter, inward: bool) -> None:
            await self._pass_on(exchange, source, target, inward=inward)
            if target.can_write_eof():
                target.write_eof()

        return [way(exchange.reader, writer, False), way(reader, exchange.writer, True)]

    def _establish(self, exchange: _Exchange) -> None:
        # What was sent before the answer would be read outside of TLS by one and inside by another.
        if exchange.reader._buffer:  # pyright: ignore
            raise Malformed("there is data before the tunnel is open")
        exchange.answerable = False
        exchange.writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")


def sweep(folder: Path) -> int:
    """Remove the private folders of brokers whose owners were killed. How many there were.

    A broker holds a lock in its own while it lives, which the kernel releases when its process ends.
    """
    count = 0
    for private in folder.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(private / "lock", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # it is being made, is gone, or belongs to another user
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_uid == os.geteuid():
                shutil.rmtree(private, ignore_errors=True)
                count += 1
        except OSError:
            continue
        finally:
            os.close(lock)
    return count


async def _stop(*tasks: asyncio.Future[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _shut(writer: asyncio.StreamWriter) -> None:
    """Close a connection at once: all that was to be read of it has been."""
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class BrokeredSession:
    """A session whose programs have the forwarder beside them. Killing or closing it closes its broker too."""

    def __init__(self, broker: Broker, session: SandboxSession) -> None:
        self._broker = broker
        self._session = session

    @property
    def policy(self) -> SandboxPolicy:
        return self._session.policy

    @property
    def alive(self) -> bool:
        return self._session.alive

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        cwd: str | None = None,
        seconds: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Finished:
        """Run a program to its end; see `SandboxSession.exec`. One that does not exist ends with 127, as in a shell."""
        return await self._session.exec(
            self._broker.command(argv) if argv else argv,
            stdin=stdin,
            environment=environment,
            cwd=cwd,
            seconds=seconds,
            on_output=on_output,
        )

    async def start(
        self,
        argv: Sequence[str],
        *,
        pty: bool = False,
        environment: Mapping[str, str] | None = None,
        cwd: str | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> SandboxProcess:
        """Start a program and return at once; see `SandboxSession.start`."""
        return await self._session.start(
            self._broker.command(argv) if argv else argv,
            pty=pty,
            environment=environment,
            cwd=cwd,
            rows=rows,
            columns=columns,
        )

    async def read(self, path: str, limit: int = 16 * MIB) -> bytes:
        return await self._session.read(path, limit)

    async def write(self, path: str, data: bytes) -> None:
        await self._session.write(path, data)

    async def disconnect(self) -> None:
        """End all its connections; see `Broker.disconnect`."""
        await self._broker.disconnect()

    def unlinked(self, device: int) -> int:
        return self._session.unlinked(device)

    async def kill(self, by: EndedBy = "killed") -> None:
        """End everything in it now, and the broker with all its connections."""
        try:
            await self._session.kill(by)
        finally:
            await self._broker.close()

    async def close(self) -> None:
        """Kill it and remove what it held."""
        try:
            await self._session.close()
        finally:
            await self._broker.close()
