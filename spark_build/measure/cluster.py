"""Burn in the nodes of a cluster at once: rate of each, the slowest and why, bandwidth between them."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from spark_build import __version__
from spark_build.errors import InconclusiveError, UsageError, VerificationError
from spark_build.events import Emit, Note
from spark_build.files import locked, write_atomically
from spark_build.measure.gates import ABOVE_NOMINAL, CAPPED, FREE_MIB_WARN, OTHERS_WARN, STEAL_WARN, judge
from spark_build.measure.model import Arm, Check, Reference, Settings, Slot
from spark_build.measure.request import BurnInRequest
from spark_build.measure.rounds import bare, burn_in_program, run_rounds, variables_of
from spark_build.measure.session import (
    PUBLIC,
    WHEELHOUSE,
    MeasureSite,
    arms_of,
    has_torch,
    plan_burn_in,
    references_of,
    scope_of,
    script_of,
)
from spark_build.measure.telemetry import prepare_memory
from spark_build.measure.verdict import broken, place_in_reference, reference_for
from spark_build.process import run
from spark_build.text import format_flops, format_quantity, render_template

PORT = 29400  # torchrun's own
ARRIVAL = 600.0  # seconds to wait for all nodes
LINK = 300.0  # seconds for the bandwidth
UNEVEN = 0.05  # a node that is slower than the fastest by more is a finding
WARMER = 5.0  # degrees Celsius that are worth telling
KEPT = ("NCCL_", "GLOO_", "UCX_")  # an administrator's choice of interfaces
CODES = {"PASS": 0, "FAIL": VerificationError.exit_code, "INCONCLUSIVE": InconclusiveError.exit_code}
_HOST = r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])"
_NODES = re.compile(rf"({_HOST})(?::([0-9]{{1,5}}))?((?:,{_HOST})+)", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterRequest:
    """The nodes in order, which of them this is, and the least bandwidth between them in bytes/s."""

    hosts: tuple[str, ...]
    port: int
    rank: int
    least: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return a name of its own for each node."""
        if len(set(self.hosts)) == len(self.hosts):
            return self.hosts
        return tuple(f"{host}#{rank}" for rank, host in enumerate(self.hosts))


def parse_nodes(text: str, rank: int | None, least: float | None) -> ClusterRequest:
    """Parse HOST[:PORT],HOST,...; without a rank this machine is found among them. Raise UsageError."""
    found = _NODES.fullmatch(text)
    if not found or not 0 < (port := int(found[2] or PORT)) < 65536:
        raise UsageError(
            f"--nodes {text}: two nodes or more, the first with a port or without",
            hint="--nodes one:29400,two",
        )
    hosts = (found[1], *found[3][1:].split(","))
    here = [number for number, host in enumerate(hosts) if _is_here(host)] if rank is None else [rank]
    if len(here) != 1 or here[0] >= len(hosts):
        raise UsageError(
            f"--nodes {text}: which of them is this machine?",
            hint=f"--rank 0 on {hosts[0]}, --rank 1 on {hosts[1]}, and so on",
        )
    return ClusterRequest(hosts=hosts, port=port, rank=here[0], least=least)


def _is_here(host: str) -> bool:
    """Return whether a name or an address is this machine's."""
    if host.partition(".")[0] == os.uname().nodename.partition(".")[0]:
        return True
    with contextlib.suppress(OSError, UnicodeError):  # a name that cannot be one
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as tried:
            tried.bind(address)
            return True
    return False


