"""What a word names in `run`, `chat` and `task run`: one grammar, whatever lies in the current folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.cli.work_target import KIND_WORDS, WorkTarget, parse_name, parse_words, parse_work_target
from foliot.errors import UsageError
from foliot.resources.references import is_name
from foliot.resources.syntax.manifest_files import SUFFIXES

EXAMPLE = "For example `foliot run writer`."
NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,8}[A-Za-z0-9])?", fullmatch=True).filter(
    lambda name: not name.lower().endswith(SUFFIXES)
)
# A namespace that can be no host, and no kind.
SPACES = st.from_regex(r"[a-z0-9]([a-z0-9_-]{0,8}[a-z0-9])?", fullmatch=True).filter(
    lambda name: name not in (*KIND_WORDS, "localhost")
)
HOSTS = st.sampled_from(("ghcr.io", "localhost", "registry:5000", "10.0.0.1", "a.b"))
DIGESTS = st.sampled_from(("sha256:" + "0af" * 3, "sha512:9"))
WORDS = st.one_of(
    st.text(max_size=12),
    st.text("ab./~:@-_AB0 ", max_size=12),
    NAMES,
    st.builds("/".join, st.lists(NAMES, max_size=4)),
    st.builds("{}/{}".format, HOSTS, NAMES),
    st.builds("{}@{}".format, NAMES, DIGESTS),
)


def parse(word: str) -> WorkTarget:
    return parse_work_target(word, example=EXAMPLE)


def refusal(word: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse(word)
    return caught.value


@given(WORDS)
def test_a_word_is_a_path_or_a_name_or_refused_with_what_to_do(word: str) -> None:
    try:
        target = parse(word)
    except UsageError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert refused.hint
        return
    if word.startswith((".", "/", "~")):
        assert target == WorkTarget(path=os.path.expanduser(word))
    elif word.lower().endswith(SUFFIXES):
        assert target == WorkTarget(path=word)
    else:
        assert (target.path, is_name(target.name)) == ("", True)
        assert target.namespace == "" or is_name(target.namespace)
        assert parse(str(target)) == target


@given(NAMES, SPACES)
def test_names_are_declared_things(name: str, space: str) -> None:
    assert parse(name) == WorkTarget(name)
    assert parse(f"{space}/{name}") == WorkTarget(name, space)
    for word, kind in KIND_WORDS.items():
        assert parse(f"{word}/{name}") == WorkTarget(name, "", kind)
        assert parse(f"{word}/{space}/{name}") == WorkTarget(name, space, kind)


@given(st.text(max_size=8), st.sampled_from((".", "/", "~/")))
def test_paths_begin_as_paths_do(rest: str, start: str) -> None:
    assert parse(start + rest).path == os.path.expanduser(start + rest)


@given(HOSTS, NAMES, NAMES, DIGESTS)
def test_images_are_refused_in_words(host: str, owner: str, name: str, digest: str) -> None:
    for image in (f"{host}/{owner}/{name}", f"{host}/{name}@{digest}", f"{name}@{digest}", f"{host}/{name}:v1"):
        assert "names an image. This version of Foliot cannot run images." in refusal(image).message


@given(st.sampled_from(("ghcr.io", "localhost", "a.b")), NAMES, st.sampled_from(SUFFIXES))
def test_what_has_two_readings_is_refused_with_both(host: str, name: str, suffix: str) -> None:
    twice = refusal(f"{host}/{name}")
    assert f"two ways: {name} in namespace {host}, or an image" in twice.message
    assert twice.hint == f"Write `-n {host} {name}` for the first."

    file = refusal(f"{host}/{name}{suffix}")
    assert f"two ways: the manifest ./{host}/{name}{suffix}, or an image" in file.message
    assert parse(f"./{host}/{name}{suffix}").path


@pytest.mark.parametrize("word", ["shop:desk", "shop.agents:desk"])
def test_python_is_not_run_by_commands(word: str) -> None:
    assert "names an agent of a Python module" in refusal(word).message


@pytest.mark.parametrize("word", ["", "-", "a b", "a//b", "a/b/c", "/".join("abcd"), "a/", "desk@latest", "-n"])
def test_what_is_neither_is_refused(word: str) -> None:
    assert "names neither" in refusal(word).message


@pytest.mark.parametrize(
    ("words", "files", "read"),
    [
        (("desk", "hi"), (), ((), "desk", "hi")),
        (("desk",), (), ((), "desk", None)),
        (("./desk", "hi"), (), (("./desk",), None, "hi")),
        (("hi",), ("desk",), (("desk",), None, "hi")),
        (("./hi",), ("desk",), (("desk",), None, "./hi")),
        (("writer", "hi"), ("desk",), (("desk",), "writer", "hi")),
        ((), ("desk",), (("desk",), None, None)),
    ],
)
def test_target_and_text_are_told_apart(
    words: tuple[str, ...], files: tuple[str, ...], read: tuple[object, ...]
) -> None:
    found = parse_words(words, files, example=EXAMPLE)
    assert (found.files, found.target and str(found.target), found.text) == read


def test_an_option_that_names_the_agent_leaves_the_word_to_the_text() -> None:
    named = parse_name("team/writer", example=EXAMPLE)
    assert parse_words(("hi",), (), named=named, example=EXAMPLE).text == "hi"
    assert parse_words(("a.yaml",), (), named=named, example=EXAMPLE).files == ("a.yaml",)
    with pytest.raises(UsageError, match="both named"):
        parse_words(("editor", "hi"), (), named=named, example=EXAMPLE)


# --- what is declared, beside folders of the same name ---------------------------------------------------------------

DESK = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: m}
spec: {provider: scripted, default_model: s, script: [{say: "SAID"}]}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: desk}
spec: {model_ref: m}
"""
SYSTEM = "apiVersion: foliot.dev/v1\nkind: AgentSystem\nmetadata: {name: desk}\nspec: {agents: [desk]}\n"


