from __future__ import annotations

import io
import os
import socket
from pathlib import Path

import pytest

from foliot.resources.kinds import KINDS
from foliot.resources.problems import ManifestError, Problem
from foliot.resources.reader import Bundle, parse_text, read_manifests
from foliot.resources.syntax.yaml_text import dump_yaml
from foliot.resources.wording import as_written

VALID = Path(__file__).parent / "data" / "valid"


def worker(name: str, **spec: object) -> str:
    return dump_yaml({"apiVersion": "foliot.dev/v1", "kind": "Worker", "metadata": {"name": name}, "spec": spec})


def names(bundle: Bundle) -> list[str]:
    return [loaded.document["metadata"]["name"] for loaded in bundle.items]


def told(bundle: Bundle) -> list[str]:
    return [str(finding) for finding in bundle.findings]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, so that names are relative as a person gives them."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- what is accepted


def test_every_kind_is_accepted_in_both_versions_and_spellings():
    bundle = read_manifests([VALID])

    assert told(bundle) == []
    assert {loaded.document["kind"] for loaded in bundle.items} == set(KINDS)
    assert {loaded.document["apiVersion"] for loaded in bundle.items} == {"foliot.dev/v1"}


@pytest.mark.parametrize("path", sorted(VALID.iterdir()), ids=lambda path: path.name)
def test_what_is_accepted_is_the_same_after_dumping_and_reading_again(path: Path):
    documents = read_manifests([path]).documents

    again = parse_text("---\n".join(dump_yaml(as_written(document)) for document in documents))

    assert told(again) == []
    assert again.documents == documents


def test_anchors_aliases_and_merge_keys_are_resolved():
    first, second = read_manifests([VALID / "anchors.yaml"]).documents

    assert first["metadata"]["annotations"]["desk"] == "local"
    assert first["spec"]["message_retry"]["max_attempts"] == 2
    assert first["spec"]["message_retry"]["backoff"] == "1s"
    assert first["spec"]["message_retry"]["jitter"] == "none"
    assert second["spec"]["input"] == {"topic": "Ships", "title": "Ships"}


def test_a_list_is_taken_apart_and_its_items_know_their_lines():
    bundle = read_manifests([VALID / "list.json"])

    assert names(bundle) == ["captain", "attic"]
    assert [(loaded.line, loaded.index) for loaded in bundle.items] == [(6, 0), (7, 1)]
    assert bundle.items[1].document["spec"]["region"] == "café 😀"


def test_several_documents_know_their_place_in_the_file():
    bundle = parse_text(f"# first\n{worker('a')}---\n\n{worker('b')}")

    assert [(loaded.file, loaded.line, loaded.index) for loaded in bundle.items] == [
        ("<stdin>", 2, 0),
        ("<stdin>", 9, 1),
    ]


def test_json_without_a_telling_name_is_read_as_json():
    # a surrogate pair in escapes is JSON, but not YAML
    text = '{"kind": "Worker", "metadata": {"name": "w"}, "spec": {"region": "\\ud83d\\ude00"}}'

    assert parse_text(text).documents[0]["spec"]["region"] == "😀"


def test_yaml_in_braces_is_still_read_as_yaml():
    assert names(parse_text("{kind: Worker, metadata: {name: w}}")) == ["w"]


def test_bytes_and_texts_may_begin_with_a_byte_order_mark():
    assert names(parse_text("\ufeff" + worker("a"))) == ["a"]
    assert names(parse_text(("\ufeff" + worker("a")).encode())) == ["a"]


def test_a_namespace_is_given_to_those_that_name_none():
    text = "kind: Worker\nmetadata: {name: a}\n---\nkind: Worker\nmetadata: {name: a, namespace: own}\n"

    assert [loaded.key for loaded in parse_text(text, namespace="team").items] == [
        ("Worker", "team", "a"),
        ("Worker", "own", "a"),
    ]


# --- where from


