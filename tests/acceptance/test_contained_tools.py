"""Tools in containers, through a whole runtime: `cli` tools by their image, and what policies make of fenced ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from glob import glob
from pathlib import Path
from typing import Any

import msgspec
import pytest

import foliot
from foliot import Runtime
from foliot.errors import FoliotError
from foliot.sandbox.container_cli import find
from foliot.settings.settings import load_settings
from tests.acceptance.test_fenced_network import MALLORY, declare, ran
from tests.sandbox.containers.engines import usable
from tests.sandbox.containers.images import system_image

pytestmark = pytest.mark.fence


@pytest.fixture
def engine() -> tuple[str, str]:
    """An engine that makes containers here, and the runtime with which it does so."""
    for cli in ("podman", "docker"):
        runtime, why = usable(cli, "container")
        if not why:
            return cli, runtime
    pytest.skip("no engine makes containers here")


@pytest.fixture
def image(engine: tuple[str, str]) -> str:
    return system_image(find(engine[0]) or "")


@pytest.fixture
async def runtime(tmp_path: Path, engine: tuple[str, str], image: str) -> AsyncIterator[Runtime]:
    environ = {
        "FOLIOT_HOME": str(tmp_path / "home"),
        "FOLIOT_CONTAINER_CLI": engine[0],
        "FOLIOT_CONTAINER_RUNTIME": engine[1],
        "FOLIOT_CONTAINER_IMAGE": image,
        "FOLIOT_MCP_COMMANDS": "cat *",
    }
    async with Runtime(settings=load_settings({}, environ)) as made:
        yield made


def shown(**spec: Any) -> dict[str, Any]:
    command = ["sh", "-c", "ls /usr/bin"]
    return {"type": "cli", "effect": "read", "cli": {"command": command}, **spec}


async def test_a_cli_tool_runs_in_its_image_or_the_default_one(runtime: Runtime, image: str) -> None:
    await declare(runtime, "Tool", "named", **shown(sandbox={"image": image}))
    await declare(runtime, "Tool", "default", **shown(runtime={"isolation_mode": "container"}))

    for tool in ("named", "default"):
        told, _ = await ran(runtime, tool)
        assert "stty" in told, told
        assert "curl" not in told, "the programs of the image, not those of the machine"


async def test_a_policy_puts_a_fenced_tool_into_a_container(runtime: Runtime) -> None:
    await declare(runtime, "Tool", "fenced", **shown())
    assert "dpkg" in (await ran(runtime, "fenced"))[0], "the system of the machine"

    await declare(runtime, "AgentPolicy", "walls", apply_mode="global", sandbox={"isolation": "container"})

    assert "dpkg" not in (await ran(runtime, "fenced"))[0]


async def test_an_image_that_was_not_granted_is_not_run(runtime: Runtime, image: str) -> None:
    spec = {"type": "cli", "effect": "read", "cli": {"command": ["cat", "/x"]}, "sandbox": {"image": image}}
    await declare(runtime, "Tool", "mine", MALLORY, **spec)

    with pytest.raises(FoliotError, match="may not be run"):
        await ran(runtime, "mine")


CODE = """
import os, sys

def where() -> str:
    return f"{sys.executable} {os.path.exists('/usr/bin/dpkg')} {__file__}"
"""


async def test_a_function_runs_with_the_python_of_the_image(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Foliot and its packages are shown in the image by mounts, which stands for an image that has them."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "contained_desk.py").write_text(CODE)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "code"), *sys.path])
    spec: dict[str, Any] = {"type": "function", "function": "contained_desk:where", "effect": "read"}
    await declare(runtime, "Tool", "bare", **spec, runtime={"isolation_mode": "container"})
    assert "No module named 'foliot'" in (await ran(runtime, "bare"))[0]

    version = subprocess.run(["/usr/bin/python3", "-c", "import sys; print(sys.version_info[:2])"], capture_output=True)
    if version.stdout.decode().strip() != str(sys.version_info[:2]):
        pytest.skip("the packages of this Python are not for the one in the image")
    packages, source = Path(msgspec.__file__).parents[1], Path(foliot.__file__).parents[1]
    mounts = [
        {"source": str(packages), "target": "/usr/lib/python3/dist-packages"},
        {"source": str(source), "target": str(source)},
        *({"source": each, "target": each} for each in glob("/usr/lib/*-linux-gnu")),
    ]
    await declare(runtime, "Tool", "full", **spec, runtime={"isolation_mode": "container"}, sandbox={"mounts": mounts})

    assert (await ran(runtime, "full"))[0] == "/usr/bin/python3 False /code/contained_desk.py"
