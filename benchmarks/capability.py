"""Does the suite tell a known difference, and tell it in the right place? One environment, measured twice.

In the second arm oneDNN, MKL and torch may use no vectors beyond SSE4: products and convolutions must be
slower, copies hardly. With --threads the second arm has one thread and the first has two. All of it is
measured side by side in one run. Run it: .venv/bin/python benchmarks/capability.py ENVIRONMENT [--threads]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

WORKLOADS = ("gemm", "convolution", "bandwidth")
SSE = "ONEDNN_MAX_CPU_ISA=SSE41,MKL_ENABLE_INSTRUCTIONS=SSE4_2,ATEN_CPU_CAPABILITY=default"
ROUNDS = "6"


def main() -> None:
    environment, threads = sys.argv[1], "--threads" in sys.argv[2:]
    first, second = ("threads=2", "threads=1") if threads else ("threads=1", f"threads=1,{SSE}")
    program = [sys.executable, "-m", "spark_build"]
    with tempfile.TemporaryDirectory() as root:
        run = [*program, "--root", root, "bench", "run", "--quick", "--device", "cpu", "--rounds", ROUNDS]
        run += [word for name in WORKLOADS for word in ("--workload", name)]
        run += ["--arm", f"first={environment},{first}", "--arm", f"second={environment},{second}"]
        subprocess.run(run, check=True)
        (found,) = Path(root, "runs").glob("*/bench.json")
        compare = [*program, "bench", "compare", str(found)]
        subprocess.run(compare, check=False)
        answer = subprocess.run([*compare, "--json"], stdout=subprocess.PIPE, check=False)
    document = json.loads(answer.stdout)
    for each in document["classes"]:
        slower = 1 / each["contrast"]["ratio"]
        print(f"{each['kind']}: {slower:.2f} times the time, {each['finding']}")
    for doubt in document["doubts"]:
        print(f"doubtful: {doubt}")


if __name__ == "__main__":
    main()
