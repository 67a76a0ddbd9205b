"""Before others can reach a server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from foliot.cli.commands.server import check_reach
from foliot.errors import UsageError
from foliot.server.http.serve import Listen

ELSEWHERE = Listen("192.0.2.1", 8080)
WITH_TLS = Listen("192.0.2.1", 8080, Path("cert.pem"), Path("key.pem"))


def test_where_others_can_reach_it_somebody_must_be_known() -> None:
    with pytest.raises(UsageError, match=r"192\.0\.2\.1 can be reached from elsewhere") as refused:
        check_reach(ELSEWHERE, local=False, known=False, insecure=False)
    assert refused.value.hint is not None
    assert "tokens create --admin" in refused.value.hint
    with pytest.raises(UsageError):
        check_reach(WITH_TLS, local=False, known=False, insecure=False)


@pytest.mark.parametrize(
    ("listen", "local", "insecure", "warned"),
    [
        (ELSEWHERE, False, False, True),
        (ELSEWHERE, False, True, False),
        (WITH_TLS, False, False, False),
        (Listen("127.0.0.1", 0), True, False, False),
    ],
)
def test_tokens_that_are_sent_in_clear_are_warned_of(
    listen: Listen, local: bool, insecure: bool, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    check_reach(listen, local=local, known=True, insecure=insecure)

    assert ("sent in clear" in capsys.readouterr().err) is warned


def test_without_a_token_one_may_listen_only_when_it_is_said_to_be_insecure() -> None:
    check_reach(ELSEWHERE, local=False, known=False, insecure=True)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_the_system_is_asked_for_as_many_open_files_as_there_may_be_connections() -> None:
    program = """\
import resource
from foliot.cli.commands.server import allow_open_files
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 1000))
allow_open_files(400)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
allow_open_files(100)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
allow_open_files(5000)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=110)

    assert done.stdout.split() == ["656", "656", "1000"]
    assert "allows 1000 open files" in done.stderr
