from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from spark_build.resources.governor import Governor
from tests.helpers.jobs import Make, below, is_stopped, make_project, tools
from tests.helpers.wheelhouse import eventually

pytestmark = pytest.mark.machine

__all__ = ["make_project", "tools"]  # fixtures


def test_fewer_jobs_run_when_memory_goes_elsewhere(make_project: Make, tmp_path: Path) -> None:
    project = make_project(120, seconds=0.3)
    governor = Governor(cores=5, memory_budget_mib=1000)
    with governor.stage(
        "s", memory_per_job_mib=180, root=project.root, folder=tmp_path / "work"
    ) as jobserver:
        hungry = "import time; held = b'x' * (620 << 20); time.sleep(6)"
        command = f'ninja & until [ -e go ]; do sleep 0.05; done; {sys.executable} -ISc "{hungry}"; wait'
        process = project.start(jobserver, "sh", "-c", command)
        assert eventually(lambda: project.running() == 5, seconds=30)
        (project.folder / "go").touch()
        assert eventually(lambda: jobserver.sure == 2, seconds=30)
        seen = []
        for _ in range(40):
            seen.append(jobserver.going)
            time.sleep(0.05)
        assert sorted(seen)[len(seen) // 2] <= 2, "each new job runs until it is seen"
        assert eventually(lambda: jobserver.going == 5, seconds=30), "they come back"
        process.terminate()


def test_a_second_stage_gets_its_share_and_leaves_what_it_does_not_use(
    make_project: Make, tmp_path: Path
) -> None:
    first, second = make_project(60, seconds=0.3), make_project(6)
    told: list[tuple[int, int, int, int]] = []
    governor = Governor(cores=4, on_sample=lambda *values: told.append(values))
    with governor.stage("a", memory_per_job_mib=1, root=first.root, folder=tmp_path / "a") as one:
        first.start(one, "ninja")
        assert eventually(lambda: first.running() == 4, seconds=30)
        with governor.stage("b", memory_per_job_mib=1, root=second.root, folder=tmp_path / "b") as two:
            assert first.running() <= 3, "it was let in when a slot was free"
            assert eventually(lambda: one.slots == two.slots == 2, seconds=30)
            process = second.start(two, "ninja")
            assert process.wait(timeout=20) == 0
            assert eventually(lambda: one.slots == 3, seconds=30), "the idle stage keeps its first slot only"
            assert first.running() <= 3
        assert eventually(lambda: first.running() == 4, seconds=30)
    assert max(allowed for _, allowed, _, _ in told) == 4
    assert all(out <= allowed for out, allowed, _, _ in told)
    assert second.most() == 2


def test_a_stage_waits_until_there_is_memory_for_its_first_job(make_project: Make, tmp_path: Path) -> None:
    first = make_project(2, seconds=0.5)
    governor = Governor(cores=4, memory_budget_mib=300)
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(
            governor.stage("a", memory_per_job_mib=200, root=first.root, folder=tmp_path / "a")
        )
        first.start(one, "ninja")
        assert one.sure == 1
        entered = threading.Event()

        def enter() -> None:
            with governor.stage("b", memory_per_job_mib=200, root=lambda: None, folder=tmp_path / "b"):
                entered.set()

        thread = threading.Thread(target=enter)
        thread.start()
        assert not entered.wait(0.7)
        stack.close()
        assert entered.wait(2)
        thread.join()


def test_tokens_lost_with_a_killed_ninja_are_there_in_the_next_stage(
    make_project: Make, tmp_path: Path
) -> None:
    first, second = make_project(9, seconds=0.5), make_project(9)
    governor = Governor(cores=3)
    for project, killed in ((first, True), (second, False)):
        with governor.stage(
            "s", memory_per_job_mib=1, root=project.root, folder=tmp_path / "work"
        ) as jobserver:
            process = project.start(jobserver, "ninja")
            if killed:
                assert eventually(lambda: first.running() == 3, seconds=30)
                process.kill()
                process.wait()
                assert jobserver.unused < jobserver.tokens
            else:
                assert process.wait(timeout=20) == 0
    assert second.most() == 3
    assert not (tmp_path / "work" / "tokens").exists()


def test_a_folder_with_spaces(make_project: Make, tmp_path: Path) -> None:
    """MAKEFLAGS is split at spaces, and who finds no FIFO runs unbounded."""
    for command in ("ninja -j8", "make -j8"):
        project = make_project(6)
        with Governor(cores=2).stage(
            "s", memory_per_job_mib=1, root=project.root, folder=tmp_path / "a b"
        ) as jobserver:
            assert project.start(jobserver, *command.split()).wait(timeout=20) == 0
            elsewhere = jobserver.fifo.parent
        assert project.most() == 2
        assert not elsewhere.exists()


def test_a_file_system_without_fifos(
    make_project: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sshfs."""
    make = os.mkfifo

    def refuse(path: Path, mode: int) -> None:
        if path.is_relative_to(tmp_path / "work"):
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        make(path, mode)

    monkeypatch.setattr(os, "mkfifo", refuse)
    project = make_project(6)
    with Governor(cores=2).stage(
        "s", memory_per_job_mib=1, root=project.root, folder=tmp_path / "work"
    ) as jobserver:
        assert project.start(jobserver, "ninja", "-j8").wait(timeout=20) == 0
        elsewhere = jobserver.fifo.parent
    assert project.most() == 2
    assert not elsewhere.exists()


# --- emergencies ------------------------------------------------------------------------------------


def test_jobs_that_outgrow_the_budget_are_stopped_and_go_on_later(make_project: Make, tmp_path: Path) -> None:
    project = make_project(8, seconds=2.0, mib=150)
    seen: list[int] = []
    stopped = set()
    governor = Governor(cores=4, memory_budget_mib=420, on_sample=lambda _o, _a, used, _b: seen.append(used))
    with governor.stage("s", memory_per_job_mib=10, root=project.root, folder=tmp_path / "work") as jobserver:
        process = project.start(jobserver, "ninja")
        while process.poll() is None:
            stopped |= {one.pid for one in below(process.pid) if is_stopped(one.pid)}
            time.sleep(0.02)
        assert process.returncode == 0
    assert stopped, "some had to wait"
    assert project.log().count("-") == 8, "and all were finished"
    # The oldest job runs whatever happens, and what is stopped keeps its memory; unbounded it is 650.
    # One job may grow between two looks at the memory, where the host takes the processors away.
    assert jobserver.peak_mib <= 420 + 150
    assert 140 <= jobserver.peak_mib_per_job <= 200
    assert jobserver.peak_mib >= max(seen)


def test_jobs_past_their_peak_make_room_for_others(make_project: Make, tmp_path: Path) -> None:
    """As compilers of CUDA: most memory at first, most time with little."""
    project = make_project(7, seconds=0.6, mib=150, tail=3.0)
    governor = Governor(cores=7, memory_budget_mib=420)  # of which twice the peak fits
    with governor.stage(
        "s", memory_per_job_mib=170, root=project.root, folder=tmp_path / "work"
    ) as jobserver:
        assert project.start(jobserver, "ninja").wait(timeout=60) == 0
    assert project.most() > 2
    assert jobserver.peak_mib <= 480, "unbounded it is 1100"


def test_nothing_stays_stopped_after_an_exception(make_project: Make, tmp_path: Path) -> None:
    project = make_project(8, seconds=2.0, mib=150)
    governor = Governor(cores=4, memory_budget_mib=250)
    with (  # noqa: PT012
        pytest.raises(KeyboardInterrupt),
        governor.stage("s", memory_per_job_mib=10, root=project.root, folder=tmp_path / "work") as jobserver,
    ):
        process = project.start(jobserver, "ninja")
        assert eventually(lambda: any(is_stopped(one.pid) for one in below(process.pid)), seconds=10)
        raise KeyboardInterrupt
    assert not [one for one in below(process.pid) if is_stopped(one.pid)]


def test_nothing_stays_stopped_when_the_governor_itself_fails(make_project: Make, tmp_path: Path) -> None:
    project = make_project(8, seconds=2.0, mib=150)

    def fail(*_: int) -> None:
        if any(is_stopped(one.pid) for process in project.started for one in below(process.pid)):
            raise RuntimeError("a listener's mistake")

    governor = Governor(cores=4, memory_budget_mib=250, on_sample=fail)
    with (
        pytest.raises(RuntimeError, match="a listener's mistake"),
        governor.stage("s", memory_per_job_mib=10, root=project.root, folder=tmp_path / "work") as jobserver,
    ):
        assert project.start(jobserver, "ninja").wait(timeout=30) == 0
    assert project.log().count("-") == 8


def test_a_build_that_fills_the_fifo_gets_no_more(make_project: Make, tmp_path: Path) -> None:
    project = make_project(1)
    with Governor(cores=4).stage(
        "s", memory_per_job_mib=1, root=project.root, folder=tmp_path / "work"
    ) as jobserver:
        assert eventually(lambda: jobserver.slots == 4, seconds=30)
        with jobserver.fifo.open("r+b", buffering=0) as hostile:
            os.set_blocking(hostile.fileno(), False)
            for size in (4096, 1):
                while hostile.write(b"+" * size):
                    pass
        tokens = jobserver.tokens
        jobserver.put()
        assert jobserver.tokens == tokens