def burn_in_cluster(
    site: MeasureSite,
    wish: BurnInRequest,
    cluster: ClusterRequest,
    checks: Sequence[Check],
    folder: Path,
) -> dict[str, Any]:
    """Measure this node at the same time as the others; return what all of them found, with a verdict.

    Every node returns the same, and leaves it in `folder`: cluster.json, cluster.md. A rank of this
    machine measures once at a time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # By its machine: several may share the folder.
    lock = site.home.runs / f".cluster-{platform.node()}-{cluster.rank}.lock"
    with locked(lock, purpose="burn-in"):
        usual = (WHEELHOUSE if has_torch(site.generation) else PUBLIC,)
        arms = arms_of(site, folder, wish, usual)
        if len(arms) != 1 or arms[0].image:
            raise UsageError(
                "a cluster burns in one environment, and no container", hint="one --arm NAME=FOLDER"
            )
        references = references_of(site.home)
        settings = replace(plan_burn_in(wish, script_of(site.home, "gemm")), pairs=1, most=0)
        meeting = Meeting(cluster, arms[0], settings, folder, site.emit)
        own = cluster.names[cluster.rank]
        others = ", ".join(name for name in cluster.names if name != own)
        site.emit(Note(message=f"waiting for {others} at {cluster.hosts[0]}:{cluster.port}"))
        said = {"rank": cluster.rank, "name": own, "spark_build": __version__}
        met = meeting.hold("arrival", said)
        met["problem"] = met["problem"] or other_version(met["nodes"])
        if not met["missing"] and not met["problem"]:
            met = meeting.hold("link", {**said, **_measured(meeting, checks, references)}, "--link")
    device = next((node["device"] for node in met["nodes"] if "device" in node), "")
    found = conclude(met, str(settings.headline), cluster.least, reference_for(references, device))
    write_atomically(folder / "cluster.json", json.dumps(found))
    write_atomically(folder / "cluster.md", render_template("cluster.md", **found, table=table_of(found)))
    return found


def other_version(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Say which node runs another spark-build, whose words mean something else; "" for none."""
    others = (node["name"] for node in nodes if node.get("spark_build") != __version__)
    return next((f"{name} runs another version of spark-build than {__version__}" for name in others), "")


class Meeting:
    """The nodes' meetings by torchrun: each hears what all say."""

    def __init__(
        self, cluster: ClusterRequest, arm: Arm, settings: Settings, folder: Path, emit: Emit
    ) -> None:
        self.cluster, self.arm, self.settings, self.folder, self.emit = cluster, arm, settings, folder, emit

    def hold(self, name: str, say: Mapping[str, Any], *options: str) -> dict[str, Any]:
        """Meet; return what the nodes said in the order of their ranks, who is missing and why."""
        cluster, out = self.cluster, self.folder / f".{name}-heard.json"
        spoken = self.folder / f".{name}-said.json"
        spoken.write_text(json.dumps(say))
        script = Path(self.settings.script).with_name("cluster.py")
        told = [str(script), "--device", self.settings.device, "--say", str(spoken), "--out", str(out)]
        told += ["--limit", f"{LINK:.0f}", *options]
        told += ["--inject", self.settings.inject] if options and self.settings.inject == "element" else []
        kept = {key: value for key, value in os.environ.items() if key.startswith(KEPT)}
        env = {**bare(variables_of(self.arm)), **kept, "PYTHONDONTWRITEBYTECODE": "1"}
        with (self.folder / f"{name}.log").open("wb") as log:
            done = run([*self._torchrun(name), *told], cwd=self.folder, env=env, log=log)
        heard: dict[str, Any] = {"nodes": []}
        with contextlib.suppress(OSError, ValueError):
            heard = json.loads(out.read_text())
        spoken.unlink()
        out.unlink(missing_ok=True)
        nodes = {node["rank"]: node for node in (*heard["nodes"], *([] if heard["nodes"] else [say]))}
        missing = [each for rank, each in enumerate(cluster.names) if rank not in nodes]
        problem = "" if heard["nodes"] else self._problem(done.output)
        if len(heard["nodes"]) > len(nodes):
            problem = "two nodes have one rank: type another --rank on each"
        ordered = [nodes[rank] for rank in sorted(nodes)]
        return {"nodes": ordered, "missing": missing, "problem": problem, "link": heard.get("link")}

    def _torchrun(self, name: str) -> list[str]:
        """Return the beginning of the command line: elastic, so that those who came know who did not."""
        cluster, wait = self.cluster, self.settings.patience or ARRIVAL
        host = cluster.hosts[cluster.rank].strip("[]")
        rendezvous = {
            "is_host": int(cluster.rank == 0),
            "join_timeout": f"{3 * wait:.0f}",
            "last_call_timeout": f"{wait:.0f}",
            "read_timeout": f"{max(1, wait):.0f}",
        }
        return [
            "timeout", "--kill-after=10", f"{3 * wait + 2 * LINK:.0f}",
            self.arm.python, "-I", "-B", "-m", "torch.distributed.run",
            f"--nnodes=1:{len(cluster.hosts)}", "--nproc-per-node=1", "--rdzv-backend=c10d",
            f"--rdzv-endpoint={cluster.hosts[0]}:{cluster.port}", f"--rdzv-id=spark-build-{name}",
            f"--local-addr={host}",
            f"--rdzv-conf={','.join(f'{key}={value}' for key, value in rendezvous.items())}",
        ]  # fmt: skip

    def _problem(self, output: str) -> str:
        """Say why nothing was heard."""
        first = f"{self.cluster.hosts[0]}:{self.cluster.port}"
        if self.cluster.rank and "RendezvousConnectionError" in output:
            return f"{first} does not answer"
        last = [line.strip() for line in output.splitlines() if line.strip()][-1:]
        return f"no meeting at {first}: {' '.join(last)[:300] or 'torchrun ended without a word'}"


