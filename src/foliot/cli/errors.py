"""How trouble is told: the one place that turns an error into text on stderr and an exit code.

0  done                       4  it changed meanwhile, or is there already
1  differences (diff), or     5  a manifest, or what it declares, is invalid
   anything not below         6  a rule or a key says no
2  what was typed or set is   7  a needed part does not answer; trying again may help
   wrong                      8  a run waits for a person
3  not found                  70 a fault of Foliot's own    130 Ctrl-C    141 the reader of a pipe left
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final

import click

from foliot.cli.entry import interrupt_loudly
from foliot.cli.invocation import Invocation, wants_traceback
from foliot.cli.terminal import out, paint
from foliot.common.text import lines_of
from foliot.errors import FoliotError, InvalidInput, UsageError
from foliot_runtime import REPAIR, foreign_package

INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
BUG: Final = 70
# Done, differences, a run that waits for a person.
NO_FAILURES: Final = frozenset({0, 1, 8})
REPORT_AT: Final = "https://foliot.dev"


class ReaderLeft(Exception):
    """The reader of our output has closed it. Not an OSError, because click handles those itself."""


def exit_code_of(run: Callable[[], Any], invocation: Invocation) -> int:
    """Run a command to its end. Never raises: what went wrong is on stderr, and the number says of which sort."""
    try:
        interrupt_loudly()
        outcome = run()
        sys.stdout.flush()
    except (ReaderLeft, BrokenPipeError):
        _let_go_of_stdout()
        return BROKEN_PIPE
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:
        _tell_foreign_package(invocation)  # first: it may be the cause of whatever failed
        return _tell_error(error, invocation)
    code = outcome if isinstance(outcome, int) and not isinstance(outcome, bool) else 0
    if code not in NO_FAILURES:  # the command has told of it itself
        _tell_foreign_package(invocation)
    return code


def _tell_foreign_package(invocation: Invocation) -> None:
    if trouble := foreign_package():
        say("warning", f"{trouble}\n{REPAIR}", fg="yellow", color=invocation.color)


def _tell_error(error: Exception, invocation: Invocation) -> int:
    match error:
        case click.ClickException():
            return _tell_usage(error, invocation)
        case FoliotError():
            return tell(error, color=invocation.color)
        case OSError():
            return _tell_os(error, invocation)
        case _:
            return _tell_bug(error, invocation)


def tell(error: FoliotError, *, color: bool | None = None) -> int:
    """Print one of Foliot's own errors to stderr; its exit code."""
    findings = getattr(error, "findings", None)
    if findings:
        from foliot.cli.show.findings import render_findings, summary

        out(render_findings(findings), err=True, color=color)
        say("error", f"{summary(findings)}; nothing was changed", fg="red", color=color)
    else:
        say("error", error.message, fg="red", color=color)
    if error.hint:
        say("hint", error.hint, fg="cyan", color=color)
    # A selector, a cursor, an answer: it was typed here. What is declared wrongly has a class of its own.
    return UsageError.exit_code if type(error) is InvalidInput else error.exit_code


def warn(message: str) -> None:
    """Prints a warning, which does not stop the command."""
    say("warning", message, fg="yellow")


def say(label: str, message: str, *, fg: str, color: bool | None = None) -> None:
    """`label: message` on stderr; further lines of the message are set under its first."""
    first, *rest = lines_of(message)
    indent = " " * (len(label) + 2)
    text = "\n".join([first, *(indent + line for line in rest)])
    out(f"{paint(f'{label}:', fg=fg, bold=True)} {text}", err=True, color=color)


def _tell_usage(error: click.ClickException, invocation: Invocation) -> int:
    say("error", _worded(error), fg="red", color=invocation.color)
    context = getattr(error, "ctx", None)
    if isinstance(context, click.Context):
        out(context.get_usage(), err=True)
        say("hint", f"`{context.command_path} --help` explains the command.", fg="cyan", color=invocation.color)
    return error.exit_code


def _worded(error: click.ClickException) -> str:
    """Returns the message of click, in words for people where it speaks of its own types."""
    if isinstance(error, click.NoSuchOption) and error.option_name[1:].isdecimal():
        return f"{error.option_name} is below zero, and this takes numbers from 0 on."
    return error.format_message().replace("is not a valid integer range.", "is not a whole number.")


def _tell_os(error: OSError, invocation: Invocation) -> int:
    place = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
    say("error", f"{place}{error.strerror or type(error).__name__}", fg="red", color=invocation.color)
    return 1


def _tell_bug(error: Exception, invocation: Invocation) -> int:
    traced = wants_traceback(invocation)
    if traced:
        import traceback

        out("".join(traceback.format_exception(error)), err=True, nl=False)
    # The text of an unknown error may quote what it was given, a secret for instance: only its type is told unasked.
    sorry = f"Sorry, Foliot met something it was not built for: {type(error).__name__}{_place(error)}."
    say("error", sorry, fg="red", color=invocation.color)
    again = "" if traced else "\n`--verbose` (or FOLIOT_DEBUG=1) shows the traceback."
    report = f"This is a fault of Foliot's, please report it: {REPORT_AT}{again}"
    say("hint", report, fg="cyan", color=invocation.color)
    return BUG


def _place(error: Exception) -> str:
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    path = trace.tb_frame.f_code.co_filename
    short = path[path.rfind("foliot" + os.sep) :] if "foliot" + os.sep in path else os.path.basename(path)
    return f" ({short}, line {trace.tb_lineno})"


def _let_go_of_stdout() -> None:
    """Points stdout at nothing after its reader has gone, or the interpreter complains while it shuts down."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)