@pytest.fixture
def desk(foliot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A declared agent `desk`, and a folder `desk` that would change it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "declared.yaml").write_text(DESK.replace("SAID", "declared"))
    assert foliot("apply", "-f", "declared.yaml").code == 0
    (tmp_path / "desk").mkdir()
    (tmp_path / "desk/all.yaml").write_text(DESK.replace("SAID", "folder"))
    (tmp_path / "other").mkdir()
    return foliot


@pytest.mark.parametrize("command", [("run",), ("task", "run"), ("chat",)])
@pytest.mark.parametrize("word", ["desk", "default/desk", "agent/desk"])
def test_a_name_never_takes_a_folder_of_that_name(desk, command: tuple[str, ...], word: str) -> None:
    text = ("hi", "-q") if command != ("chat",) else ()
    before = desk("get", "modelendpoint", "m", "-o", "json").out

    assert desk(*command, word, *text, stdin="hi").out.strip().endswith("declared")
    assert desk("get", "modelendpoint", "m", "-o", "json").out == before


@pytest.mark.parametrize("command", [("run",), ("task", "run"), ("chat",)])
@pytest.mark.parametrize("path", [("./desk",), ("-f", "desk"), ("desk/all.yaml",)])
def test_a_path_is_applied_first(desk, command: tuple[str, ...], path: tuple[str, ...]) -> None:
    text = ("hi", "-q") if command != ("chat",) else ()

    assert desk(*command, *path, *text, stdin="hi").out.strip().endswith("folder")


@pytest.mark.parametrize("command", [("run",), ("task", "run"), ("chat",)])
def test_what_is_not_declared_says_how_to_take_the_folder(desk, command: tuple[str, ...]) -> None:
    text = ("hi",) if command != ("chat",) else ()
    said = desk(*command, "other", *text, stdin="hi")

    assert (said.code, "There is a folder of that name: `-f other` applies it first." in said.err) == (3, True)


def test_a_system_and_an_agent_of_one_name_are_told_apart(desk, tmp_path: Path) -> None:
    (tmp_path / "system.yaml").write_text(SYSTEM)
    assert desk("apply", "-f", "system.yaml").code == 0

    said = desk("task", "run", "desk", "hi")
    assert said.code == 2
    assert "two ways: the system desk in namespace default or the agent desk in namespace default" in said.err
    assert "`system/default/desk` or `agent/default/desk`" in said.err
    assert desk("task", "run", "system/desk", "hi", "-q").out == "declared\n"
    assert desk("run", "desk", "hi", "-q").out == "declared\n"


def test_a_namespace_with_the_name_of_a_kind_is_a_second_reading(desk, tmp_path: Path) -> None:
    assert desk("apply", "-f", "declared.yaml", "-n", "agent").code == 0

    said = desk("run", "agent/desk", "hi")
    assert said.code == 2
    assert "two ways: the agent desk in namespace default or the agent desk in namespace agent" in said.err
    assert desk("run", "agent/agent/desk", "hi", "-q").out == "declared\n"


def test_the_first_words_of_a_newcomer_work(foliot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = foliot("init", "desk")
    first = next(line.strip() for line in made.out.splitlines() if line.strip().startswith("foliot run"))
    assert first == 'foliot run -f desk "Three lines on clocks"'

    said = foliot("run", "-f", "desk", "Three lines on clocks", "-q")
    assert said.out.splitlines()[0] == "You asked: Three lines on clocks"
    assert foliot("run", "desk", "And bells?", "-q").out.splitlines()[0] == "You asked: And bells?"
    assert foliot("get", "agents", "-o", "name").out.split() == ["agent/desk"]


@pytest.mark.parametrize(
    "words",
    [
        ("run", "-f", "team.yaml", "nope", "hi"),
        ("run", "-f", "team.yaml", "elsewhere/writer", "hi"),
        ("chat", "-f", "team.yaml", "nope"),
        ("task", "run", "-f", "team.yaml", "nope", "hi"),
        ("task", "run", "-f", "team.yaml", "elsewhere/writer", "hi"),
    ],
)
def test_nothing_is_applied_for_work_that_is_not_there(foliot, manifest: Path, words: tuple[str, ...]) -> None:
    said = foliot(*words, stdin="hi")
    assert said.code == 3, said
    assert "applied team" not in said.err
    assert "The manifests declare: writer, editor. Nothing was applied." in said.err
    assert foliot("get", "agents", "-o", "name").out == ""
