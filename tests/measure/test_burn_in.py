"""Burn-ins with a real CPU build of torch, tiny: seconds, not minutes."""

import contextlib
import dataclasses
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_build.errors import UsageError
from spark_build.events import Event, Note, Progress
from spark_build.measure import arms, session
from spark_build.measure.checks import run_checks
from spark_build.measure.model import Arm, BurnIn, Settings, burn_in_json
from spark_build.measure.request import BurnInRequest
from spark_build.measure.verdict import exit_code
from spark_build.paths import Home
from spark_build.reporting import Reporter, reporting
from tests.helpers.wheelhouse import home_in

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "gemm.py"


def test_the_baseline_is_made_once(torch_home: Home, baseline: Arm) -> None:
    assert baseline.versions["torch"].startswith("2.13.0")
    events: list[Event] = []
    assert arms.baseline_arm(torch_home, "2.13", torch_home.build / "baseline", events.append) == baseline
    assert events == []  # reused


def asked(**more: Any) -> BurnInRequest:
    return BurnInRequest(**{"device": "cpu", "quick": True, **more})


def tiny(**changes: object) -> Settings:
    given = session.plan_burn_in(asked(seed=5, size=(128,), rounds=2), SCRIPT)
    given = dataclasses.replace(given, warmup=0.1, window=0.4, tick=0.05)
    return dataclasses.replace(given, **changes)  # type: ignore[arg-type] # by name


def burn(settings: Settings, given: list[Arm], folder: Path) -> tuple[BurnIn, list[Event]]:
    events: list[Event] = []
    return session.burn_in(settings, given, folder, events.append), events


