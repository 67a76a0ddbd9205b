"""A dry run answers what the real run would, whatever is asked, and changes nothing."""

from __future__ import annotations

import os
import random
from typing import Any, Final

import httpx2 as httpx
import pytest

from foliot.runtime.runtime import Runtime

# Only the real run can say when it was, and what the store gave it.
VOLATILE: Final = ("resourceVersion", "uid", "createdAt", "updatedAt")
SEEDS: Final = [1, 2, 3]
STEPS: Final = 120
NAMES: Final = ("a", "b", "c")
PATHS: Final = {
    "Secret": "/v1/secrets",
    "Agent": "/v1/agents",
    "ModelEndpoint": "/v1/model-endpoints",
    "AgentSystem": "/v1/agent-systems",
    "AgentRole": "/v1/agent-roles",
    "Tool": "/v1/tools",
    "ReferenceGrant": "/v1/reference-grants",
    "Task": "/v1/tasks",
}


class Requests:
    """Random writes: good ones, stale ones, wrong ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.versions: list[str] = ["0", "1", "999999"]

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def spec(self, kind: str) -> dict[str, Any]:
        pick = self.pick
        match kind:
            case "Secret":
                value = pick("***", "dGV4dA==", "b3RoZXI=", "!")
                values = pick({"k": value}, {"j": "***", "k": value})
                plain = {"stringData": {"k": pick("text", "***", "")}}
                return pick({"data": values}, plain, {"data": values, "hosts": ["x"]})
            case "Agent":
                key = pick("model_ref", "modelRef")
                more = pick({}, {}, {"tools": ["a"]}, {"limits": {"maxSteps": pick(1, 2, -1)}}, {"prmpt": "x"})
                return {key: pick("a", "b", "team/paid"), "prompt": pick("x", "y"), **more}
            case "ModelEndpoint":
                return {"provider": "mock", "default_model": pick("m", "n"), **pick({}, {"timeouts": {"total": "5s"}})}
            case "AgentSystem":
                graph = {"a": {"edges": [{"to": pick("b", "zz")}]}}
                return {"agents": ["a", "b"], "graph": graph, **pick({}, {"maxTurns": 3})}
            case "Tool":
                schema = pick({}, {"inputSchema": {"type": "object"}})
                return {"endpoint": "http://x.example", "risk_level": pick("low", "high"), **schema}
            case "Task":
                return {pick("agent", "system"): pick(*NAMES, "zz"), "input": {"n": pick("1", "2")}}
            case "ReferenceGrant":
                return {"from": [{"namespace": "default"}], "to": [{"kind": "ModelEndpoint"}]}
            case _:
                return {"permissions": [pick("tool:a:invoke", "tool:b:invoke")]}

    def manifest(self, kind: str, name: str) -> dict[str, Any]:
        labels = self.pick({}, {"team": "x"}, {"team": "y"}, {"no good": "x"})
        annotations = self.pick({}, {}, {"note": "n"}, {"foliot.dev/managed-by": "apply"})
        version = self.pick({}, {}, {}, {"resourceVersion": self.version()})
        metadata = {"name": name, "labels": labels, "annotations": annotations, **version}
        return {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": metadata, "spec": self.spec(kind)}

    def patch(self, kind: str) -> dict[str, Any]:
        spec = self.spec(kind)
        for key in list(spec):
            if self.random.random() < 0.3:
                spec[key] = None
        return self.pick(
            {"spec": spec},
            {"metadata": {"labels": {"team": self.pick("x", "y", None, "z z")}}},
            {"spec": {"modelRef": self.pick(None, "a"), "model_ref": "b"}},
            {"spec": {"modelReff": None}},
            {"metadata": {"name": "other"}},
            {"metadata": {"resourceVersion": self.version(), "labels": {"team": "x"}}},
            {"spec": {"limits": self.pick(None, {"maxSteps": self.pick(None, 5)})}},
            {"spec": {"graph": {"a": self.pick(None, {"next": "b"})}, "maxTurns": self.pick(None, 2)}},
        )

    def version(self) -> str:
        return self.random.choice(self.versions[-4:])

    def conditions(self) -> dict[str, str]:
        return self.pick({}, {}, {"If-Match": f'"{self.version()}"'}, {"If-Match": "*"}, {"If-None-Match": "*"})

    def next(self) -> tuple[str, str, dict[str, Any], dict[str, str], Any]:
        """Method, path, query, headers, body."""
        kind, name = self.pick(*PATHS), self.pick(*NAMES)
        path, query = PATHS[kind], self.pick({}, {}, {}, {"namespace": "team"})
        match self.pick("POST", "POST", "PUT", "PUT", "PATCH", "PATCH", "DELETE", "STATUS", "APPLY", "APPLY"):
            case "POST":
                return "POST", path, query, self.conditions(), self.manifest(kind, name)
            case "PUT":
                return "PUT", f"{path}/{name}", query, self.conditions(), self.manifest(kind, name)
            case "PATCH":
                return "PATCH", f"{path}/{name}", query, self.conditions(), self.patch(kind)
            case "DELETE":
                return "DELETE", f"{path}/{name}", query, self.conditions(), None
            case "STATUS":
                status = {"phase": self.pick("Ready", "Error", 5), "lastError": self.pick("", "x")}
                return "PUT", f"{path}/{name}/status", query, self.conditions(), {"status": status}
            case _:
                items = [self.manifest(self.pick(*PATHS), self.pick(*NAMES)) for _ in range(self.pick(1, 2, 4))]
                prune = self.pick({}, {}, {"prune": "team=x"}, {"prune": "team in (x, y)"})
                return "POST", "/v1/apply", {**query, **prune}, {}, {"kind": "List", "items": items}


def _told(answer: httpx.Response) -> Any:
    """What an answer says, without what only a real run can say."""
    body = answer.json() if answer.content else None
    if isinstance(body, dict) and body.get("kind") == "Task" and answer.is_success:
        return answer.status_code, body["metadata"]["name"]  # how work stands is known once it was accepted
    if isinstance(body, dict) and "request_id" in body:
        body = {key: value for key, value in body.items() if key not in ("request_id", "instance")}
    return answer.status_code, _settled(body), answer.headers.get("warning")


def _settled(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {k: _settled(v) for k, v in value.items() if k not in VOLATILE}
        if kept.get("kind") == "Secret" and "data" in kept.get("spec", {}):
            kept["spec"] = {**kept["spec"], "data": sorted(kept["spec"]["data"])}
        return kept
    return [_settled(item) for item in value] if isinstance(value, list) else value


def _seeds() -> list[int]:
    if os.environ.get("FOLIOT_CHAOS") != "1":
        return SEEDS
    start = int(os.environ.get("FOLIOT_CHAOS_SEED", random.randrange(10**9)))
    return list(range(start, start + 40))


@pytest.mark.parametrize("seed", _seeds())
async def test_a_dry_run_answers_what_the_real_run_does(seed: int, http: httpx.AsyncClient, runtime: Runtime) -> None:
    """FOLIOT_CHAOS=1 FOLIOT_CHAOS_SEED=<seed> plays a seed again."""
    requests = Requests(seed)
    differing: list[str] = []
    for step in range(STEPS):
        method, path, query, headers, body = requests.next()
        before = await runtime.inside.resources.revision()
        dry = await http.request(method, path, params={**query, "dryRun": "true"}, headers=headers, json=body)
        assert await runtime.inside.resources.revision() == before, "a dry run wrote"
        real = await http.request(method, path, params=query, headers=headers, json=body)
        if (version := real.headers.get("etag", "").strip('"')).isdecimal():
            requests.versions.append(version)
        if _told(dry) != _told(real):
            asked = f"{step}: {method} {path} {query} {headers} {body}"
            differing.append(f"{asked}\n  dry  {_told(dry)}\n  real {_told(real)}")
    assert not differing, f"seed {seed}: {len(differing)} of {STEPS} differ\n" + "\n".join(differing[:8])


AGENT = {"kind": "Agent", "metadata": {"name": "a"}, "spec": {"model_ref": "m", "limits": {"max_steps": 3}}}


async def test_a_patch_in_camel_case_changes_the_field_it_means(http: httpx.AsyncClient) -> None:
    await http.post("/v1/agents", json=AGENT)

    answer = await http.patch("/v1/agents/a", json={"spec": {"modelRef": "other", "limits": {"maxSteps": None}}})

    assert answer.status_code == 200, answer.text
    assert answer.json()["spec"]["model_ref"] == "other"
    assert answer.json()["spec"]["limits"] == {"max_steps": 10}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"modelRef": "x", "model_ref": "y"}, "given twice: as modelRef and as model_ref"),
        ({"modelRef": None, "model_ref": "y"}, "given twice: as modelRef and as model_ref"),
        ({"modelReff": None}, 'unknown field \\"modelReff\\"'),
        ({"limits": {"maxStep": None}}, "did you mean max_steps?"),
    ],
)
async def test_a_patch_that_would_lose_something_is_refused(
    http: httpx.AsyncClient, spec: dict[str, Any], said: str
) -> None:
    await http.post("/v1/agents", json=AGENT)

    for query in ({}, {"dryRun": "true"}):
        answer = await http.patch("/v1/agents/a", json={"spec": spec}, params=query)
        assert answer.status_code == 422
        assert said in answer.text


async def test_names_that_people_chose_are_no_fields_of_a_patch(http: httpx.AsyncClient) -> None:
    graph = {"maxTurns": {"next": "b"}, "b": {}}
    spec = {"agents": ["maxTurns", "b"], "graph": graph}
    made = await http.post("/v1/agent-systems", json={"metadata": {"name": "s"}, "spec": spec})
    assert made.status_code == 201, made.text

    answer = await http.patch("/v1/agent-systems/s", json={"spec": {"graph": {"maxTurns": None, "none": None}}})

    assert answer.json()["spec"].get("graph", {}).get("maxTurns") is None


async def test_the_mask_in_a_new_secret_is_refused_alike(http: httpx.AsyncClient) -> None:
    secret = {"kind": "Secret", "metadata": {"name": "s"}, "spec": {"data": {"k": "***"}}}
    for path in ("/v1/secrets", "/v1/apply"):
        answers = [await http.post(path, json=secret, params=query) for query in ({"dryRun": "true"}, {})]
        assert [answer.status_code for answer in answers] == [422, 422]
        assert all("none is stored that it could stand for" in answer.text for answer in answers)