def _measured(meeting: Meeting, checks: Sequence[Check], references: Sequence[Reference]) -> dict[str, Any]:
    """Measure this node and return what it tells the others."""
    arm, settings = meeting.arm, meeting.settings
    for note in (*settings.notes, *prepare_memory(settings.device)):
        meeting.emit(Note(message=note))
    order = (Slot(index=0, visit=0, block=0, arm=arm.name),)
    program = burn_in_program(settings, references)
    rounds, _ = run_rounds(program, [arm], order, meeting.folder, meeting.emit)
    device = scope_of(settings, rounds).get("device", "")
    reference = reference_for(references, device)
    gates = judge(settings, 1, rounds, (), (), reference, [arm])
    return {
        "device": device,
        "torch": arm.versions.get("torch", ""),
        "measured": f"{', '.join(map(str, settings.cases))}, {settings.window:g} s",
        "rates": {str(one.case): one.rate for one in rounds[0].measurements if not rounds[0].problem},
        "place": [place_in_reference(reference, one.case, one.rate) for one in rounds[0].measurements],
        "broken": broken(rounds, checks),
        "gates": [asdict(gate) for gate in gates],
        "telemetry": asdict(rounds[0].telemetry),
    }


def conclude(
    met: Mapping[str, Any], headline: str, least: float | None, reference: Reference | None
) -> dict[str, Any]:
    """Return the nodes' findings with a verdict: of wrong results, then doubts, then what is too slow."""
    nodes: list[dict[str, Any]] = met["nodes"]
    known = reference.bus if reference else None
    bound = least if least is not None else known[0] if known else None
    source = "--bus-bandwidth" if least is not None else f"known of {reference.name}" if reference else ""
    link = met["link"] or {"backend": "", "problem": "not measured", "sizes": []}
    bus = link["sizes"][-1]["bus"] if link["sizes"] else None
    rated = sorted((node for node in nodes if headline in node.get("rates", {})),
                   key=lambda node: float(node["rates"][headline]))  # fmt: skip
    slowest = None
    if len(rated) > 1:
        ratio = rated[0]["rates"][headline] / rated[-1]["rates"][headline]
        slowest = {"name": rated[0]["name"], "ratio": ratio, "reason": why_slow(rated[0], rated[-1])}
    wrong = [f"{node['name']}: {text}" for node in nodes for text in node.get("broken", ())]
    wrong += [f"all_reduce: {one['wrong']} elements wrong" for one in link["sizes"] if one["wrong"]]
    paper = known[1] * ABOVE_NOMINAL if known else None
    doubts = _doubts(met, nodes, headline)
    doubts += [f"all_reduce: {link['problem']}"] if link["problem"] and not doubts else []
    if bus and paper and bus > paper:
        doubts.append(f"{format_quantity(bus, 'B/s')} between nodes is more than their link has on paper")
    faults = []
    if slowest and slowest["ratio"] < 1 - UNEVEN:
        faults.append(f"{slowest['name']} reaches {slowest['ratio']:.0%} of the fastest: {slowest['reason']}")
    if bus is not None and bound is not None and bus < bound:
        told = f"{format_quantity(bus, 'B/s')} between nodes, below {format_quantity(bound, 'B/s')}"
        faults.append(f"{told} ({source})")
    unknown = ["no bound known for the bandwidth between nodes (--bus-bandwidth)"] if bound is None else []
    why = wrong or doubts or faults or unknown
    word = "PASS" if not why else "FAIL" if wrong or (faults and not doubts) else "INCONCLUSIVE"
    return {
        "schema": 1, "kind": "cluster", "verdict": word, "why": why, "findings": faults, "headline": headline,
        "nodes": nodes, "missing": met["missing"], "slowest": slowest, "link": link, "bus": bus,
        "bound": bound, "bound_of": source if bound is not None else "", "exit_code": CODES[word],
    }  # fmt: skip