def test_from_rounds_to_report(baseline: Arm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    result, events = burn(tiny(), [baseline], tmp_path)
    assert [each.problem for each in result.rounds] == [""] * 4
    assert {check.status for each in result.rounds for check in each.checks} == {"ok"}
    assert {each.slot.arm for each in result.rounds} == {"public", "public-again"}
    assert result.verdict.word in ("EQUIVALENT", "INCONCLUSIVE")  # never a claim about a build
    assert result.verdict.indicative
    assert exit_code(result.verdict) == 0
    assert [e.done for e in events if isinstance(e, Progress)] == [0, 1, 2, 3, 4]
    assert any(isinstance(event, Note) and "FP16 is left out" in event.message for event in events)
    first = result.rounds[0]
    assert [str(m.case) for m in first.measurements] == ["FP32 128^3 a@b", "BF16 128^3 a@b"]
    assert all(m.window and m.rate > 1e6 for m in first.measurements)  # however busy the machine is
    assert first.telemetry.load is not None
    assert first.environment["torch"]["threads"] == result.settings.threads
    assert "NVIDIA_TF32_OVERRIDE" not in first.environment["variables"]
    assert "NVIDIA_TF32_OVERRIDE" in json.loads(Path(first.file).read_text())["variables"]["left_out"]
    assert any("libtorch_cpu" in library for library in first.environment["libraries"])
    assert first.environment["torch"]["flags"]["float32_matmul_precision"] == "highest"
    page = (tmp_path / "report.html").read_text()
    assert result.verdict.claim in page
    assert page.count("<svg") == 6
    assert "float32_matmul_precision</td><td>highest</td>" in page
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page.split('id="raw"')[0].split("really loaded")[0]
    raw = json.loads((tmp_path / "burn-in.json").read_text())
    assert raw == json.loads(json.dumps(burn_in_json(result, raw=True)))


def test_the_profiler_names_what_ran_and_not_the_calls_that_started_it(baseline: Arm, tmp_path: Path) -> None:
    out = tmp_path / "kernels.json"
    asked = ("--device", "cpu", "--cases", "fp32:64:ab", "--profile", "--out", str(out))
    subprocess.run([baseline.python, str(SCRIPT), *asked], check=True, timeout=120)
    assert "aten::mm" in json.loads(out.read_text())["kernels"]["fp32:64:ab"]
    # What torch's profiler listed on an H200, by torch's own kinds of device.
    listed = {
        "Activity Buffer Request": "CPU",
        "cudaLaunchKernelExC": "CPU",
        "sm90_xmma_gemm_tf32f32": "CUDA",
    }
    code = (
        "import gemm; from types import SimpleNamespace as N; from torch.autograd import DeviceType as D; "
        f"print(gemm.names_of([N(key=k, device_type=getattr(D, v)) for k, v in {listed}.items()], 'cuda'))"
    )
    said = subprocess.run(
        [baseline.python, "-c", code],
        cwd=SCRIPT.parent,
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert said.stdout.strip() == "['sm90_xmma_gemm_tf32f32']"


@pytest.mark.parametrize(
    ("error", "evidence"),
    [("tile", "largest error"), ("nan", "1 elements not finite"), ("repeat", "3 of 4 bitwise equal")],
)
def test_a_planted_error_fails_at_the_first_round(
    baseline: Arm, tmp_path: Path, error: str, evidence: str
) -> None:
    result, _ = burn(tiny(inject=error), [baseline], tmp_path)
    assert (result.verdict.word, exit_code(result.verdict)) == ("FUNCTIONAL-FAIL", 9)
    assert evidence in result.verdict.explanation
    assert len(result.rounds) == 1
    assert "FUNCTIONAL-FAIL" in (tmp_path / "report.html").read_text()


def test_goes_on_after_an_interruption(baseline: Arm, tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, Progress) and event.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.burn_in(tiny(), [baseline], tmp_path, interrupt)
    (place,) = tmp_path.glob("rounds-*")
    before = {file.name: file.read_bytes() for file in place.glob("*.json")}
    assert len(before) == 3
    result, events = burn(tiny(), [baseline], tmp_path)
    after = {file.name: file.read_bytes() for file in place.glob("*.json")}
    torn = next(name for name in before if name.startswith("002"))
    assert {name: after[name] for name in before if name != torn} == {
        n: before[n] for n in before if n != torn
    }
    assert (
        after[torn.replace(".json", ".before-1.json")] == before[torn]
    )  # its pair was torn: kept, not counted
    assert len(result.rounds) == 4
    assert "going on: 2 of 4 rounds are there already" in [e.message for e in events if isinstance(e, Note)]
    assert any("torn" in each for each in result.breaks)
    assert any("after round 2" in each for each in result.breaks)
    gate = next(gate for gate in result.gates if gate.name == "interruptions")
    assert gate.status == "warn"
    again, _ = burn(tiny(), [baseline], tmp_path)
    assert {file.name: file.read_bytes() for file in place.glob("*.json")} == after  # nothing measured again
    assert again.verdict == result.verdict
    burn(tiny(seed=6, inject="nan"), [baseline], tmp_path)
    assert len(list(tmp_path.glob("rounds-*"))) == 2  # other settings are another measurement


def script(folder: Path, name: str, body: str) -> str:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def waits(_message: str) -> None:
    raise BlockingIOError


def interrupted(site: session.MeasureSite) -> Path:
    with contextlib.suppress(KeyboardInterrupt), session.resumed(site, asked(), "burn-in") as run:
        run[2](6)
        (run[0] / "rounds").mkdir()
        raise KeyboardInterrupt
    return run[0]


def test_the_same_wish_waits_for_the_run_that_measures(tmp_path: Path) -> None:
    """What it makes anew in the run's folder, the other one is measuring in."""
    site = session.MeasureSite(home=home_in(tmp_path), train="2.13", generation=None, emit=lambda _: None)
    wish, told = asked(), []
    with contextlib.ExitStack() as first:
        _, seed, begun = first.enter_context(session.resumed(site, wish, "burn-in"))
        assert seed is None
        begun(5)
        with reporting(Reporter(waits)), pytest.raises(BlockingIOError):
            first.enter_context(session.resumed(site, wish, "burn-in"))

        def finish(message: str) -> None:
            told.append(message)
            first.close()

        with reporting(Reporter(finish)), session.resumed(site, wish, "burn-in") as second:
            assert second[1] is None, "the first ended well: this is a new run"
    assert "burn-in" in told[0]
    folder = interrupted(site)
    with session.resumed(site, wish, "burn-in") as (again, seed, _):
        assert (again, seed) == (folder, 6)


def test_crashes_hangs_and_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_build.measure.rounds.time_limit", lambda _: 1)
    crash = Arm(
        name="a", role="baseline", origin="", python=script(tmp_path, "crash", "echo no torch; exit 3")
    )
    result, _ = burn(tiny(), [crash], tmp_path / "crash-run")
    assert result.verdict.word == "FUNCTIONAL-FAIL"
    assert "crashed with exit status 3: no torch" in result.verdict.explanation
    hang = dataclasses.replace(crash, python=script(tmp_path, "hang", "exec sleep 60"))
    result, _ = burn(tiny(), [hang], tmp_path / "hang-run")
    assert result.verdict.word == "FUNCTIONAL-FAIL"
    assert "hung" in result.verdict.explanation
    killed = dataclasses.replace(crash, python=script(tmp_path, "killed", "kill -9 $$"))
    result, _ = burn(tiny(), [killed], tmp_path / "killed-run")
    assert result.verdict.word == "INCONCLUSIVE"
    assert "killed" in result.verdict.explanation
    silent = dataclasses.replace(crash, python=script(tmp_path, "silent", "exit 0"))
    result, _ = burn(tiny(), [silent], tmp_path / "silent-run")
    assert "left no report" in result.verdict.explanation


def test_a_failed_round_is_measured_again_and_remembered(baseline: Arm, tmp_path: Path) -> None:
    switch = tmp_path / "works"
    body = f'[ -e "{switch}" ] || exit 3\nexec "{baseline.python}" "$@"'
    arm = dataclasses.replace(baseline, python=script(tmp_path, "python", body))
    assert burn(tiny(), [arm], tmp_path / "run")[0].verdict.word == "FUNCTIONAL-FAIL"
    switch.touch()
    result, _ = burn(tiny(), [arm], tmp_path / "run")
    assert result.verdict.word != "FUNCTIONAL-FAIL"
    assert any("crashed with exit status 3" in each for each in result.breaks)


def test_what_a_burn_in_refuses(torch_home: Home, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="FP16"):
        session.plan_burn_in(asked(dtype=("fp16",)), SCRIPT)
    with pytest.raises(UsageError, match="too few"):
        session.plan_burn_in(asked(quick=False, rounds=6), SCRIPT)
    with pytest.raises(UsageError, match="no baseline"):
        arms.baseline_arm(torch_home, "1.0", tmp_path / "env", lambda _: None)
    with pytest.raises(UsageError, match="torch"):
        arms.environment_arm("mine", tmp_path)


def test_an_environment_that_prints_first_is_read(tmp_path: Path) -> None:
    """As a .pth file of the user's may; what says nothing of torch is refused as before."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python"
    python.write_text("""#!/bin/sh\nprintf 'hello\\n{"torch": "2.9.0"}\\n'\n""")
    python.chmod(0o755)
    assert arms.environment_arm("mine", tmp_path).versions == {"torch": "2.9.0"}
    python.write_text("#!/bin/sh\necho hello\n")
    with pytest.raises(UsageError, match="no environment with torch"):
        arms.environment_arm("mine", tmp_path)


def test_battery(tmp_path: Path) -> None:
    good = tmp_path / "good.py"
    good.write_text(
        "import json, sys\n"
        "checks = [{'name': 'one', 'status': 'ok', 'evidence': 'seen'}]\n"
        "open(sys.argv[2], 'w').write(json.dumps({'checks': checks}))\n"
    )
    crash = tmp_path / "crash.py"
    crash.write_text(good.read_text() + "import os; print('about to'); sys.stdout.flush(); os.abort()\n")
    fatal = tmp_path / "fatal.py"
    fatal.write_text(
        good.read_text() + "print('FATAL: kernel `x` is for sm80-sm100, but was built for sm121')\n"
    )
    empty = tmp_path / "empty.py"
    empty.write_text("")
    checks = run_checks(
        python=Path(sys.executable), scripts=[good, crash, fatal, empty], work=tmp_path / "work"
    )
    assert [(check.name, check.status) for check in checks] == [
        ("good.one", "ok"),
        ("crash.one", "ok"),
        ("crash.run", "fail"),
        ("fatal.one", "ok"),
        ("fatal.kernels", "fail"),
        ("empty.run", "fail"),
    ]
    assert "134" in checks[2].evidence
    assert "sm121" in checks[4].evidence
