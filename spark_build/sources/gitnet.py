"""git on the network: never asks, never runs what a configuration names, says in one line what is wrong."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from spark_build.errors import HostError, SourceError
from spark_build.process import Completed, run
from spark_build.sources.giturl import REMOTE_SCHEMES, redacted, shown

RETRIES = 3
BACK_OFF = 0.5  # seconds before the first retry, doubled before each further one
STALLED = 120  # seconds without a byte

# Of the GIT_* variables only those that say how to reach a server.
_KEPT = re.compile(
    r"GIT_(SSL_\w+|SSH|SSH_COMMAND|SSH_VARIANT|PROXY_\w+|HTTP_\w+|EXEC_PATH|CONFIG_(GLOBAL|SYSTEM|NOSYSTEM))"
)
_CONFIG = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.alternateRefsCommand": "true",
    "credential.interactive": "false",
    "fetch.recurseSubmodules": "false",
    "fetch.unpackLimit": "1",  # packs are synced to disk, loose objects are not
    "fetch.writeCommitGraph": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "http.lowSpeedLimit": "1",
    "http.lowSpeedTime": str(STALLED),
    "protocol.ext.allow": "never",
}
_PERCENT = re.compile(r"(?:remote: )?[A-Z][\w ]+:\s+\d+% \((\d+)/(\d+)\)")
_RECEIVING = ("Receiving objects", "Resolving deltas")
# git ends its progress with carriage returns; the exit status comes through the pipe as a line.
_BY_LINES = '{ "$@" 2>&1; echo "exit status $?"; } | stdbuf -oL tr "\\r" "\\n"'

# In this order: (what git or ssh prints, what it means, the next thing to do, worth another try).
_CAUSES: tuple[tuple[str, str, str, bool], ...] = (
    (
        (
            r"could not read (Username|Password)|terminal prompts disabled|[Aa]uthentication failed"
            r"|Permission denied \(|returned error: 40[137]|Host key verification failed"
        ),
        "there is no such repository, or it wants a login",
        "check the source's url; set up a credential helper or an ssh key that works without questions",
        False,
    ),
    (
        (
            r"not found|does not appear to be a git repository|does not exist|returned error: (404|410)"
            r"|not a git repository|access denied or repository not exported"
        ),
        "there is no such repository",
        "check the source's url",
        False,
    ),
    (
        r"certificate problem|certificate verification failed|server certificate|CAfile",
        "its certificate is not trusted",
        "set http.sslCAInfo in your git configuration, or GIT_SSL_CAINFO",
        False,
    ),
    (
        r"transport '\w+' not allowed",
        "its address leads to a place that is not allowed",
        "check the source's url",
        False,
    ),
    (
        r"[Cc]ould not resolve|name resolution|unable to look up",
        "the name cannot be resolved",
        "check the network; `build --offline` works with what is here",
        True,
    ),
    (
        (
            r"[Cc]onnection refused|[Ff]ailed to connect|unable to connect|[Nn]o route to host"
            r"|[Nn]etwork is unreachable|timed out|too slow|[Cc]onnection reset|hung up|early EOF"
            r"|unexpected disconnect|RPC failed|index-pack|SSL_|gnutls|handshake|Couldn't connect"
            r"|Empty reply|returned error: (408|429|5\d\d)|Recv failure|[Cc]onnection closed"
        ),
        "no connection to the server, or it broke off",
        "check the network, then run the same command again",
        True,
    ),
)


class UnavailableError(Exception):
    """The server does not give what was asked for, or not that way; the text is git's own line."""