def _doubts(met: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], headline: str) -> list[str]:
    """Return why nothing may be claimed of the nodes."""
    found = [met["problem"]] if met["problem"] else []
    found += [f"{name} did not arrive" for name in met["missing"]]
    if found:
        return found
    for node in nodes:
        gates = [f"{one['name']}: {one['evidence']}" for one in node["gates"] if one["status"] == "fail"]
        found += [f"{node['name']}: {gate}" for gate in gates]
        if headline not in node["rates"] and not gates and not node["broken"]:
            found.append(f"{node['name']}: no rate of {headline}")
    for what in ("measured", "device", "torch"):
        if len({node[what] for node in nodes}) > 1:
            each = "; ".join(f"{node[what]} on {node['name']}" for node in nodes)
            found.append(f"the nodes differ in what is compared: {each}")
    return found


def why_slow(slow: Mapping[str, Any], fast: Mapping[str, Any]) -> str:
    """Return what telemetry shows of a node that could make it slower than another."""
    seen, other = slow["telemetry"], fast["telemetry"]
    found = []
    if seen["throttled"]:
        found.append("throttled by temperature or power brake")
    if (seen["capped"] or 0) > CAPPED or seen["reasons"]:
        share = f" for {seen['capped']:.0%} of the time" if seen["capped"] is not None else ""
        found.append(f"clocks held down{share} by {', '.join(seen['reasons']) or 'the power cap'}")
    for name, unit, least in (("limit_watts", "W", 1.0), ("clock_mhz", "MHz", 0.01)):
        mine, theirs = seen[name], other[name]
        if mine and theirs and theirs - mine > max(least, 0.01 * theirs):
            what = "power limit" if name == "limit_watts" else "clock"
            found.append(f"{what} {mine:.0f} {unit}, {theirs:.0f} on {fast['name']}")
    if seen["celsius"] and other["celsius"] and seen["celsius"] - other["celsius"] > WARMER:
        found.append(f"{seen['celsius']:.0f} °C, {other['celsius']:.0f} on {fast['name']}")
    for name, what, least in (("others", "other processes", OTHERS_WARN), ("steal", "the host", STEAL_WARN)):
        if (seen[name] or 0) > least:
            found.append(f"{what} took {seen[name]:.0%} of the processors")
    if seen["other_processes"]:
        found.append(f"{seen['other_processes']} other processes on the GPU")
    if seen["free_mib"] is not None and seen["free_mib"] < FREE_MIB_WARN:
        found.append(f"only {seen['free_mib']} MiB of memory free")
    return "; ".join(found) or "no reason seen in clock, power, temperature, memory or other load"


def table_of(found: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows for people: node, device, rate, share of the fastest, clock, power, temperature."""
    rates = [node.get("rates", {}).get(found["headline"]) for node in found["nodes"]]
    best = max((rate for rate in rates if rate), default=None)
    rows = [["NODE", "DEVICE", "RATE", "OF BEST", "CLOCK", "POWER", "TEMP", "GATES"]]
    for node, rate in zip(found["nodes"], rates, strict=True):
        seen = node.get("telemetry", {})
        shown = [
            f"{seen[name]:.0f} {unit}" if seen.get(name) is not None else "unknown"
            for name, unit in (("clock_mhz", "MHz"), ("watts", "W"), ("celsius", "°C"))
        ]
        failed = [gate["name"] for gate in node.get("gates", ()) if gate["status"] == "fail"]
        share = f"{rate / best:.1%}" if rate and best else "-"
        rows.append([node["name"], node.get("device", "-"), format_flops(rate) if rate else "-", share,
                     *shown, ", ".join(failed) or ("ok" if seen else "-")])  # fmt: skip
    rows += [[name, "did not arrive", *["-"] * 6] for name in found["missing"]]
    return rows
