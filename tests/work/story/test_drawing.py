"""Graphs as text: every agent once, every edge once, loops and joins without end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foliot.kernel.graph.plan import Edge, Join, Node, Plan
from foliot.work.views.drawing import as_data, dot, edge_label, mermaid, rows_of, tree
from foliot.work.views.story import JoinView, NodeView

LOOP = Plan(
    "default/x",
    {
        "lead": Node((Edge("left", {"route": "go"}), Edge("right"), Edge("end", "otherwise"))),
        "left": Node((Edge("lead"),)),
        "right": Node((Edge("lead", on_failure="skip"),)),
        "end": Node(join=Join("wait_for_all", ("lead",), 1)),
    },
    ("lead",),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(1, 8))
    names = [f"n{number}" for number in range(count)]
    edges = {name: draw(st.lists(st.sampled_from(names), unique=True, max_size=count)) for name in names}
    entries = draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    return Plan("default/x", {name: Node(tuple(map(Edge, edges[name]))) for name in names}, tuple(entries))


@given(plans())
def test_every_agent_is_drawn_once_and_every_edge_once(plan: Plan) -> None:
    rows = rows_of(plan)

    assert sorted(row.name for row in rows if not row.back) == sorted(plan.nodes)
    edges = sum(len(node.edges) for node in plan.nodes.values())
    assert sum(bool(row.stem) for row in rows) == edges


def test_a_loop_points_back_and_conditions_stand_at_their_edges() -> None:
    nodes = [
        NodeView("lead", "running", 2, seconds=1.5),
        NodeView("left", "succeeded", 1, seconds=0.25, text="it is\nthere"),
        NodeView("right", "failed", 1, 1, 0.5),
        NodeView("end", "idle", join=JoinView("end", 1, 2, ("lead",), ("left",), {}, 0.0, None)),
    ]

    assert tree(LOOP, nodes, 10.0) == [
        "● lead  running · 1.5s · 2 times",
        "├─▶ ✓ left  [route=go]  succeeded · 0.2s  it is there",
        "│   └─▶ ↩ lead",
        "├─▶ ✗ right  failed · 0.5s",
        "│   └─▶ ↩ lead  [on failure skip]",
        "└─▶ ○ end  [otherwise]  1 of 2 arrived, waits for left",
    ]


def test_texts_cannot_break_out_of_the_quotes_of_a_drawing() -> None:
    plan = Plan("default/x", {"a": Node((Edge("a", 'x == "1"'),))}, ("a",))
    nodes = [NodeView("a", "idle")]

    assert "|\"x == '1'\"|" in mermaid(plan, nodes, 0.0)
    assert '[label="x == \\"1\\""]' in dot(plan, nodes, 0.0)


def test_data_has_the_edges_as_declared() -> None:
    data = as_data(LOOP, [NodeView(name, "idle") for name in LOOP.nodes])

    assert data["entries"] == ["lead"]
    assert data["edges"][0] == {"from": "lead", "to": "left", "when": {"route": "go"}, "on_failure": "fail"}
    assert edge_label(Edge("x", {"a": "1"}, "forward")) == "a=1, on failure forward"
