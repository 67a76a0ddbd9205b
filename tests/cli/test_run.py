"""`foliot run` in process: what is typed, what is applied, what is printed where, and the exit code."""

from __future__ import annotations

import json

import pytest

SHOP = """\
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: shop-model}
spec:
  provider: scripted
  default_model: scripted
  pricing: {input: 3, output: 15}
  script:
    - say: Let me look.
      call: {price: {item: "{input}"}}
    - say: "It costs {last_result}."
---
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: price}
spec: {type: function, function: "NAME:price", effect: read}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: shop}
spec: {model_ref: shop-model, tools: [price], limits: {max_steps: 4}}
"""
TOOLS = """\
def price(item: str) -> str:
    print("looking", item)
    return f"5 euros for the {item}"
"""


@pytest.fixture
def shop(tmp_path, home, monkeypatch):
    """A manifest beside its tools, in a module of its own, in the current folder."""
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"shop_tools_{abs(hash(str(tmp_path)))}"
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / f"{name}.py").write_text(TOOLS)
    manifest = folder / "shop.yaml"
    manifest.write_text(SHOP.replace("NAME", name))
    monkeypatch.chdir(folder)
    yield manifest
    sys.modules.pop(name, None)


def run_id_of(said) -> str:
    return next(line for line in said.err.splitlines() if "  run " in line).split("  run ")[1].strip()


def test_the_answer_is_all_there_is_on_stdout(foliot, shop):
    said = foliot("run", shop, "kettle")

    assert said.code == 0
    assert said.out == "It costs 5 euros for the kettle.\n"


def test_the_progress_is_plain_lines_on_stderr(foliot, shop):
    said = foliot("run", shop, "kettle")

    assert "\x1b" not in said.err
    lines = said.err.splitlines()
    assert lines[0].startswith("applied ")
    assert lines[0].endswith("3 resources (3 created)")
    assert lines[1].startswith("shop  run ")
    assert lines[2] == "  › kettle"
    assert "step 1" in lines
    assert "  │ Let me look." in lines
    assert "    looking kettle" in lines  # what a tool prints is no part of the answer
    assert any(line.startswith('  ✓ price item="kettle"  ') for line in lines)
    assert "    5 euros for the kettle" in lines
    assert lines[-1].startswith("✓ succeeded  2 steps · 1 tool call · ")
    assert "$0.00" in lines[-1]
    assert lines[-1].endswith(run_id_of(said))


