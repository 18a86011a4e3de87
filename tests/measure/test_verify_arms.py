"""Arms that are more than an environment: containers, swapped libraries; and what the command refuses."""

import json
import shutil
from pathlib import Path

import pytest

from spark_build.errors import HostError, UsageError
from spark_build.measure import arms
from spark_build.measure.model import Arm
from spark_build.measure.request import parse_arm
from tests.conftest import CLI
from tests.helpers.commands import invoke
from tests.helpers.faulty_bench import verify

# Stands in for docker: knows one image and runs what it is told in the host's own folders.
ENGINE = """#!/bin/sh
echo "$*" >> "{log}"
case "$1 $2" in
"image inspect") [ "$3" = here:1 ] && echo '[]'; exit ;;
rm*) exit 0 ;;
esac
while [ "$1" != here:1 ]; do shift; done
shift; shift
exec "{python}" "$@"
"""


def test_a_container_is_an_arm(baseline: Arm, tmp_path: Path) -> None:
    log, tools = tmp_path / "log", tmp_path / "bin"
    tools.mkdir()
    engine = tools / "docker"
    engine.write_text(ENGINE.format(log=log, python=baseline.python))
    engine.chmod(0o755)
    env = {"PATH": f"{tools}:/usr/bin:/bin"}
    folder = Path(baseline.python).parents[1]
    wished = ("--arm", f"mine={folder}", "--arm", "box=container:here:1,FLAG=1", "--rounds", "2")
    _, document, _ = verify(tmp_path / "root", *wished, env=env)
    burn_in = document["burn_in"]
    assert [each["problem"] for each in burn_in["round_results"]] == [""] * 6
    assert {each["slot"]["arm"] for each in burn_in["round_results"]} == {"mine", "box", "mine-again"}
    calls = log.read_text().splitlines()
    rounds = [call.split() for call in calls if call.startswith("run")]
    assert len(rounds) == 2
    words = rounds[0]
    assert {"--rm", "--init", "none", "FLAG=1", "PYTHONNOUSERSITE=1", "here:1"} <= set(words)
    assert not [word for word in words if word.startswith(("PATH=", "HOME="))]
    assert "--gpus" not in words
    assert len([call for call in calls if call.startswith("rm --force spark-build-")]) == 2


def test_the_command_of_a_container(tmp_path: Path) -> None:
    arm = Arm(name="a", role="candidate", python="python3", origin="", image="x:1", engine="docker")
    script = tmp_path / "bench" / "gemm.py"
    command = arms.wrap_in_container(
        arm, ["python3", str(script)], device="cuda", env={"A": "1"}, script=script, place=tmp_path, name="n"
    )
    text = " ".join(command)
    assert "--gpus all" in text
    assert f"--volume {script.parent}:{script.parent}:ro --volume {tmp_path}:{tmp_path}" in text
    assert command[-4:] == ["", "x:1", "python3", str(script)]
    podman = Arm(name="a", role="candidate", python="python3", origin="", image="x:1", engine="podman")
    command = arms.wrap_in_container(
        podman, ["python3"], device="cuda", env={}, script=script, place=tmp_path, name="n"
    )
    assert "--device nvidia.com/gpu=all" in " ".join(command)


def test_containers_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="docker or podman"):
        arms.container_arm("a", "x:1")
    (tmp_path / "podman").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "podman").chmod(0o755)
    with pytest.raises(UsageError, match="podman has no image x:1"):
        arms.container_arm("a", "x:1")


def test_a_swapped_library_is_really_loaded(baseline: Arm, tmp_path: Path) -> None:
    """The donor is the same torch elsewhere: what counts is whose file lies in the process."""
    folder = Path(baseline.python).parents[1]
    donor = tmp_path / "donor"
    shutil.copytree(folder, donor, symlinks=True, copy_function=_link)
    _, document, _ = verify(
        tmp_path / "root", "--arm", f"a={folder}", "--arm", f"b={donor}", "--swap", "openmp", "--rounds", "2"
    )
    burn_in = document["burn_in"]
    names = ["a", "b", "a+openmp-of-b", "b+openmp-of-a", "a-again"]
    assert [arm["name"] for arm in burn_in["arms"]] == names
    raw = json.loads(Path(burn_in["report"]).with_name("burn-in.json").read_text())
    for name, whose in (("a", folder), ("a+openmp-of-b", donor), ("b+openmp-of-a", folder)):
        found = [
            each["environment"]["libraries"] for each in raw["round_results"] if each["slot"]["arm"] == name
        ]
        assert len(found) == 2
        openmp = {Path(path).parents[5] for one in found for path in one if "libgomp" in path}
        assert openmp == {whose}


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def test_swaps_that_cannot_be(baseline: Arm) -> None:
    with pytest.raises(UsageError, match="loads no cublas"):
        arms.derived_arm(baseline, baseline, "cublas")
    box = Arm(name="b", role="candidate", python="python3", origin="", image="x:1", engine="docker")
    with pytest.raises(UsageError, match="container"):
        arms.derived_arm(baseline, box, "openmp")
    assert parse_arm("x=container:y").image == "y"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--seed", "7"), 2, "--seed is about a burn-in: add --burn-in"),
        (("--burn-in", "--arm", "x=/nowhere"), 2, "no environment with torch"),
        (("--burn-in", "--arm", "/nowhere"), 2, "no arm"),
        (("--burn-in", "--arm", "a=/x", "--sweep", "--size", "64"), 2, "--sweep chooses the sizes"),
        (("--burn-in", "--arm", "a=/x", "--full", "--rounds", "4"), 2, "too few"),
        (("--burn-in", "--arm", "a=/x", "--dtype", "fp16"), 2, "FP16 is left out"),
        (("gate",), 2, "there is no burn-in"),
        (("compare", "pyproject.toml", "pyproject.toml"), 2, "not JSON"),
    ],
)
def test_refusals(tmp_path: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    command = [*CLI, "--root", str(tmp_path), "--train", "2.13", "--target", "host-cpu", "verify"]
    done = invoke([*command, *arguments])
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []
