"""curl, git, pip and Python work through the broker as they are; inside is neither the secret nor another way out."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot.sandbox.base import Finished, Limits, SandboxGone, SandboxPolicy, SandboxPolicyRefused
from foliot.sandbox.egress.broker import Broker
from foliot.sandbox.egress.credentials import EgressSecret
from foliot.sandbox.egress.rules import EgressRule
from foliot.sandbox.process import ProcessSandbox
from tests.sandbox.egress.world import World, open_world, page

SECRET = "token"
PYTHON = "/usr/bin/python3"
needs_python = pytest.mark.skipif(not os.path.exists(PYTHON), reason="the fence shows no Python")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as made:
        yield made


@pytest.fixture
async def sandbox() -> AsyncIterator[ProcessSandbox]:
    made = ProcessSandbox()
    if not (await made.enforces()).available:
        pytest.skip("nothing can be fenced on this machine")
    yield made
    await made.close()


def inside(tmp_path: Path, **more: object) -> SandboxPolicy:
    folder = tmp_path / "workspace"
    folder.mkdir(exist_ok=True)
    return SandboxPolicy(workspace=str(folder), limits=Limits(seconds=120), **more)  # type: ignore[arg-type]


def text(done: Finished) -> str:
    return (done.stdout + done.stderr).decode(errors="replace")


def has(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if not os.path.exists(f"/usr/bin/{program}")]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@has("curl")
async def test_curl_reaches_what_is_allowed_with_a_secret_that_it_does_not_have(
    world: World, sandbox: ProcessSandbox, tmp_path: Path
) -> None:
    tls, plain = await world.serve(tls="a.test"), await world.serve()
    rules = EgressRule(("a.test",), (tls,), ("GET", "POST")), EgressRule(("b.test",), (plain,))
    secret = EgressSecret(SECRET, ("a.test",), (tls,), variable="API_TOKEN")
    async with world.broker(*rules, secrets=[secret]) as broker:
        session = await broker.open(sandbox, inside(tmp_path))
        script = f"""
        curl -sS -H "Authorization: Bearer $API_TOKEN" https://a.test:{tls}/x && echo
        curl -sS -u "me:$API_TOKEN" -d 'some=body' https://a.test:{tls}/ && echo
        head -c 300000 /dev/zero > body
        curl -sS -H 'Transfer-Encoding: chunked' --data-binary @body http://b.test:{plain}/ && echo
        curl -sS -o /dev/null -w '%{{http_code}}\\n' -H "X: $API_TOKEN" http://b.test:{plain}/
        curl -sS -o /dev/null -w '%{{http_code}}\\n' -X DELETE https://a.test:{tls}/
        curl -sS -o /dev/null -w '%{{http_code}}\\n' http://c.test:{plain}/
        curl -sS -o /dev/null -w '%{{http_code}}\\n' http://169.254.169.254/
        curl -sS https://c.test/ 2>&1 | grep -o 'response 403'
        curl -sS --noproxy '*' --max-time 5 http://127.0.0.1:{plain}/ 2>&1 | grep -o "connect to 127.0.0.1"
        yes | head -1 > /dev/null; echo "${{PIPESTATUS[*]}}"
        """
        done = await session.exec(["bash", "-c", script])
        gone = await session.exec(["no-such-program"])
        await session.close()
    lines = text(done).split("\n")
    assert lines[:3] == ["hello", "hello", "hello"], text(done)
    assert lines[3:10] == ["403", "403", "403", "403", "response 403", "connect to 127.0.0.1", "141 0"], text(done)
    assert (gone.exit_code, b"not found" in gone.stderr) == (127, True)
    value = world.values[SECRET]
    assert f"Authorization: Bearer {value}".encode() in world.heard[0]
    assert len(world.heard) == 3
    assert value not in text(done)
    assert [record.reason for record in world.records] == (
        ["", "", "", "placeholder_elsewhere", "method", "host", "host", "host"]
    )


@needs_python
async def test_python_reaches_what_is_allowed_and_nothing_by_another_way(
    world: World, sandbox: ProcessSandbox, tmp_path: Path
) -> None:
    port = await world.serve(tls="a.test")
    secret = EgressSecret(SECRET, ("a.test",), (port,))
    program = f"""
