"""No attack gets out, the page tells what became of each, and a fence with a wall missing would be noticed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from foliot.sandbox import bubblewrap, landlock, process
from foliot.sandbox.base import FEATURES, Enforced, Enforcement, SandboxPolicy
from foliot.sandbox.process import ProcessSandbox
from foliot.sandbox.seccomp import ALLOW
from tests.sandbox.containers.engines import REAL, usable
from tests.sandbox.escapes.attacks import ATTACKS, PAGE, World, carried_out, everywhere, outcomes, shown


@pytest.mark.fence
def test_no_attack_gets_out_and_the_page_says_what_became_of_each() -> None:
    found = everywhere()
    out = {
        f"{backend}: {name}": said for backend, all in found.items() for name, said in all.items() if "NOT HELD" in said
    }
    assert out == {}
    page = shown(PAGE.read_text())
    assert {backend: page[backend] for backend in found} == found, "python -m tests.sandbox.escapes.attacks --write"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", [pytest.param(each[:2], id=each[2]) for each in REAL])
def test_no_attack_gets_out_of_a_container(engine: tuple[str, str]) -> None:
    runtime, why = usable(*engine)
    if runtime == "-":
        pytest.skip(f"not run on a real engine: {why}")
    backend, found = outcomes("--engine", *engine)
    assert {name: said for name, said in found.items() if "NOT HELD" in said} == {}
    assert shown(PAGE.read_text())[backend] == found, "python -m tests.sandbox.escapes.attacks --write"


class Unaware(ProcessSandbox):
    """Does not look whether its walls are there."""

    async def enforces(self) -> Enforcement:
        return Enforcement("process", True, features={name: Enforced(True, "trust me") for name in FEATURES})


@pytest.mark.fence
@pytest.mark.parametrize(
    ("missing", "attack"),
    [("filter", "other families of sockets"), ("seal", "/proc of the machine"), ("network", "loopback of the host")],
)
async def test_a_fence_without_one_of_its_walls_is_noticed(
    missing: str, attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = bubblewrap.arguments
    if missing == "filter":
        monkeypatch.setattr(process, "filter_for", lambda **_: struct.pack("=HBBI", 6, 0, 0, ALLOW))
    elif missing == "seal":
        monkeypatch.setattr(bubblewrap, "SEALED", ())
        monkeypatch.setattr(landlock, "version", lambda: 0)  # which would hold
    else:
        monkeypatch.setattr(
            bubblewrap, "arguments", lambda policy: [w for w in arguments(policy) if w != "--unshare-net"]
        )
    (chosen,) = (each for each in ATTACKS if each.name == attack)
    sandbox = Unaware()
    world = World(sandbox, tmp_path)
    try:
        assert await carried_out(world, chosen) != chosen.held
    finally:
        world.close()
        await sandbox.close()
    honest = ProcessSandbox()
    try:
        seen = await honest.enforces()
        # The probe that every session depends on sees it too.
        assert (seen.available, "fence does not hold" in seen.why) == (
            (True, False) if missing == "filter" else (False, True)
        )
    finally:
        await honest.close()


async def test_a_host_without_namespaces_says_what_to_do_and_runs_nothing(tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    fake.chmod(0o755)
    sandbox = ProcessSandbox(command=str(fake))
    found = await sandbox.enforces()
    assert not found.available
    assert "does not let bubblewrap make a sandbox" in found.why
    assert "namespaces" in found.hint
    with pytest.raises(Exception, match="cannot be used here"):
        await sandbox.open(SandboxPolicy())
    absent = await ProcessSandbox(command=str(tmp_path / "none")).enforces()
    assert (absent.available, "cannot be started" in absent.why) == (False, True)
