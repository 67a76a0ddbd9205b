"""`python -m simulators.talks`: play one conversation and see it, or thousands to see whether a promise breaks."""

from __future__ import annotations

import sys

from simulators.engine.__main__ import main
from simulators.talks.simulation import PROFILES, simulate

if __name__ == "__main__":
    sys.exit(main(simulate=simulate, profiles=PROFILES, prog="python -m simulators.talks"))
