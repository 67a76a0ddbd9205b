from __future__ import annotations

from typing import Any

from foliot.kernel.messages import Message, ModelRequest, Text
from foliot.models.config import Timeouts
from foliot.models.routing.endpoints import EndpointConfig, endpoint_config
from foliot.models.routing.pricing import Pricing
from foliot.models.routing.router import Router
from foliot.resources.rates import RateLimits
from foliot.resources.validate import validate_document


def declare(spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    document, problems = validate_document(
        {
            "apiVersion": "foliot.dev/v1",
            "kind": "ModelEndpoint",
            "metadata": {"name": "main", "namespace": "shop", **metadata},
            "spec": spec,
        }
    )
    assert document is not None, problems
    return document


def test_everything_that_is_declared_arrives():
    endpoint = endpoint_config(
        declare(
            {
                "provider": "openai",
                "default_model": "gpt-4o",
                "options": {"Organization": "o1"},
                "fallbacks": ["spare", "other/big"],
                "rate_limit": {"requests": 100, "per": "10s", "tokens": 5000, "concurrency": 4},
                "timeouts": {"total": "2m"},
                "pricing": {"input": 1, "output": 2},
            },
            uid="u1",
            generation=3,
        ),
        api_key="k",
        secret_version="7",
    )

    assert (endpoint.name, endpoint.version, endpoint.secret_version) == ("shop/main", "u1.3", "7")
    assert (endpoint.gateway.provider, endpoint.gateway.model, endpoint.gateway.api_key) == ("openai", "gpt-4o", "k")
    assert endpoint.gateway.options == {"organization": "o1"}
    assert endpoint.gateway.timeouts == Timeouts(total=120.0)
    assert endpoint.limits == RateLimits(100, 5000, 10.0, 4)
    assert endpoint.pricing == Pricing(1, 2)
    assert endpoint.fallbacks == ("shop/spare", "other/big")


def test_a_new_status_keeps_the_gateway_and_a_new_definition_replaces_it():
    spec = {"provider": "scripted", "script": ["hi"]}
    before = endpoint_config(declare(spec, generation=1, resourceVersion="10"))
    status = endpoint_config(declare(spec, generation=1, resourceVersion="11"))
    changed = endpoint_config(declare(spec, generation=2, resourceVersion="12"))
    assert status.same_gateway(before)
    assert not changed.same_gateway(before)


async def test_a_declared_scripted_endpoint_answers():
    declared: EndpointConfig = endpoint_config(declare({"provider": "scripted", "script": [{"say": "hello {input}"}]}))
    router = Router({"main": declared}.__getitem__)
    answer = await router.respond("main", ModelRequest("", (Message("user", (Text("you"),)),)))
    await router.close()
    assert (answer.message.text, answer.endpoint) == ("hello you", "shop/main")
