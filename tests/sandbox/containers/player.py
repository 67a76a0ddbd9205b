"""Stands in for podman: answers as a real one did, from a tape; or asks a real one, and makes the tape.

Runs as a program of its own, named `podman`. The variables that it needs have names that the product passes on:

    CONTAINERS_TAPE     the file of the tape
    CONTAINERS_STATE    a folder for what exists now: a file for each container
    CONTAINERS_RECORD   the real program, when a tape is to be made

A tape holds what was asked, without what differs from run to run (names, owners, paths, users), the exit code and what
was said. Only which containers exist now is not on the tape: it follows from what was made and removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

LONGEST = 60.0
VARIES = (
    (re.compile(r"foliot-\d+-[0-9a-f]{16}"), "NAME"),
    (re.compile(r"(?<=dev\.foliot\.owner=).*"), "OWNER"),
    (re.compile(r"/proc/\d+/fd/\d+"), "FILE"),
    (re.compile(r"(?<=--user=)\d+:\d+"), "USER"),
)
OF_THE_ENGINE = ("cgroupControllers", "cgroupManager", "cgroupVersion", "ociRuntime", "security")
# They differ from machine to machine, and no answer of podman depends on them.
LEFT_OUT = ("--mount=", "--ulimit=nproc=")


def key_of(words: list[str]) -> str:
    kept = []
    for word in words:
        if not word.startswith(LEFT_OUT):
            for pattern, name in VARIES:
                word = pattern.sub(name, word)
            kept.append(word)
    return "\n".join(kept)


def found(words: list[str], start: str) -> str:
    return next((word[len(start) :] for word in words if word.startswith(start)), "")


class Engine:
    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.key = key_of(words)
        self.state = Path(os.environ["CONTAINERS_STATE"])
        self.tape = Path(os.environ["CONTAINERS_TAPE"])
        self.container = found(words, "--name=") or next((word for word in words if word.startswith("foliot-")), "")
        self.user = found(words, "--user=").partition(":")[0]

    @property
    def verb(self) -> str:
        return next(word for word in self.words if word in ("info", "run", "rm", "ps", "image", "container", "import"))

    # --- replaying ----------------------------------------------------------------------------------------------------

    def play(self) -> int:
        if self.verb == "ps":
            for each in sorted(self.state.glob("foliot-*")):
                sys.stdout.write(f"{each.name}\tUp 2 seconds ago\t{json.loads(each.read_text())['owner']}\n")
            return 0
        tape = json.loads(self.tape.read_text())
        if self.verb == "rm":
            (self.state / self.container).unlink(missing_ok=True)
            return 0
        if self.verb == "container":
            made = self.state / self.container
            answer = tape["states"].get(json.loads(made.read_text())["key"]) if made.exists() else None
            answer = answer or {"code": 125, "stdout": "", "stderr": "Error: no such container\n"}
        else:
            answer = tape["answers"].get(self.key)
            assert answer is not None, f"this is not on the tape:\n{self.key}"
        if self.verb == "run":
            given = sys.stdin.buffer.read()
            assert given.decode() == answer["stdin"], "another input than on the tape"
            self._exists()
        self._say(answer)
        if answer.get("killed"):
            until = time.monotonic() + LONGEST
            while (self.state / self.container).exists() and time.monotonic() < until:
                time.sleep(0.005)
        return answer["code"]

    def _exists(self) -> None:
        owner = found(self.words, "--label=dev.foliot.owner=")
        made = self.state / f".{self.container}"
        made.write_text(json.dumps({"owner": owner, "key": self.key}))
        made.rename(self.state / self.container)

    def _say(self, answer: dict[str, str]) -> None:
        for stream, name in ((sys.stdout, "stdout"), (sys.stderr, "stderr")):
            stream.write(answer[name].replace("{USER}", self.user))
            stream.flush()

    # --- recording ----------------------------------------------------------------------------------------------------

    def record(self, real: str) -> int:
        given = sys.stdin.buffer.read() if self.verb in ("run", "import") else b""
        if self.verb == "run":
            self._exists()
        if self.verb == "rm":
            (self.state / self.container).unlink(missing_ok=True)
        done = subprocess.run([real, *self.words], input=given, capture_output=True)
        answer: dict[str, object] = {
            "code": done.returncode,
            "stdout": self._plain(done.stdout),
            "stderr": self._plain(done.stderr),
        }
        if self.verb == "run":
            answer["stdin"] = given.decode()
            if not (self.state / self.container).exists():
                answer["killed"] = True
        self._keep(answer)
        sys.stdout.buffer.write(done.stdout)
        sys.stderr.buffer.write(done.stderr)
        return done.returncode

    def _plain(self, data: bytes) -> str:
        text = data.decode(errors="replace")
        if self.verb == "info" and text:  # without what it says of the machine
            told = json.loads(text)
            told["host"] = {name: value for name, value in told["host"].items() if name in OF_THE_ENGINE}
            return json.dumps({"host": told["host"], "version": told["version"]})
        return text.replace(self.user, "{USER}") if self.user else text

    def _keep(self, answer: dict[str, object]) -> None:
        with open(self.state / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._kept(answer)

    def _kept(self, answer: dict[str, object]) -> None:
        tape = json.loads(self.tape.read_text()) if self.tape.exists() else {"answers": {}, "states": {}}
        if self.verb == "container":
            made = self.state / self.container
            if made.exists():
                tape["states"][json.loads(made.read_text())["key"]] = answer
        elif self.verb not in ("rm", "ps", "import"):
            tape["answers"][self.key] = answer
        self.tape.write_text(json.dumps(tape, indent=1, sort_keys=True) + "\n")


def main() -> int:
    engine = Engine(sys.argv[1:])
    real = os.environ.get("CONTAINERS_RECORD")
    return engine.record(real) if real else engine.play()


if __name__ == "__main__":
    sys.exit(main())
