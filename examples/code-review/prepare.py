"""Makes a small git repository with two commits, in the folder `repository`: the second one has a mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BEFORE = "def discount(price, percent):\n    return price - price * percent / 100\n"
AFTER = "def discount(price, percent):\n    return price - price * percent\n"
SHOP = "from prices import discount\n\n\ndef sale(prices):\n    return [discount(price, 20) for price in prices]\n"


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    subprocess.run(["git", "-C", folder, *who, *words], check=True, stdout=subprocess.DEVNULL)


def main(folder: Path) -> None:
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "prices.py").write_text(BEFORE)
    (folder / "shop.py").write_text(SHOP)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "Sell with a discount")
    (folder / "prices.py").write_text(AFTER)
    git(folder, "commit", "--quiet", "-a", "-m", "Make the discount quicker")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "repository"))
