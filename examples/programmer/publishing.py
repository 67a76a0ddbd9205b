"""The tool that publishes a result. It runs in the sandbox, whose only way out is the broker."""

from __future__ import annotations

import json
import os
import urllib.request


def publish(title: str, text: str) -> str:
    """Publish a result, for everybody to see.

    Args:
        title: What it is.
        text: The result.
    """
    body = json.dumps({"title": title, "text": text}).encode()
    request = urllib.request.Request(os.environ["PUBLISH_URL"], body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode()