def test_a_directory_is_read_in_sorted_order_without_hidden_directories(here: Path):
    for path in (
        "b.yaml",
        "a.YML",
        "c.json",
        "sub/d.Yaml",
        ".git/e.yaml",
        ".hidden/f.yaml",
        "notes.txt",
        "sub/x/g.yml",
    ):
        (here / "m" / path).parent.mkdir(parents=True, exist_ok=True)
        text = worker(path.replace("/", "-").replace(".", "-").strip("-"))
        if path.endswith(".json"):
            text = '{"kind": "Worker", "metadata": {"name": "c-json"}}'
        (here / "m" / path).write_text(text)

    bundle = read_manifests(["m"])

    assert told(bundle) == []
    assert [loaded.file for loaded in bundle.items] == [
        "m/a.YML",
        "m/b.yaml",
        "m/c.json",
        "m/sub/d.Yaml",
        "m/sub/x/g.yml",
    ]
    assert [loaded.file for loaded in read_manifests(["m"], recursive=False).items] == [
        "m/a.YML",
        "m/b.yaml",
        "m/c.json",
    ]


def test_a_file_that_is_named_may_have_any_suffix(here: Path):
    (here / "worker.txt").write_text(worker("w"))

    assert names(read_manifests(["worker.txt"])) == ["w"]


def test_a_file_reached_twice_is_read_once(here: Path):
    (here / "w.yaml").write_text(worker("w"))
    (here / "link.yaml").symlink_to("w.yaml")

    bundle = read_manifests(["w.yaml", Path("."), "./w.yaml"])

    assert told(bundle) == []
    assert [loaded.file for loaded in bundle.items] == ["w.yaml"]


def test_standard_input_is_a_source_among_others(here: Path):
    (here / "w.yaml").write_text(worker("file"))

    bundle = read_manifests(["-", "w.yaml", "-"], stdin=io.BytesIO(worker("piped").encode()))

    assert [(loaded.file, loaded.key[2]) for loaded in bundle.items] == [("<stdin>", "piped"), ("w.yaml", "file")]


def test_what_a_shell_passes_for_a_process_is_read():
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(worker("from-a-process").encode())
    try:
        bundle = read_manifests([f"/dev/fd/{reader}"])
    finally:
        os.close(reader)

    assert names(bundle) == ["from-a-process"]


# --- what cannot be read


def test_standard_input_that_is_not_there_is_told():
    assert told(read_manifests(["-"])) == ["<stdin>: error: there is no standard input to read"]


def test_a_missing_file_is_told_with_the_name_that_was_probably_meant(here: Path):
    (here / "agents.yaml").write_text(worker("w"))

    assert told(read_manifests(["agent.yaml", "far/away.yaml", "nul\0"])) == [
        "agent.yaml: error: there is no such file or directory (did you mean agents.yaml?)",
        "far/away.yaml: error: there is no such file or directory",
        "nul\0: error: no file can have this name",
    ]


def test_a_directory_without_manifests_is_told(here: Path):
    (here / "m" / "sub").mkdir(parents=True)
    (here / "m" / "notes.txt").write_text("hello")
    message = "m: error: there are no manifests (.yaml, .yml, .json) in this directory"

    assert told(read_manifests(["m"])) == [f"{message} (name another directory, or a file)"]
    assert told(read_manifests(["m"], recursive=False)) == [
        f"{message} (manifests in its sub-directories are not read)"
    ]


def test_pipes_sockets_and_devices_are_told_and_not_waited_for(here: Path):
    os.mkfifo("fifo.yaml")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.yaml")

        bundle = read_manifests([".", "/dev/null"])

    assert told(bundle) == [
        "./fifo.yaml: error: this is a named pipe, not a file with manifests (to read from a pipe, use '-')",
        "./socket.yaml: error: this is a socket, not a file with manifests (to read from a pipe, use '-')",
        "/dev/null: error: this is a device, not a file with manifests (to read from a pipe, use '-')",
    ]


