"""Policies that make no sense, or demand what is not enforced: refused by the name of the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from foliot.sandbox import bubblewrap
from foliot.sandbox.base import (
    FEATURES,
    Enforced,
    Enforcement,
    Limits,
    Mount,
    SandboxPolicy,
    SandboxPolicyRefused,
    SandboxUnavailable,
    check_policy,
)
from foliot.sandbox.process import ProcessSandbox

ALL = Enforcement("test", True, features={name: Enforced(True, how="it is") for name in FEATURES})


def test_the_default_policy_is_fine() -> None:
    check_policy(SandboxPolicy(), ALL)
    check_policy(SandboxPolicy(require=frozenset(FEATURES)), ALL)


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (SandboxPolicy(cwd="here"), "cwd"),
        (SandboxPolicy(workspace="relative"), "workspace"),
        (SandboxPolicy(workspace="/a/../etc"), "workspace"),
        (SandboxPolicy(mounts=(Mount("/a", "/proc/sys"),)), "mounts[0].target"),
        (SandboxPolicy(mounts=(Mount("/a", "/b"), Mount("/a", "/run/foliot/broker.sock"))), "mounts[1].target"),
        (SandboxPolicy(mounts=(Mount("/a", "//usr/"),)), "mounts[0].target"),
        (SandboxPolicy(mounts=(Mount("a", "/b"),)), "mounts[0].source"),
        (SandboxPolicy(network="broker"), "broker_socket"),
        (SandboxPolicy(broker_socket="/s"), "network"),
        (SandboxPolicy(environment={"A=B": "c"}), "environment"),
        (SandboxPolicy(environment={"A": "c\0d"}), "environment"),
        (SandboxPolicy(limits=Limits(memory=1)), "limits.memory"),
        (SandboxPolicy(limits=Limits(processes=0)), "limits.processes"),
        (SandboxPolicy(limits=Limits(cpus=0.0)), "limits.cpus"),
        (SandboxPolicy(limits=Limits(seconds=float("nan"))), "limits.seconds"),
        (SandboxPolicy(require=frozenset({"magic"})), "require"),
    ],
)
def test_the_field_is_named(policy: SandboxPolicy, field: str) -> None:
    with pytest.raises(SandboxPolicyRefused) as caught:
        check_policy(policy, ALL)
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")


def test_what_must_be_enforced_and_is_not_is_refused_with_the_reason() -> None:
    weak = Enforcement("test", True, features={"memory": Enforced(False, why="no cgroup here")})
    check_policy(SandboxPolicy(), weak)
    with pytest.raises(SandboxPolicyRefused, match=r"memory must be enforced.*no cgroup here"):
        check_policy(SandboxPolicy(require=frozenset({"memory"})), weak)


def test_a_host_that_cannot_fence_says_what_to_do() -> None:
    none = Enforcement("test", False, why="no user namespaces", hint="set user.max_user_namespaces")
    with pytest.raises(SandboxUnavailable, match="no user namespaces") as caught:
        check_policy(SandboxPolicy(), none)
    assert caught.value.hint == "set user.max_user_namespaces"


@pytest.mark.fence
async def test_processes_have_no_image() -> None:
    sandbox = ProcessSandbox()
    with pytest.raises(SandboxPolicyRefused, match="image: "):
        await sandbox.open(SandboxPolicy(image=f"tools@sha256:{'0' * 64}"))
    await sandbox.close()


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("sh", True),
        ("no-such-program", False),
        ("/usr/bin/env", True),
        ("/usr/bin/no-such-program", False),
        ("/opt/no-such-folder/run", False),
        ("/tools/run", True),
        ("/tools/other", False),
        ("/workspace/run", True),
    ],
)
def test_a_program_is_found_where_the_fence_shows_it(tmp_path: Path, program: str, found: bool) -> None:
    (tmp_path / "run").touch()

    assert bubblewrap.shows_program(program, [{"source": str(tmp_path), "target": "/tools"}]) is found
