"""The output of programs as a model is shown it: its end, with how much there was, and how long it took."""

from __future__ import annotations

import codecs
from typing import Final

from foliot.sandbox.base import Stream
from foliot.tools.base import OnOutput, ToolError, ToolTimeout
from foliot.tools.builtin.files import MOST_BYTES, MOST_LINES

# The message of a failed call is cut at 8,000 characters from its beginning: the end of the output has to be in it.
MOST_OF_FAILED: Final = 7_000
# So much is shown while it runs; whoever watches a flood learns no more from the rest of it.
MOST_SHOWN: Final = 64 * 1024
TIMED_OUT: Final = 124


class CommandFailed(ToolError):
    """The command ended with a code that is not 0, or was ended. What it did before is done."""

    retryable = False


class CommandTimedOut(ToolTimeout):
    """The command took too long and was ended with all that it started, so it is known how it ended."""

    retryable = False
    lost = False


class Heard:
    """Counts lines, and passes on the beginning of what is printed as text."""

    def __init__(self, on_output: OnOutput | None) -> None:
        self._on_output = on_output
        self._left = MOST_SHOWN
        decoder = codecs.getincrementaldecoder("utf-8")
        self._texts = {"stdout": decoder("replace"), "stderr": decoder("replace")}
        self.lines = 0

    def __call__(self, stream: Stream, data: bytes) -> None:
        self.lines += data.count(b"\n")
        if self._on_output is None or self._left <= 0:
            return
        self._left -= len(data)
        if shown := self._texts[stream].decode(data):
            self._on_output(shown)


def tail_of(output: str, count: int, size: int, *, most: int = MOST_BYTES, cut: bool) -> str:
    """The last whole lines that fit, with a line above them that says how many there were. Ends with a line break.

    `count` and `size` are the lines and bytes that were printed; `cut` when `output` is not all of it.
    """
    if not output:
        return ""
    lines = output.split("\n")
    kept: list[str] = []
    room = most
    for line in reversed(lines[-MOST_LINES:]):
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    if len(kept) == len(lines) and not cut:
        return f"{output}\n"
    total = max(count, len(lines))
    # Where all of `output` is shown and it is not all there was, its first line is the end of one.
    begins_cut = not kept or len(kept) == len(lines)
    if not kept:  # one line that does not fit: its end says more than nothing
        kept = [lines[-1].encode()[-most:].decode("utf-8", "ignore")]
    said = f"[The last {len(kept)} of {total} lines{', the first without its beginning' if begins_cut else ''}"
    if begins_cut and len(kept) == 1:
        said = f"[The end of line {total} of {total}, whose beginning was cut"
    said += f"; {size} bytes in all"
    advice = "write to a file in /workspace and read it to see everything]"
    return "\n".join([f"{said}; {advice}", *reversed(kept)]) + "\n"


def duration(seconds: float) -> str:
    """Returns a length of time as people read it: µs, ms, seconds with one decimal, whole seconds."""
    if seconds < 0.001:
        return f"{round(seconds * 1e6)}µs"
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    return f"{seconds:.1f}s" if seconds < 60 else f"{round(seconds)}s"
