"""`python -m foliot.cli`, for places where the script is not on the path."""

from __future__ import annotations

import os
import sys

# `-m` puts the current folder first: a `yaml.py` that lies there would be imported as the library. Tools are found
# there all the same, see runtimes.py.
if sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from foliot.cli.entry import main  # behind the lines above, which decide where it is imported from

main()
