"""The secrets that senders of a webhook sign with: all that are valid now."""

from __future__ import annotations

from foliot.engine.references import References
from foliot.errors import FoliotError, NotFound, SecretError, SecretMissing
from foliot.resources.references import Target
from foliot.store.base import Key, ResourceStore
from foliot.tools.secrets import DEFAULT_KEY, EnvironmentSecrets, SecretRef, takes_webhooks
from foliot.work.triggers.declared_webhook import Webhook
from foliot.work.triggers.signatures import weakness_of


async def signing_secrets(webhook: Webhook, store: ResourceStore, environment: EnvironmentSecrets) -> list[bytes]:
    """The values, in the order of the references. One that is missing, or so short that anybody could sign with it, is
    left out as long as there is another.

    A reference without a key means the first key of the Secret. Raises `SecretMissing` when what is declared is at
    fault, `SecretError` when this machine is; neither ever holds a value.
    """
    found: list[bytes] = []
    problem = "the webhook names no secret"
    fault: type[SecretError] = SecretMissing
    for text in webhook.secret_refs:
        try:
            value = await _value(text, webhook, store, environment)
        except FoliotError as error:
            problem = error.message
            if isinstance(error, SecretError) and not isinstance(error, SecretMissing):
                fault = SecretError
            continue
        if (weak := weakness_of(webhook.scheme, value)) is not None:
            problem = f"the secret {text!r} cannot be used: {weak}"
        else:
            found.append(value)
    if not found:
        raise fault(problem)
    return found


async def _value(text: str, webhook: Webhook, store: ResourceStore, environment: EnvironmentSecrets) -> bytes:
    ref = SecretRef.parse(text, webhook.key.namespace)
    await References(store).allow(webhook.origin, Target("Secret", ref.namespace, ref.name))
    chosen = text.partition(":")[2].strip()
    try:
        values = await store.reveal(Key("Secret", ref.namespace, ref.name))
    except NotFound:
        if not webhook.by_operator:  # whether there is such a variable is not told
            raise SecretMissing(
                f"there is no Secret {ref.namespace}/{ref.name}; variables of the environment are only for webhooks "
                "that the operator of this installation declared"
            ) from None
        return (await environment.resolve(ref)).encode()
    if not webhook.by_operator and not takes_webhooks(values.hosts):
        raise SecretMissing(f"the Secret {ref.namespace}/{ref.name} is bound to hosts, and not for webhooks")
    key = chosen or (DEFAULT_KEY if not values else min(values))
    value = values.get(key, b"")
    if not value.strip():
        raise SecretMissing(f"secret {ref.namespace}/{ref.name} has no value under {key!r}")
    return value
