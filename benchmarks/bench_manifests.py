"""How fast manifests are read and validated, beside what PyYAML alone needs to load the same text.

    python benchmarks/bench_manifests.py [--count 1000] [--rounds 5]

The ratio is to `yaml.load_all` with libyaml's safe loader in the same process: no positions, no validation. It says
more than the seconds on a machine that does other things as well.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml
from verdict import Verdict

from foliot.resources.reader import Bundle, parse_text, read_manifests
from foliot.resources.syntax.yaml import parse_yaml
from foliot.resources.syntax.yaml_text import dump_yaml

VERDICT = Verdict()

GOAL_SECONDS = 1.0
PLAIN, ONE_FILE, MANY_FILES = "yaml.load_all, C safe loader", "read one file of all", "read a file for each"

AGENT = """\
apiVersion: foliot.dev/v1
kind: Agent
metadata:
  name: agent-{number}
  labels:
    team: research
    tier: gold
spec:
  model_ref: main
  prompt: |
    You read sources and answer in three sentences.
    Name the sources. Say so when there are none.
  tools:
    - web-search
    - calculator
  roles: [reader, analyst]
  memory:
    ref: notes
    allow: [read, write, search]
  execution:
    profile: dynamic
    duplicate_tool_call_policy: deny
  limits:
    max_steps: 12
    timeout: 90s
"""
TOOL = """\
apiVersion: foliot.dev/v1
kind: Tool
metadata:
  name: tool-{number}
  labels: {{team: research}}
spec:
  type: http
  endpoint: https://tools.example.com/search/{number}
  description: Search the index and return the ten best passages.
  input_schema:
    type: object
    properties:
      query: {{type: string}}
      limit: {{type: integer, minimum: 1}}
    required: [query]
  operation_classes: [read]
  risk_level: medium
  runtime:
    timeout: 20s
    retry:
      max_attempts: 3
      backoff: 500ms
      jitter: full
  auth:
    profile: bearer
    secretRef: search-token
"""
TASK = """\
apiVersion: orloj.dev/v1
kind: Task
metadata:
  name: task-{number}
  annotations:
    example.com/ticket: "{number}"
spec:
  system: newsroom
  mode: run
  input:
    topic: The harbour extension, phase {number}
    audience: residents
  priority: high
  max_turns: 4
  retry:
    max_attempts: 3
    backoff: 5s
  messageRetry:
    maxAttempts: 2
    backoff: 1s
    jitter: equal
  requirements:
    region: eu-central
    gpu: false
"""


def texts(count: int) -> list[str]:
    """`count` manifests of three kinds, 20 to 30 lines each."""
    templates = (AGENT, TOOL, TASK)
    return [templates[number % 3].format(number=number) for number in range(count)]


def fastest(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The best time of each. All take turns in every round, so that a busy moment does not fall on one row alone."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - begun)
    return best


def clean(bundle: Bundle, count: int) -> Bundle:
    bundle.raise_for_errors()
    if len(bundle.items) != count:
        raise SystemExit(f"expected {count} resources, got {len(bundle.items)}")
    return bundle


def main() -> int:
    parser = argparse.ArgumentParser(description="How fast manifests are read and validated.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    count, rounds = arguments.count, arguments.rounds
    manifests = texts(count)
    joined = "---\n".join(manifests)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(manifests):
            (Path(folder) / f"{number:05}.yaml").write_text(text)
        documents = clean(read_manifests([folder]), count).documents
        times = fastest(
            {
                PLAIN: lambda: list(yaml.load_all(joined, loader)),
                "parse with positions": lambda: parse_yaml(joined),
                ONE_FILE: lambda: clean(parse_text(joined), count),
                MANY_FILES: lambda: clean(read_manifests([folder]), count),
                "dump": lambda: [dump_yaml(document) for document in documents],
            },
            rounds,
        )

    print(f"{'':<30}{'manifests':>10}{'seconds':>10}{'µs each':>10}{'ratio':>8}")
    for name, seconds in times.items():
        print(f"{name:<30}{count:>10,}{seconds:>10.3f}{seconds / count * 1e6:>10.0f}{seconds / times[PLAIN]:>8.2f}")
    worst = max(times[ONE_FILE], times[MANY_FILES]) * 1000 / count
    VERDICT.hold("1,000 manifests, read and validated", worst, "s", most=GOAL_SECONDS)
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