def test_links_that_lead_nowhere_or_round_are_told(here: Path):
    (here / "good.yaml").write_text(worker("w"))
    (here / "loop.yaml").symlink_to("loop.yaml")
    (here / "lost.yaml").symlink_to("nothing.yaml")
    (here / "round").symlink_to(".")

    bundle = read_manifests(["."])

    assert names(bundle) == ["w"]
    assert told(bundle) == [
        "./loop.yaml: error: cannot be read: too many levels of symbolic links",
        "./lost.yaml: error: this link points to nothing",
        "./round: warning: a link to a directory is not followed (name it beside the others if it is meant)",
    ]


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that exists and cannot be read")
def test_a_file_that_cannot_be_read_is_told():
    assert told(read_manifests(["/proc/self/mem"])) == ["/proc/self/mem: error: cannot be read: input/output error"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_told(here: Path):
    (here / "w.yaml").write_text(worker("w"))
    (here / "w.yaml").chmod(0)

    assert told(read_manifests(["w.yaml"])) == ["w.yaml: error: cannot be read: permission denied"]


def test_a_file_that_is_too_large_is_told(here: Path):
    (here / "large.yaml").write_bytes(b"# filler\n" * 500_000)

    [line] = told(read_manifests(["large.yaml"]))

    assert line == (
        "large.yaml:1:1: error: the file has more than the 4,194,304 bytes that a manifest may have "
        "(split it, or keep large content outside the manifest)"
    )


def test_a_file_name_that_is_not_utf_8_can_still_be_shown(here: Path):
    name = os.fsdecode(b"caf\xe9.yaml")
    (here / name).write_text("kind: Nothing\n")

    [finding] = read_manifests(["."]).findings

    assert str(finding).encode().startswith(b"./caf\\udce9.yaml:1:7: error: unsupported kind")


def test_an_empty_file_in_a_directory_is_only_a_warning(here: Path):
    (here / "todo.yaml").write_text("# later\n")
    (here / "w.yaml").write_text(worker("w"))

    bundle = read_manifests(["."])
    bundle.raise_for_errors()

    assert told(bundle) == ["./todo.yaml:1:1: warning: there is no manifest here, only comments"]
    assert names(bundle) == ["w"]


# --- findings


def test_the_same_resource_in_two_files_is_told_with_both_places(here: Path):
    (here / "a.yaml").write_text("\n" + worker("w"))
    (here / "b.yaml").write_text(worker("v") + "---\n" + worker("w"))

    bundle = read_manifests(["a.yaml", "b.yaml"])

    assert names(bundle) == ["w", "v"]
    [line] = told(bundle)
    assert line == (
        "b.yaml:10:9: error: metadata.name: Worker/w in namespace 'default' is declared twice "
        "(it is first declared in a.yaml:2; remove or rename one of them)"
    )


def test_good_files_are_returned_beside_findings_about_bad_ones(here: Path):
    (here / "bad.yaml").write_text("a: [")
    (here / "good.yaml").write_text(worker("w"))

    bundle = read_manifests(["bad.yaml", "good.yaml", "missing.yaml"])

    assert names(bundle) == ["w"]
    assert [finding.file for finding in bundle.errors] == ["bad.yaml", "missing.yaml"]
    with pytest.raises(ManifestError, match="2 errors in 2 files"):
        bundle.raise_for_errors()


def test_findings_know_the_resource_they_speak_of():
    [finding] = parse_text("kind: Worker\nmetadata: {name: w}\nspec: {regoin: x}\n").findings

    assert (finding.kind, finding.name, finding.field) == ("Worker", "w", "spec.regoin")


def test_a_later_problem_is_placed_whatever_the_spelling_of_its_path():
    text = "kind: Agent\nmetadata: {name: a}\nspec:\n  modelRef:\n    nowhere\n  limits: {maxSteps: 3}\n"
    [loaded] = parse_text(text, "agents.yaml").items

    value = loaded.place(Problem(("spec", "model_ref"), "there is no such ModelEndpoint", severity="warning"))
    key = loaded.place(Problem(("spec", "model_ref"), "is not needed", at="key"))
    deep = loaded.place(Problem(("spec", "limits", "max_steps"), "too many"))
    absent = loaded.place(Problem(("spec", "memory", "ref"), "is not there"))

    assert str(value) == "agents.yaml:5:5: warning: spec.model_ref: there is no such ModelEndpoint"
    assert key.place == "agents.yaml:4:3"
    assert deep.place == "agents.yaml:6:22"
    assert absent.place == "agents.yaml:3:1"
    assert (value.kind, value.name) == ("Agent", "a")


def test_what_is_wrong_with_the_text_silences_what_it_would_mean_at_the_same_place():
    bundle = parse_text("kind: Agent\nmetadata: {name: a}\nspec: {model_ref: *missing, limits: {max_steps: .nan}}\n")

    assert [finding.message for finding in bundle.findings] == [
        "this alias refers to nothing in this document",
        ".nan is not a number that can be stored",
    ]
    assert bundle.items == []


def test_json_that_reaches_a_limit_is_not_tried_again_as_yaml():
    [finding] = parse_text('{"a": [' + "1, " * 300_000 + "1]}").findings

    # YAML would have counted the key as a value as well
    assert finding.place == "<stdin>:1:750002"
    assert finding.message == "the file holds more than 250,000 values"
