"""Installs the frameworks that the benchmarks compare with, each in an environment of its own under .bench/.

What is pinned in requirements/<peer>.txt is what the scripts beside it were written for.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".bench"


def main() -> int:
    failed = 0
    for pins in sorted((HERE / "requirements").glob("*.txt")):
        home = ENVIRONMENTS / pins.stem
        if not (home / "bin" / "python").exists():
            venv.create(home, with_pip=True)
        print(f"Installing {pins.stem} ...", flush=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        failed |= subprocess.run([*pip, "-r", str(pins)], check=False).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
