"""The whole description against a server with work in it: Schemathesis makes the requests, and judges the answers.

The same requests each time, a few for each operation. `FOLIOT_SCHEMATHESIS=200` makes up to so many of each sort, drawn
anew with every `FOLIOT_SEED`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as drawn_from
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation.drivers import CoverageGenerator
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.generation.overrides import Override
from schemathesis.schemas import APIOperation

from foliot.resources.kinds import KINDS
from foliot.server.app import described
from tests.server.contract_kit import Site, furnish, serving

PARTS = 24
SIZE = int(os.environ.get("FOLIOT_SCHEMATHESIS", "0"))
SEED = int(os.environ.get("FOLIOT_SEED", "0"))
COVERED, DRAWN = SIZE or 6, SIZE or 2
WITHIN = 60.0
MANIFEST = "application/yaml"
JUDGES = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
STRICT = (*JUDGES, "negative_data_rejection")
CONFIG = {
    # Who calls is said by a token that is good: without one, see test_namespaces.py.
    "generation": {"with-security-parameters": False},
    "checks": {
        # An address that is too long is refused before anything in it is looked at.
        "negative_data_rejection": {
            "expected-statuses": [400, 401, 403, 404, 405, 408, 409, 412, 413, 415, 422, 428, 431]
        }
    },
}
# Nearly everything is a good token id, so that a bad one is looked for at length.
HARD = ("/v1/tokens/{token_id}",)
# What is a name to another route of the same form, for methods that this one has not.
ALSO_READ = ("/v1/audit/verify", "/v1/agents/defaults")
# A name of each kind that is there, as contract_kit.py has it.
NAMED = {
    "agents": "greeter",
    "agent-systems": "desk",
    "model-endpoints": "talker",
    "tools": "lookup",
    "secrets": "hook",
    "memories": "notes",
    "mcp-servers": "things",
    "agent-policies": "careful",
    "agent-roles": "clerk",
    "tool-permissions": "pay",
    "task-schedules": "nightly",
    "task-webhooks": "push",
    "workers": "planned",
    "budgets": "plenty",
    "tasks": "greet",
}


def is_endless(path: str) -> bool:
    """Whether a stream has no end; it is read by a test of its own."""
    return path.endswith("/watch")


def is_of_all_kinds(path: str) -> bool:
    words = [*path.split("/"), "", ""]
    return words[2] in NAMED and words[4] in ("", "status")


def document() -> dict[str, Any]:
    """The description, with plainer manifests: to invent whole ones takes minutes, and is done in tests/resources."""
    described_ = json.loads(json.dumps(described()))
    schemas = described_["components"]["schemas"]
    name = {"type": "string", "pattern": "^[a-z0-9]{1,20}$"}
    metadata = {"type": "object", "required": ["name"], "properties": {"name": name, "namespace": name}}
    for kind in KINDS:
        plain = {
            "kind": {"const": kind},
            "metadata": metadata,
            "spec": {"type": "object"},
            "status": {"type": "object"},
        }
        schemas[f"{kind}Body"] = {"type": "object", "required": ["metadata"], "properties": plain}
        schemas[kind] = {"type": "object", "required": ["kind", "metadata"], "properties": plain}
    return described_


@pytest.fixture(scope="module")
def operations() -> list[APIOperation]:
    load_all_checks()
    schema = schemathesis.openapi.from_dict(document(), config=schemathesis.Config.from_dict(CONFIG))
    every = [each.ok() for each in schema.get_all_operations()]
    return [each for each in every if not is_endless(each.path)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving(tmp_path_factory.mktemp("site")) as site:
        furnish(site)
        yield site


@pytest.fixture(scope="module")
def judge(site: Site) -> Iterator[Judge]:
    with requests.Session() as session:
        session.trust_env = False
        yield Judge(site, session)


class Judge:
    """Sends cases, and has the answers looked at."""

    def __init__(self, site: Site, session: requests.Session) -> None:
        self.site = site
        self._session = session

    def send(self, case: Case, *, named: bool = False) -> schemathesis.Response:
        """With `named` the case speaks of something that is there, whatever was meant to be wrong with its path."""
        operation = case.operation
        if named:
            self._name(case)
        if isinstance(case.query, dict) and "wait" in case.query:
            case.query["wait"] = 0  # it would be waited for
        answer = case.call(self.site.url, session=self._session, headers=self.site.headers, timeout=WITHIN)
        # The reader of manifests forgives more than the schema asks for.
        forgiving = MANIFEST in operation.definition.raw.get("requestBody", {}).get("content", {})
        names = [*(JUDGES if forgiving or named else STRICT)]
        if operation.path in ALSO_READ:
            names = [name for name in names if name not in ("unsupported_method", "allow_header_conformance")]
        checks = CHECKS.get_by_names(names)
        case.validate_response(answer, checks=checks, headers=self.site.headers)
        return answer

    def _name(self, case: Case) -> None:
        """Put a name that is there into the path, unless it would be gone afterwards."""
        words = [*case.path.split("/"), "", "", ""]
        kind = words[3] if words[2] == "work" else words[2]
        if not case.path_parameters or case.method == "DELETE":
            return
        known = {
            "runs": self.site.runs[0],
            "approvals": self.site.approvals[0],
            "tool-approvals": self.site.approvals[0],
        }
        for parameter in ("name", "run_id"):
            if parameter in case.path_parameters and (there := known.get(kind) or NAMED.get(kind)):
                case.path_parameters[parameter] = there


def covering(operation: APIOperation) -> Iterator[Case]:
    """Each parameter and member at its bounds, beyond them, missing, or of another type; methods that there are not."""
    return iter(
        CoverageGenerator(
            operation=operation,
            generation_modes=[*GenerationMode],
            generation_config=operation.schema.config.generation_for(operation=operation, phase="coverage"),
            auth_storage=None,
            override=Override(),
            feedback=FeedbackSources(),
            hooks=None,
        )
    )


def drawing(operation: APIOperation, mode: GenerationMode, judge: Judge) -> None:
    count = 0

    @drawn_from(SEED)
    @settings(
        max_examples=DRAWN,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Case) -> None:
        nonlocal count
        count += 1
        judge.send(case, named=bool(count % 2))

    try:
        run()
    except Unsatisfiable:  # nothing about the operation can be wrong
        assert mode is GenerationMode.NEGATIVE


@pytest.mark.parametrize("part", range(PARTS))
def test_every_operation_answers_as_it_is_described(part: int, operations: list[APIOperation], judge: Judge) -> None:
    for number, operation in enumerate(operations[part::PARTS]):
        # The routes of all kinds are the same code for each of them.
        one_of_many = (is_of_all_kinds(operation.path) or operation.path in HARD) and not SIZE
        for index, case in enumerate(islice(covering(operation), COVERED // 3 if one_of_many else COVERED)):
            judge.send(case, named=bool(index % 2))
        if not one_of_many or number % 10 == 0:
            modes = [*GenerationMode]
            for mode in modes if SIZE else modes[number % 2 :][:1]:
                drawing(operation, mode, judge)