import os, socket, urllib.request, urllib.error
def ask(url, **headers):
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30).read().decode()
    except urllib.error.URLError as error:
        return str(error)
def tried(act, *given):
    try:
        return act(*given)
    except OSError as error:
        return type(error).__name__
print(ask("https://a.test:{port}/", Authorization="Bearer " + os.environ["FOLIOT_SECRET_TOKEN"]))
print(ask("http://metadata.test/"))
print(tried(socket.getaddrinfo, "a.test", 443))
names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(tried(names.sendto, b"x", ("8.8.8.8", 53)), tried(socket.create_connection, ("1.1.1.1", 53), 5))
"""
    rules = EgressRule(("a.test",), (port,)), EgressRule(("metadata.test",), (80,))
    async with world.broker(*rules, secrets=[secret]) as broker:
        session = await broker.open(sandbox, inside(tmp_path))
        done = await session.exec([PYTHON, "-c", program])
        await session.close()
    assert text(done).splitlines() == ["hello", "HTTP Error 403: Forbidden", "gaierror", "OSError OSError"]
    assert world.verdicts == [("GET", "allowed", ""), ("GET", "denied", "address_metadata")]
    assert world.asked == ["a.test", "metadata.test"]


# Everything that code inside can read: its own variables, those of every process, all files and all memory maps.
SEARCH = """
import os
found = []
def look(path):
    try:
        with open(path, "rb") as file:
            while data := file.read(1 << 20):
                if CANARY in data:
                    found.append(path)
                    return
    except OSError:
        pass
for number in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "mountinfo", "net/unix", "status"):
        look(f"/proc/{number}/{name}")
for top in ("/run", "/tmp", "/workspace", "/etc", "/dev/shm", "/opt"):
    for folder, _, names in os.walk(top):
        for name in names:
            if os.path.isfile(os.path.join(folder, name)):
                look(os.path.join(folder, name))
print(found, any(CANARY in os.fsencode(value) for value in os.environ.values()))
print(sorted(os.listdir("/run/foliot-egress")), b"PRIVATE" in open("/run/foliot-egress/ca.pem", "rb").read())
try:
    open("/run/foliot-egress/ca.pem", "a")
except OSError as error:
    print(error.strerror)
"""


@needs_python
async def test_the_secret_is_nowhere_inside(world: World, sandbox: ProcessSandbox, tmp_path: Path) -> None:
    port = await world.serve(tls="a.test")
    value = world.values[SECRET]
    secret = EgressSecret(SECRET, ("a.test",), (port,))
    before = f"""
