"""The frame around every command: help, global options, unknown words, errors and exit codes."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from foliot.cli.invocation import Invocation, color_choice
from foliot.cli.main import DECLARE, INSPECT, OPERATE, RUN, LazyGroup, Verb, suggest
from foliot.cli.main import cli as root
from foliot.errors import Conflict, Denied, FoliotError, NotFound, SecretError, Unavailable

EVERY_VERB = {**DECLARE, **RUN, **INSPECT, **OPERATE}


def test_help_lists_every_command_in_groups_within_80_columns(foliot):
    said = foliot("--help")

    assert said.code == 0
    assert max(map(len, said.out.splitlines())) <= 80
    for title in ("Declare:", "Run:", "Inspect:", "Operate:"):
        assert title in said.out
    for name, verb in EVERY_VERB.items():
        assert f"  {name}" in said.out
        assert verb.help in said.out


def test_foliot_alone_shows_the_help_and_succeeds(foliot):
    assert foliot() == foliot("--help")


@pytest.mark.parametrize("name", [name for name in EVERY_VERB if name != "dev"])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_command_explains_itself_within_100_columns(foliot, name, flag):
    said = foliot(name, flag)

    assert said.code == 0
    assert said.out.startswith(f"Usage: foliot {name}")
    assert max(map(len, said.out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("word", "meant"), [("gte", "get"), ("ls", "get"), ("rm", "delete"), ("desc", "describe"), ("lint", "validate")]
)
def test_an_unknown_command_suggests_what_was_meant(foliot, word, meant):
    said = foliot(word)

    assert said.code == 2
    assert f"There is no command `foliot {word}`" in said.err
    assert f"did you mean `foliot {meant}`" in said.err


def test_a_word_like_nothing_points_to_the_help(foliot):
    said = foliot("xyzzy")

    assert said.code == 2
    assert "`foliot --help` lists the commands" in said.err


def test_an_unknown_option_is_a_usage_error_with_the_usage(foliot):
    said = foliot("get", "--lable", "x")

    assert said.code == 2
    assert "No such option" in said.err
    assert "Usage: foliot get" in said.err
    assert said.out == ""


def test_suggestions_are_few_and_without_repeats():
    verbs = {
        name: Verb("", "", also) for name, also in {"get": ("list",), "getter": (), "gets": (), "gate": ()}.items()
    }

    assert suggest("get", verbs)[0] == "get"
    assert len(suggest("get", verbs)) == 3
    assert suggest("list", verbs) == ["get"]


@pytest.mark.parametrize(
    "words",
    [
        ("-n", "team-a", "config", "show"),
        ("config", "-n", "team-a", "show"),
        ("config", "show", "-n", "team-a"),
        ("config", "show", "--namespace=team-a"),
        ("-n", "other", "config", "show", "-n", "team-a"),
    ],
)
def test_global_options_stand_anywhere_and_the_last_one_wins(foliot, words):
    said = foliot(*words)

    assert said.code == 0
    assert "team-a" in said.out
    assert "flag --namespace" in said.out


def test_version_as_flag_command_and_json(foliot):
    import json

    from foliot.version import __version__

    assert foliot("--version").out == f"foliot {__version__}\n"
    assert foliot("version").out.startswith(f"foliot {__version__} (Python")
    assert json.loads(foliot("version", "-o", "json").out)["foliot"] == __version__


def failing(error: BaseException) -> LazyGroup:
    import click

    @click.command()
    def boom() -> None:
        raise error

    group = LazyGroup(name="foliot", sections=(("Test", {"boom": Verb("", "")}),))
    group.commands["boom"] = boom
    return group


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FoliotError("x"), 1),
        (NotFound("x"), 3),
        (Conflict("x"), 4),
        (Denied("x"), 6),
        (SecretError("x"), 6),
        (Unavailable("x"), 7),
        (KeyboardInterrupt(), 130),
        (FileNotFoundError(2, "No such file or directory", "nowhere.pem"), 1),
        (ZeroDivisionError("secret text"), 70),
    ],
)
def test_the_exit_code_tells_the_cause(error, code):
    result = CliRunner().invoke(failing(error), ["boom"])

    assert result.exit_code == code
    assert result.stdout == ""


def test_an_error_is_told_with_its_hint_under_it():
    result = CliRunner().invoke(failing(NotFound("There is none.", hint="Look here\nor there.")), ["boom"])

    assert result.stderr == "error: There is none.\nhint: Look here\n      or there.\n"


def test_an_unexpected_error_is_an_apology_without_its_text(monkeypatch):
    monkeypatch.delenv("FOLIOT_DEBUG", raising=False)

    result = CliRunner().invoke(failing(ZeroDivisionError("hunter2")), ["boom"])

    assert "ZeroDivisionError" in result.stderr
    assert "test_main.py, line" in result.stderr
    assert "please report it" in result.stderr
    assert "hunter2" not in result.stderr
    assert "Traceback" not in result.stderr


def test_foliot_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("FOLIOT_DEBUG", "1")

    result = CliRunner().invoke(failing(ZeroDivisionError("x")), ["boom"])

    assert "Traceback (most recent call last)" in result.stderr


def test_a_system_error_names_the_file():
    result = CliRunner().invoke(failing(PermissionError(13, "Permission denied", "/etc/shadow")), ["boom"])

    assert result.stderr == "error: /etc/shadow: Permission denied\n"


@pytest.mark.parametrize(
    ("environ", "no_color", "choice"),
    [
        ({}, False, None),
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, False, None),
        ({"TERM": "dumb"}, False, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ({"CLICOLOR_FORCE": "1"}, False, True),
        ({"CLICOLOR_FORCE": "0"}, False, None),
        ({"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_colours_follow_flag_and_environment(environ, no_color, choice):
    assert color_choice(environ, no_color=no_color) is choice


def test_no_color_after_the_command_silences_forced_colours(foliot, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")

    assert "\x1b[" in foliot("explain").out
    assert "\x1b[" not in foliot("explain", "--no-color").out
    assert "\x1b[" not in foliot("--no-color", "explain").out


def test_an_invocation_reads_settings_again_after_another_flag(home):
    invocation = Invocation()
    invocation.give("namespace", "one")
    assert invocation.settings().namespace == "one"

    invocation.give("namespace", "two")

    assert invocation.settings().namespace == "two"


def test_every_verb_of_the_table_loads():
    import click

    context = click.Context(root)
    for name in EVERY_VERB:
        command = root.get_command(context, name)
        assert command is not None
        assert "-n" in [opt for param in command.params for opt in param.opts]


def test_an_older_name_of_a_command_still_works_and_is_not_shown(foliot) -> None:
    older, name = foliot("decide", "--help"), foliot("settle", "--help")

    assert older.out == name.out.replace("foliot settle [", "foliot decide [")
    assert "  decide" not in foliot("--help").out
    assert "requeue" not in foliot("task", "--help").out
    assert foliot("task", "requeue", "--help").code == 0
