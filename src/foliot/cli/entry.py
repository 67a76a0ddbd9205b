"""The way in: what holds from the first moment of a process, before anything else is loaded.

Loading the command line takes a tenth of a second. Ctrl-C in that time ends the process as it ends any other, without a
word. Standard streams that were closed are pointed at nothing: otherwise a file or a connection would get their
numbers, and what is printed would be written into it.

Only what the interpreter has loaded by itself is imported here.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def main() -> "NoReturn":
    """Run the command line, and end the process with its exit code."""
    interrupt_quietly()
    fill_streams()
    from foliot.cli.main import main as run

    run()


def interrupt_quietly() -> None:
    """Let Ctrl-C end the process at once, until `interrupt_loudly`. Where it is ignored it stays so."""
    import _signal  # pyright: ignore[reportMissingImports] - what `signal` is made of, which would load `enum` first

    native: Any = _signal
    if native.getsignal(native.SIGINT) is native.default_int_handler:
        native.signal(native.SIGINT, native.SIG_DFL)


def interrupt_loudly() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` again: somebody catches it from now on."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def fill_streams() -> None:
    """Put something in the place of standard streams that whoever started the process has closed."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            stream = open(descriptor, mode, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - for good
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
