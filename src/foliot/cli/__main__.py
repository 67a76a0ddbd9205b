"""`python -m foliot.cli`, for places where the script is not on the path."""

from __future__ import annotations

from foliot.cli.main import main

main()
