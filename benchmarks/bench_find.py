"""What `grep` and `glob` take on a real tree, and whether they find what ripgrep finds.

    python benchmarks/bench_find.py [FOLDER] [--gitignore]

FOLDER is the library of this Python when not given: some ten thousand files. Beside it stands ripgrep: the command `rg`
when it is on PATH, else the library `pyripgrep` (`pip install ripgrep-python`), else only our own figures are told. On
Debian, `apt-get download ripgrep` and `dpkg-deb -x ripgrep_*.deb rg` put the command into a folder, without installing
anything. The aim: every file that the command finds is found, in no more than 5 times its time (it was 2 to 3); the
library has no way to be told which files to leave out, so of it only the time is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable
from typing import Any

from verdict import Verdict

from foliot.tools.base import Caller, Invocation
from foliot.tools.builtin.find import LARGEST_SEARCHED, MOST_FOUND, Glob, Grep
from foliot.tools.builtin.workspace import Workspace

VERDICT = Verdict()

PATTERNS = ("def _parse_isoformat", "class \\w+Warning\\(UserWarning\\)", "[Zz]inc oxide", "import\\s+nturl2path")
MOST_TIMES = 5


def call(tool: Any, arguments: dict[str, Any]) -> Any:
    given = Invocation(tool.definition.name, "call", tool.definition.name, arguments, "key", Caller(agent="bench"))
    return asyncio.run(tool.invoke(given))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """The best of three, in milliseconds: the first reads the files from the disk."""
    best, found = float("inf"), None
    for _ in range(3):
        began = time.perf_counter()
        found = work()
        best = min(best, (time.perf_counter() - began) * 1e3)
    return best, found


def ours(tool: Any, pattern: str, ignoring: bool) -> set[str]:
    text = call(tool, {"pattern": pattern, "limit": MOST_FOUND, "gitignore": ignoring})
    return {line.partition(":")[0] for line in text.splitlines() if ":" in line and not line.startswith("[")}


def ripgrep(folder: str, ignoring: bool) -> tuple[str, Callable[[str], set[str]] | None]:
    if command := shutil.which("rg"):
        words = [command, "--hidden", "--glob", "!.git", "--max-filesize", str(LARGEST_SEARCHED), "-l", "--no-messages"]
        words += ["--no-require-git", "--no-ignore-global"] if ignoring else ["--no-ignore"]

        def by_command(pattern: str) -> set[str]:
            told = subprocess.run([*words, "-e", pattern, "."], cwd=folder, capture_output=True, text=True, check=False)
            return {line.removeprefix("./") for line in told.stdout.splitlines()}

        return "rg", by_command
    try:
        searcher = importlib.import_module("pyripgrep").Grep()
    except ImportError:
        return "", None
    return "pyripgrep", lambda pattern: set(searcher.search(pattern, path=folder, output_mode="files_with_matches"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", default=sysconfig.get_path("stdlib"))
    parser.add_argument("--gitignore", action="store_true")
    given = parser.parse_args()
    workspace = Workspace(given.folder)
    glob, grep = Glob(workspace), Grep(workspace)
    name, theirs = ripgrep(given.folder, given.gitignore)
    if theirs is None:
        print("ripgrep is not here to compare with: `rg` on PATH, or `pip install ripgrep-python`")
    for pattern in ("**/*.zzz", "*.py", "json/*.py"):
        took, found = timed(lambda pattern=pattern: call(glob, {"pattern": pattern, "gitignore": given.gitignore}))
        print(f"glob  {pattern:<40} {took:8.1f} ms   {found['count']} files {found.get('note', '')}")
    for pattern in PATTERNS:
        took, found = timed(lambda pattern=pattern: ours(grep, pattern, given.gitignore))
        line = f"grep  {pattern:<40} {took:8.1f} ms   {len(found)} files"
        if theirs is not None:
            beside, known = timed(lambda pattern=pattern: theirs(pattern))
            line += f"   {name} {beside:8.1f} ms ({took / beside:.1f} times), {len(known)} files"
            if name == "rg":
                lacking = sorted(known - found)
                VERDICT.hold(f"files that rg finds for {pattern} and we do not", len(lacking), most=0)
                VERDICT.hold(f"grep {pattern}", took / beside, "times rg", most=MOST_TIMES)
                line += f"   not found by us: {lacking[:3]}" if lacking else ""
        print(line)
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