def scrubbed() -> dict[str, str]:
    """The environment for a git that is to see only what it is told: no repository, no settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {
        **kept,
        **({"GIT_EXEC_PATH": path} if (path := os.environ.get("GIT_EXEC_PATH")) else {}),
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "LC_ALL": "C",
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Remote:
    """One repository on a server and how to talk to it. `local`: the source itself is on this machine."""

    url: str
    local: bool
    mirror: Path
    keep: tuple[int, ...]
    log: BinaryIO | None
    progress: Callable[[int, int], None] | None
    pause: Callable[[float], None]

    def ask(self, command: str, *arguments: str, what: Sequence[str] = ()) -> list[str]:
        """Output lines of `git COMMAND ARGUMENTS URL WHAT`; what the network breaks is tried again.

        Raises SourceError for what nobody can get, UnavailableError when another way might work.
        """
        failures = 0
        while True:
            done = self._once(command, [*arguments, "--", shown(self.url), *what])
            lines = [line for line in done.output.splitlines() if not line.startswith("$")]
            if done.returncode == 0:
                return lines
            problem = self._explain(lines)
            failures += 1
            if problem is None:
                raise UnavailableError(_telling(lines))
            error, again = problem
            if not again or failures > RETRIES:
                raise error
            self.pause(BACK_OFF * 2 ** (failures - 1))

    def _once(self, command: str, arguments: Sequence[str]) -> Completed:
        args = ["git", f"--git-dir={self.mirror}", command, *arguments]
        self._note("$ " + shlex.join(args))
        status: list[int] = []

        def on_line(line: str) -> None:
            if line.startswith("exit status "):
                status.append(int(line.rpartition(" ")[2]))
            elif match := _PERCENT.match(line):
                if self.progress is not None and line.startswith(_RECEIVING):
                    self.progress(int(match[1]), int(match[2]))
            else:
                self._note(line)

        wrapped = ["sh", "-c", _BY_LINES, "sh", *args]
        done = run(wrapped, env=self._environment(), on_line=on_line, keep=self.keep)
        output = [line for line in done.output.splitlines() if not _PERCENT.match(line)]
        if output and output[-1].startswith("exit status "):
            output.pop()
        return Completed(
            args=tuple(args),
            returncode=status[-1] if status else done.returncode or 1,
            output="\n".join(output),
            seconds=done.seconds,
        )

    def _note(self, line: str) -> None:
        if self.log is not None:
            self.log.write(f"{redacted(line)}\n".encode(errors="replace"))
            self.log.flush()

    def _environment(self) -> dict[str, str]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GIT_") or _KEPT.fullmatch(name)
        }
        # The argument list shows an address without credentials; git puts them back by itself.
        secret = {f"url.{self.url}.insteadOf": shown(self.url)} if shown(self.url) != self.url else {}
        config = _CONFIG | secret
        for number, (key, value) in enumerate(config.items()):
            environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        ssh = environment.get("GIT_SSH_COMMAND") or shlex.quote(environment.get("GIT_SSH", "ssh"))
        return environment | {
            "GIT_CONFIG_COUNT": str(len(config)),
            "GIT_ALLOW_PROTOCOL": ":".join((*REMOTE_SCHEMES, *(["file"] if self.local else []))),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "true",
            "SSH_ASKPASS": "true",
            "SSH_ASKPASS_REQUIRE": "never",
            "GCM_INTERACTIVE": "never",
            "GIT_SSH_COMMAND": f"{ssh} -o BatchMode=yes -o ConnectTimeout=30",
            "LC_ALL": "C",
        }

    def _explain(self, lines: Sequence[str]) -> tuple[Exception, bool] | None:
        """The error behind a failed command and whether to try again; None when it is not known."""
        text = "\n".join(lines)
        if "No space left on device" in text:
            return HostError(
                f"the disk is full ({self.mirror})", hint="free some space, then try again"
            ), False
        if re.search(r"not our ref|unadvertised object|couldn't find remote ref", text):
            return None
        for pattern, meaning, hint, again in _CAUSES:
            if re.search(pattern, text):
                said = _telling(lines)
                message = f"cannot fetch {shown(self.url)}: {meaning} ({said})"
                return SourceError(message, hint=hint), again
        return None


def _telling(lines: Sequence[str]) -> str:
    """The line of git's output that says most, without credentials."""
    found = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ssh:"))]
    said = next((line for line in found if line.startswith(("fatal:", "ssh:"))), (found or [*lines, ""])[0])
    return redacted(re.sub(r"^(fatal|error): ", "", said)).strip()
