"""Small packages with entry points, built as wheels and installed by pip into a folder: nothing is pretended."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ACME = '''
import foliot
from foliot import hook, tool
from foliot.models.registry import Provider
from foliot.models.scripted.model import ScriptedModel

VERSION = "{version}"
closed = []

class Shout(foliot.Hook):
    name = "shout"

    async def after_message(self, act):
        return act.change(text=f"{{act.text}} ({version})")

    async def close(self):
        closed.append(VERSION)

@hook("before_message", name="quiet", scope="named")
def quiet(act):
    return act.change(text=act.text.lower())

@tool(effect="read")
def acme_look(place: str) -> str:
    """Look at a place."""
    return f"{{VERSION}} sees {{place}}"

def hooks():
    return [Shout(), quiet]

def model(config):
    return ScriptedModel([{{"say": "{version} says so"}}])

provider = Provider("acme-model", model, requires_api_key=False, takes_model=True)

def channel(config):
    return ("channel", config)
'''
GROUPS = {
    "foliot.hooks": "acme_foliot:hooks",
    "foliot.tools": "acme_foliot:acme_look",
    "foliot.models": "acme_foliot:provider",
    "foliot.channels": "acme_foliot:channel",
}


def install(
    folder: Path,
    source: str,
    groups: dict[str, str],
    *,
    name: str = "acme",
    package: str = "acme-foliot",
    version: str = "1.0",
) -> None:
    """Build a wheel of one module, named as its package is, and have pip install it into a folder."""
    module = package.replace("-", "_")
    wheel = folder.parent / f"{module}-{version}-py3-none-any.whl"
    info = f"{module}-{version}.dist-info"
    entries = "".join(f"[{group}]\n{name} = {target}\n\n" for group, target in groups.items())
    files = {
        f"{module}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": entries,
    }
    with zipfile.ZipFile(wheel, "w") as made:
        for path, text in files.items():
            made.writestr(path, text)
        made.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD")))
    for old in folder.glob(f"{module}-*.dist-info"):
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--upgrade", "--target"]
    done = subprocess.run([*pip, str(folder), str(wheel)], capture_output=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr.decode()


def install_acme(folder: Path, version: str = "1.0") -> None:
    install(folder, ACME.format(version=version), GROUPS, version=version)
