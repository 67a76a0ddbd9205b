"""The inside of the tool `python`: runs pieces of code one after another, and keeps what they define.

Runs as a program of its own in a fence, handed to whatever Python is there, and never in the process of Foliot: it
imports nothing but the standard library. Requests and answers are JSON behind their length, on what were standard input
and output. What the code prints, also from programs that it starts, goes to standard error; behind it stands a mark
that came with the request, so that the other side knows when it has read all.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
import json
import linecache
import os
import struct
import sys
import traceback
import types
from typing import Any, BinaryIO

LENGTH = struct.Struct(">I")
# The longest representation of a value, and the longest traceback: the beginning of one, the end of the other.
LONGEST_VALUE = 16_000
LONGEST_ERROR = 6_000


def main() -> None:
    """Serve until standard input ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb"), encoding="utf-8", errors="backslashreplace", line_buffering=True)
    sys.stderr = io.TextIOWrapper(
        os.fdopen(2, "wb", closefd=False), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
    # Code is a module of its own, as in a file that is run: what it defines can be pickled and asked for its module.
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    sys.argv = [""]
    sys.path.insert(0, os.getcwd())
    own = os.getpid()
    _send(answers, {"ready": True, "version": sys.version.split()[0]})
    number = 0
    while True:
        head = requests.read(LENGTH.size)
        if len(head) < LENGTH.size:
            return
        request = json.loads(requests.read(LENGTH.unpack(head)[0]))
        number += 1
        answer = _run(request["code"], module.__dict__, f"<python call {number}>")
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # the code has closed or replaced it
                stream.flush()
        if os.getpid() != own:
            os._exit(0)  # the code has forked: this one must not answer too
        with contextlib.suppress(OSError):
            os.write(2, request["mark"].encode())
        try:
            _send(answers, answer)
        except OSError:  # the code has closed the way to answer
            os._exit(1)


def _run(code: str, names: dict[str, Any], file: str) -> dict[str, Any]:
    """Run one piece of code. Its value is that of its last line, if that is an expression; it is called `_` then."""
    # So that tracebacks show the lines.
    linecache.cache[file] = (len(code), None, code.splitlines(True), file)
    try:
        tree = ast.parse(code, file)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        if tree.body:
            exec(compile(tree, file, "exec", dont_inherit=True), names)
        if not isinstance(last, ast.Expr):
            return {}
        value = eval(compile(ast.Expression(last.value), file, "eval", dont_inherit=True), names)
        if value is None:
            return {}
        names["_"] = value
        shown = repr(value)
        return {"value": shown[:LONGEST_VALUE], "size": len(shown)}
    except SystemExit as error:
        return {"error": f"SystemExit: {error.code!r}"[:LONGEST_ERROR]}
    except BaseException as error:
        return {"error": _told(error, file)}


def _told(error: BaseException, file: str) -> str:
    """The traceback, without what stands above the code of the caller."""
    try:
        frames = error.__traceback__
        while frames is not None and not frames.tb_frame.f_code.co_filename.startswith("<python call"):
            frames = frames.tb_next
        if frames is None and isinstance(error, SyntaxError) and error.filename == file:
            text = "".join(traceback.format_exception_only(type(error), error))
        else:
            text = "".join(traceback.format_exception(type(error), error, frames))
    except BaseException:
        text = type(error).__name__
    return text if len(text) <= LONGEST_ERROR else f"…{text[-LONGEST_ERROR:]}"


def _send(answers: BinaryIO, answer: dict[str, Any]) -> None:
    data = json.dumps(answer).encode()
    left = memoryview(LENGTH.pack(len(data)) + data)
    while left:
        left = left[answers.write(left) :]


if __name__ == "__main__":
    main()