def test_a_folder_can_be_run_and_its_tools_are_found_from_anywhere(foliot, shop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert foliot("run", "-f", "shop", "kettle").out == "It costs 5 euros for the kettle.\n"


def test_an_agent_that_was_applied_runs_by_name_with_tools_from_the_current_folder(foliot, shop):
    assert foliot("apply", "-f", shop).code == 0

    for name in ("shop", "default/shop", "agent/shop"):
        assert foliot("run", name, "kettle", "-q").out == "It costs 5 euros for the kettle.\n"


def test_manifests_can_be_given_with_dash_f(foliot, shop):
    assert foliot("run", "-f", shop, "kettle", "-q").out == "It costs 5 euros for the kettle.\n"
    assert foliot("run", "-f", shop, "shop", "kettle", "-q").out == "It costs 5 euros for the kettle.\n"


@pytest.mark.parametrize("words", [("-",), ()])
def test_the_input_can_come_through_a_pipe(foliot, shop, words):
    assert foliot("run", shop, *words, "-q", stdin="kettle").out == "It costs 5 euros for the kettle.\n"


def test_quiet_prints_the_answer_and_nothing_else(foliot, shop):
    said = foliot("run", shop, "kettle", "-q")

    assert said.out == "It costs 5 euros for the kettle.\n"
    assert said.err == "    looking kettle\n"


def test_json_lines_are_events_pieces_and_the_result(foliot, shop):
    said = foliot("run", shop, "kettle", "--json")

    lines = [json.loads(line) for line in said.out.splitlines()]
    recorded = [line for line in lines if "seq" in line]
    assert [line["seq"] for line in recorded] == list(range(1, len(recorded) + 1))
    assert (recorded[0]["type"], recorded[-1]["type"]) == ("run.created", "run.succeeded")
    assert all(set(line) == {"type", "run", "seq", "at", "data"} for line in recorded)
    pieces = [line for line in lines if line["type"] == "text.delta"]
    assert all(set(line) == {"type", "run", "step", "data"} for line in pieces)
    assert "".join(line["data"]["text"] for line in pieces) == "Let me look.It costs 5 euros for the kettle."
    assert lines[-1]["type"] == "result"
    assert lines[-1]["data"]["output"] == "It costs 5 euros for the kettle."
    assert lines[-1]["data"]["phase"] == "succeeded"


def test_the_same_id_again_gives_the_same_run_and_does_nothing(foliot, shop):
    first = foliot("run", shop, "kettle", "--id", "order-17")
    again = foliot("run", shop, "kettle", "--id", "order-17")

    assert (again.code, again.out) == (0, first.out)
    assert "had ended already (succeeded)" in again.err
    assert "looking" not in again.err
    assert foliot("run", shop, "--id", "order-17", "-q").out == first.out


def test_an_id_belongs_to_one_piece_of_work(foliot, shop):
    foliot("run", shop, "kettle", "--id", "order-17")

    said = foliot("run", shop, "toaster", "--id", "order-17")

    assert said.code == 4
    assert "was started with another input" in said.err


def test_labels_are_kept_with_the_run(foliot, shop):
    foliot("run", shop, "kettle", "--label", "team=a", "--label", "why=test")

    (document,) = json.loads(foliot("runs", "-o", "json").out)["items"]
    labels = {name: value for name, value in document["metadata"]["labels"].items() if "/" not in name}
    assert labels == {"team": "a", "why": "test"}


def test_a_namespace_has_its_own_agents_and_runs(foliot, shop):
    assert foliot("run", shop, "kettle", "-n", "team-a").code == 0

    assert foliot("runs", "-o", "name").out == ""
    assert foliot("runs", "-n", "team-a", "-o", "name").out != ""
    assert foliot("run", "shop", "kettle").code == 3


def test_a_failed_run_gives_the_reason_and_the_way_to_the_story(foliot, shop):
    script = "script: [{call: {price: {item: x}}, repeat: 9}]"
    text = shop.read_text()
    shop.write_text(text[: text.index("script:")] + script + text[text.index("\n---") :])

    said = foliot("run", shop, "kettle")

    assert said.code == 1
    assert said.out == ""
    assert "error: the limit of 4 steps is reached" in said.err
    assert f"hint: foliot why {run_id_of(said)}" in said.err


# --- what people get wrong ---------------------------------------------------------------------------------------


def test_a_wrong_name_is_told_with_a_near_one(foliot, shop):
    foliot("apply", "-f", shop)

    said = foliot("run", "shpo", "kettle")

    assert (said.code, said.out) == (3, "")
    assert "Agent/shpo" in said.err
    assert "did you mean shop?" in said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "needs to know which agent"),
        (("shop.yaml",), "There is no input"),
        (("shop.yaml", ""), "The input is empty"),
        (("shop.yaml", "  "), "The input is empty"),
        (("shop.yaml", "two", "texts"), "Put it in quotes"),
        (("shop.yaml", "x", "--id", ""), "cannot be the id of a run"),
        (("shop.yaml", "x", "--id", "a b"), "cannot be the id of a run"),
        (("shop.yaml", "x", "--id", "../x"), "cannot be the id of a run"),
        (("shop.yaml", "x", "--label", "x"), "is not a label"),
    ],
)
def test_wrong_usage_is_told_and_starts_nothing(foliot, shop, words, message):
    said = foliot("run", *words)

    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert foliot("runs", "-o", "name").out == ""


def test_a_file_that_is_not_there_is_named(foliot, shop):
    said = foliot("run", "nothing.yaml", "x")

    assert said.code == 3
    assert "nothing.yaml: error: there is no such file" in said.err


