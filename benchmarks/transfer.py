"""What export and import cost: 2 GB of wheels beside `tar czf`, `tar xzf`, and `cp` plus `sha256sum`.

And what signing adds to an export, verifying to an import.

Run it in a checkout: .venv/bin/python benchmarks/transfer.py --folder DIR. DIR should be a tmpfs, so that
no disk is measured; at most three copies of the wheels lie there at a time. It takes a few minutes.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent
SIZE, COUNT = 125_000_000, 16  # bytes of each wheel: random, so that nothing compresses them


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds from start to end, those of processors, and the most memory of one process, in MiB."""

    seconds: float
    processor: float
    memory: float


def measured(*commands: list[str], cwd: Path) -> Cost:
    """Run the commands one after the other."""
    begin, processor, memory = time.perf_counter(), 0.0, 0.0
    for command in commands:
        with subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{shlex.join(command)}: exit code {process.returncode}")
        processor += usage.ru_utime + usage.ru_stime
        memory = max(memory, usage.ru_maxrss / 1024)
    return Cost(seconds=time.perf_counter() - begin, processor=processor, memory=memory)


def make_wheel(folder: Path, name: str) -> None:
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}/data": os.urandom(SIZE),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={digest(data)},{len(data)}\n" for path, data in files.items()]
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as packed:
        for path, data in files.items():
            packed.writestr(path, data, compresslevel=0)  # what inflating costs stays


def digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def spark_build(root: Path, *arguments: str) -> list[str]:
    common = ["--root", str(root), "--target", "host-cpu", "--train", "2.13", "-q", "wheelhouse"]
    return [str(BIN / "spark-build"), *common, *arguments]


def export_round(folder: Path, house: Path) -> tuple[Cost, Cost, Cost]:
    """(`cp` plus `sha256sum`, export, signed export); only the last one's file stays."""
    wheels = shlex.join(map(str, sorted(house.glob("wheelhouse/store/*/*/*.whl"))))
    (folder / "copy").mkdir()
    both = ["sh", "-c", f"cp {wheels} copy/ && sha256sum copy/*.whl"]
    by_hand = measured(both, cwd=folder)
    shutil.rmtree(folder / "copy")
    command = spark_build(house, "export", str(folder / "out.tar"), "--without-spark-build")
    costs = []
    for signing in ([], ["--sign", str(folder / "key")]):
        (folder / "out.tar").unlink(missing_ok=True)
        costs.append(measured([*command, *signing], cwd=folder))
    return by_hand, costs[0], costs[1]


def import_round(folder: Path) -> tuple[Cost, Cost, Cost]:
    """(`cp` plus `sha256sum` of the archive, import of it, the same from a trusted signer)."""
    by_hand = measured(["sh", "-c", "cp out.tar copy.tar && sha256sum copy.tar"], cwd=folder)
    (folder / "copy.tar").unlink()
    command = spark_build(folder / "there", "import", "--unsigned", str(folder / "out.tar"))
    ours = measured(command, cwd=folder)
    shutil.rmtree(folder / "there")
    trust = spark_build(folder / "there", "trust", "add", "somebody", str(folder / "key.pub"))
    subprocess.run(trust, check=True, stdout=subprocess.DEVNULL)
    signed = measured(spark_build(folder / "there", "import", str(folder / "out.tar")), cwd=folder)
    shutil.rmtree(folder / "there")
    return by_hand, ours, signed


def show(what: str, costs: list[Cost], others: dict[str, list[Cost]]) -> None:
    own = statistics.median(cost.seconds for cost in costs)
    memory = max(cost.memory for cost in costs)
    busy = statistics.median(cost.processor for cost in costs)
    print(f"{what:<24}{own:7.2f} s, {busy:6.2f} s of processors, {memory:.0f} MiB at most", flush=True)
    for name, theirs in others.items():
        other = statistics.median(cost.seconds for cost in theirs)
        used = statistics.median(cost.processor for cost in theirs)
        print(f"  {name:<22}{other:7.2f} s, {used:6.2f} s of processors", end="")
        print(f": {what} takes {own / other:.2f} and {busy / used:.2f} times as long", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        options.make.mkdir()
        for number in range(COUNT):
            make_wheel(options.make, f"wheel{number:02}")
        return
    with tempfile.TemporaryDirectory(prefix="transfer-", dir=options.folder) as scratch:
        folder = Path(scratch)
        house = folder / "here"
        # A process of its own: what this one used before it starts another would count as that one's.
        subprocess.run([sys.executable, __file__, "--make", str(folder / "wheels")], check=True)
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")]
        subprocess.run(key, check=True)
        foreign = measured(spark_build(house, "import", str(folder / "wheels")), cwd=folder)
        shutil.rmtree(folder / "wheels")
        packed = measured(["tar", "czf", "seed.tar.gz", "here/wheelhouse/store"], cwd=folder)
        (folder / "unpacked").mkdir()
        unpacked = measured(["tar", "xzf", "seed.tar.gz", "-C", "unpacked"], cwd=folder)
        shutil.rmtree(folder / "unpacked")
        (folder / "seed.tar.gz").unlink()
        rounds = [export_round(folder, house) for _ in range(options.rounds)]
        by_hand, ours, signed = [list(costs) for costs in zip(*rounds, strict=True)]
        print(f"{COUNT} wheels, {COUNT * SIZE / 1e9:.1f} GB; median of {options.rounds} rounds, tar once")
        show("export", ours, {"tar czf": [packed], "cp and sha256sum": by_hand})
        show("signed export", signed, {"unsigned": ours})
        shutil.rmtree(house)
        rounds = [import_round(folder) for _ in range(options.rounds)]
        by_hand, ours, signed = [list(costs) for costs in zip(*rounds, strict=True)]
        show("import", ours, {"tar czf": [packed], "tar xzf": [unpacked], "cp and sha256sum": by_hand})
        show("import with a signature", signed, {"unsigned": ours})
        show("import of a folder", [foreign], {})


if __name__ == "__main__":
    main()