import os, urllib.request
url = "https://a.test:{port}/"
headers = {{"Authorization": "Bearer " + os.environ["FOLIOT_SECRET_TOKEN"]}}
print(urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30).read().decode())
CANARY = bytes.fromhex("{value.encode()[::-1].hex()}")[::-1]
"""
    async with world.broker(EgressRule(("a.test",), (port,)), secrets=[secret]) as broker:
        session = await broker.open(sandbox, inside(tmp_path))
        done = await session.exec([PYTHON, "-c", before + SEARCH])
        # The search finds what is there to be found.
        planted = await session.exec([PYTHON, "-c", before + SEARCH], environment={"PLANTED": value})
        await session.close()
    assert text(done).splitlines() == [
        "hello",
        "[] False",
        "['ca.pem', 'forwarder.py'] False",
        "Read-only file system",
    ], text(done)
    assert "environ'] True" in text(planted)
    assert value.encode() in world.heard[0]


def repository(folder: Path) -> None:
    """A repository that a plain web server can hand out."""
    origin = folder / "origin"
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    who = ["-c", "user.name=a", "-c", "user.email=a@a.test", "-c", "init.defaultBranch=main"]
    for words in (
        ["init", "-q", str(origin)],
        ["-C", str(origin), "add", "."],
        ["-C", str(origin), "commit", "-qm", "1"],
    ):
        subprocess.run(["git", *who, *words], check=True, env=env)
        if words[0] == "init":
            (origin / "hello.txt").write_text("from the repository\n")
    subprocess.run(["git", "clone", "-q", "--bare", str(origin), str(folder / "site/repo.git")], check=True, env=env)
    subprocess.run(["git", "-C", str(folder / "site/repo.git"), "update-server-info"], check=True, env=env)


@has("git")
async def test_git_clones_with_a_password_that_is_a_placeholder(
    world: World, sandbox: ProcessSandbox, tmp_path: Path
) -> None:
    await asyncio.to_thread(repository, tmp_path)
    site = tmp_path / "site"

    def answer(head: bytes, _: bytes) -> bytes:
        if b"\r\nauthorization: basic " not in head.lower():
            return b'HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm="x"\r\nContent-Length: 0\r\n\r\n'
        path = site / head.split(b" ")[1].split(b"?")[0].decode().lstrip("/")
        return page(path.read_bytes()) if path.is_file() else b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"

    port = await world.serve(answer, tls="git.test")
    secret = EgressSecret(SECRET, ("git.test",), (port,), variable="GIT_TOKEN")
    async with world.broker(EgressRule(("git.test",), (port,), ("GET",)), secrets=[secret]) as broker:
        session = await broker.open(sandbox, inside(tmp_path))
        script = f'git clone -q "https://me:$GIT_TOKEN@git.test:{port}/repo.git" && cat repo/hello.txt'
        done = await session.exec(["sh", "-c", script])
        await session.close()
    assert text(done) == "from the repository\n"
    assert {(record.method, record.verdict) for record in world.records} == {("GET", "allowed")}
    assert len(world.records) >= 4


BACKEND = "/usr/lib/git-core/git-http-backend"


@has("git")
@pytest.mark.skipif(not os.path.exists(BACKEND), reason="git has no server for HTTP here")
async def test_git_pushes_to_a_smart_server(world: World, sandbox: ProcessSandbox, tmp_path: Path) -> None:
    await asyncio.to_thread(repository, tmp_path)
    bare = tmp_path / "site/repo.git"
    subprocess.run(["git", "-C", str(bare), "config", "http.receivepack", "true"], check=True)

    def answer(head: bytes, body: bytes) -> bytes:
        """The server of git, as a web server runs it."""
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        sent = dict(line.decode().lower().split(": ", 1) for line in head.split(b"\r\n")[1:] if line)
        path, _, query = target.partition("?")
        variables = {
            "GIT_PROJECT_ROOT": str(tmp_path / "site"),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": "me",
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": sent.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": sent.get("content-encoding", ""),
            "GIT_PROTOCOL": sent.get("git-protocol", ""),
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "PATH": os.environ["PATH"],
        }
        done = subprocess.run([BACKEND], input=body, env=variables, capture_output=True, check=True)
        headers, _, content = done.stdout.partition(b"\r\n\r\n")
        return page(content, *headers.split(b"\r\n"))

    port = await world.serve(answer, tls="git.test")
    rule = EgressRule(("git.test",), (port,), ("GET", "POST"))
    secret = EgressSecret(SECRET, ("git.test",), (port,), variable="GIT_TOKEN")
    async with world.broker(rule, secrets=[secret]) as broker:
        session = await broker.open(sandbox, inside(tmp_path))
        script = f"""
        set -e
        git config --global http.extraHeader "Authorization: Bearer $GIT_TOKEN"
        git clone -q "https://git.test:{port}/repo.git" work
        cd work
        echo more > more.txt
        git add more.txt
        git -c user.name=a -c user.email=a@a.test commit -qm more
        git push -q origin HEAD
        """
        done = await session.exec(["sh", "-c", script])
        await session.close()
    assert (done.exit_code, text(done)) == (0, "")
    log = subprocess.run(["git", "-C", str(bare), "log", "-1", "--format=%s"], capture_output=True, check=True)
    assert log.stdout == b"more\n"
    assert {record.method for record in world.records if record.verdict == "allowed"} == {"GET", "POST"}
    assert all(f"Bearer {world.values[SECRET]}".encode() in head for head in world.heard)


def has_pip() -> bool:
    return subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True).returncode == 0


def wheel(folder: Path) -> Path:
    path = folder / "tiny_egress_probe-1.0-py3-none-any.whl"
    info = "tiny_egress_probe-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("tiny_egress_probe.py", "ANSWER = 42\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-egress-probe\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return path


@needs_python
async def test_pip_installs_from_an_index_that_asks_for_a_token(
    world: World, sandbox: ProcessSandbox, tmp_path: Path
) -> None:
    if not await asyncio.to_thread(has_pip):
        pytest.skip("the system's Python has no pip")
    made = wheel(tmp_path)
    data = made.read_bytes()
    link = f'<a href="/files/{made.name}#sha256={hashlib.sha256(data).hexdigest()}">{made.name}</a>'

    def answer(head: bytes, _: bytes) -> bytes:
        if head.startswith(b"GET /files/"):
            return page(data)
        return page(f"<!DOCTYPE html><html><body>{link}</body></html>".encode(), b"Content-Type: text/html")

    port = await world.serve(answer, tls="index.test")
    secret = EgressSecret(SECRET, ("index.test",), (port,), variable="INDEX_TOKEN")
    async with world.broker(EgressRule(("index.test",), (port,)), secrets=[secret]) as broker:
        session = await broker.open(sandbox, inside(tmp_path))
        script = (
            f"{PYTHON} -m pip install -q --disable-pip-version-check --no-cache-dir --target lib "
            f'--index-url "https://me:$INDEX_TOKEN@index.test:{port}/simple/" tiny-egress-probe && '
            f'PYTHONPATH=lib {PYTHON} -c "import tiny_egress_probe; print(tiny_egress_probe.ANSWER)"'
        )
        done = await session.exec(["sh", "-c", script])
        await session.close()
    assert text(done).strip().endswith("42"), text(done)
    assert world.revealed
    assert all(b"FOLIOT_SECRET" not in head for head in world.heard)


@needs_python
async def test_killing_the_session_closes_the_broker(world: World, sandbox: ProcessSandbox, tmp_path: Path) -> None:
    arrived = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    broker: Broker
    async with world.broker(EgressRule(("a.test",), (port,))) as broker:
        path = Path(broker.socket_path)
        session = await broker.open(sandbox, inside(tmp_path))
        program = f"import urllib.request; urllib.request.urlopen('http://a.test:{port}/')"
        running = await session.start([PYTHON, "-c", program])
        await asyncio.wait_for(arrived.wait(), 60)
        await session.kill()
        assert (await running.wait()).ended_by == "killed"
        assert not path.parent.exists()
        assert world.records[-1].verdict == "failed"
        with pytest.raises(SandboxGone):
            await session.exec(["true"])
        with pytest.raises(SandboxGone):
            await broker.open(sandbox, inside(tmp_path))
    server.close()


async def test_a_fence_without_a_python_is_shown_the_one_of_its_owner(
    world: World, sandbox: ProcessSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foliot.sandbox.interpreter.SYSTEM", ())
    async with world.broker() as broker:
        assert "/opt/foliot-python/bin/python3" in broker.command(["true"])
        session = await broker.open(sandbox, inside(tmp_path))
        done = await session.exec(["sh", "-c", "echo $http_proxy $LD_LIBRARY_PATH"])
        await session.close()
    assert text(done) == "http://127.0.0.1:3128\n"


async def test_a_policy_that_sets_the_variables_of_the_broker_is_refused(world: World, tmp_path: Path) -> None:
    async with world.broker() as broker:
        with pytest.raises(SandboxPolicyRefused, match="the broker sets https_proxy"):
            broker.policy(inside(tmp_path, environment={"https_proxy": "http://elsewhere"}))