@pytest.mark.parametrize("path", ["/no/such/folder", "./shop-2", "../shop-2"])
def test_a_path_that_is_not_there_is_taken_for_a_path(foliot, shop, path):
    said = foliot("run", path, "x")

    assert said.code == 3
    assert f"{path}: error: there is no such file or directory" in said.err


def test_a_manifest_without_an_agent_and_one_with_two(foliot, shop, team):
    model = shop.parent / "model.yaml"
    model.write_text(SHOP.split("---")[0])
    assert "There is no Agent in model.yaml" in foliot("run", "model.yaml", "x").err
    assert foliot("get", "model-endpoint/shop-model").code == 3  # what was typed is looked at before it is applied

    said = foliot("run", team, "x")

    assert said.code == 2
    assert "declares 2 agents: writer, editor" in said.err
    assert foliot("run", team, "--agent", "writer", "x", "-q").out == "hello\n"


def test_a_tool_whose_module_is_missing_is_told_before_anything_runs(foliot, shop):
    shop.write_text(shop.read_text().replace(":price", ":prize"))

    said = foliot("run", shop, "x")

    assert (said.code, said.out) == (5, "")
    assert "the function of tool 'price' cannot be imported" in said.err
    assert "run " not in said.err.splitlines()[1]
    assert foliot("runs", "-o", "name").out == ""


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def price(item: str) -> str\n", "SyntaxError: expected ':'"),
        ("price = missing\n", "NameError: name 'missing' is not defined"),
        ("import sys\nsys.exit('no key')\n", "SystemExit: no key"),
        ("def price(*items): ...\n", "price() cannot be a tool"),
    ],
)
def test_a_tool_whose_module_is_broken_is_told_as_that(foliot, shop, source, why):
    next(shop.parent.glob("*.py")).write_text(source)

    said = foliot("run", shop, "x")

    assert (said.code, said.out) == (5, "")
    assert why in said.err
    assert "Sorry" not in said.err


def test_a_model_endpoint_or_tool_that_is_gone_is_named(foliot, shop):
    foliot("apply", "-f", shop)
    foliot("delete", "tool/price")
    said = foliot("run", "shop", "x")
    assert said.code == 3
    assert "price" in said.err

    foliot("apply", "-f", shop)
    foliot("delete", "model-endpoint/shop-model")
    said = foliot("run", "shop", "x")
    assert said.code == 3
    assert "shop-model" in said.err


def test_input_that_is_not_text_is_refused(foliot, shop):
    said = foliot("run", shop, "-", stdin=b"\xff\xfe")

    assert said.code == 2
    assert "not UTF-8" in said.err


def test_an_answer_cannot_steer_a_terminal_but_reaches_a_pipe_whole(foliot, shop):
    shop.write_text(
        shop.read_text().replace("Let me look.", "\\e[31mred").replace("say: \\e", 'say: "\\e').replace("mred", 'mred"')
    )

    said = foliot("run", shop, "kettle")

    assert said.code == 0
    assert "\x1b" not in said.err
    assert "[31mred" in said.err


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PROMPT = """\
kind: ModelEndpoint
metadata: {name: m}
spec: {provider: scripted, script: {turns: [{say: '{"city": "Oslo"}'}], loop: true}}
---
kind: Agent
metadata: {name: clerk}
spec: {model_ref: m, tools: [list_tools]}
"""


def test_a_schema_asks_once_for_json_without_tools(foliot, home, tmp_path):
    (tmp_path / "a.yaml").write_text(PROMPT)
    (tmp_path / "city.json").write_text(json.dumps(CITY))
    said = foliot("run", tmp_path / "a.yaml", "Where?", "--schema", tmp_path / "city.json", "-q")
    assert (said.code, json.loads(said.out)) == (0, {"city": "Oslo"})


@pytest.mark.parametrize(("text", "told"), [("{", "parsing schema"), ("{}", "top-level type"), (None, "no such")])
def test_a_schema_that_is_none_is_told_before_anything_runs(foliot, home, tmp_path, text, told):
    if text is not None:
        (tmp_path / "city.json").write_text(text)
    said = foliot("run", "clerk", "Where?", "--schema", tmp_path / "city.json")
    assert said.code != 0
    assert told in said.err
    assert "Sorry" not in said.err
