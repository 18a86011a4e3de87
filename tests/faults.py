"""Does each test turn red for its faults? `python -m tests.faults [--results FILE] [FAULT...]`

Each fault is a small edit. It is made in a copy of the checkout, the named tests run there and must all fail;
before that they must pass. Those of `defences.py` take out what docs/security.md says.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.defences import DEFENCES, Fault

ROOT = Path(__file__).resolve().parents[1]


FAULTS = (
    *DEFENCES,
    Fault(
        name="a farm's tasks given to any platform",
        module="spark_build.farm.client",
        old='    wanted = {VERSION: 1.0, f"platform {target.platform}": 1.0}',
        new="    wanted = {VERSION: 1.0}",
        tests=("test_a_worker_of_another_platform_is_given_nothing",),
    ),
    Fault(
        name="checks that need a GPU given to any worker",
        module="spark_build.farm.client",
        old='demands={**common, f"{GPU} {capability}": 1.0}',
        new="demands=common",
        tests=("test_a_worker_with_a_gpu_checks_what_the_client_cannot",),
    ),
    Fault(
        name="a farm's builds go on when nobody waits for them",
        module="spark_build.farm.task",
        old="    if not wanted:\n",
        new="    if False:\n",
        tests=("test_the_end_of_a_client_ends_its_compilers",),
    ),
    Fault(
        name="a worker's full disk fails the build",
        module="spark_build.farm.client",
        old="            if not isinstance(result.error, HostError | StoreError):",
        new="            if True:",
        tests=("test_a_full_disk_sends_the_recipe_to_another_worker",),
    ),
    Fault(
        name="a farm's restarted scheduler not asked again",
        module="spark_build.farm.client",
        old="        self.renew(client)\n",
        new='        raise HostError("the scheduler is gone")\n',
        tests=("test_after_a_schedulers_restart_what_is_missing_is_handed_in_again",),
    ),
    Fault(
        name="a farm builds in the alphabet's order",
        module="spark_build.build.scheduler",
        old="sorted(steps, key=lambda name: -ahead[name])",
        new="sorted(steps)",
        tests=("test_the_longest_chain_comes_first",),
    ),
    Fault(
        name="fsync left out of the atomic write",
        module="spark_build.files",
        old="            out.flush()\n            os.fsync(out.fileno())\n        Path(temporary).chmod(mode)",
        new="            out.flush()\n        Path(temporary).chmod(mode)",
        tests=("test_a_file_is_on_disk_before_it_has_its_name_and_so_are_new_folders",),
    ),
    Fault(
        name="folder not synced before a store entry is committed",
        module="spark_build.wheelhouse.store",
        old="    sync_tree(folder)\n    folder.chmod(0o755)",
        new="    folder.chmod(0o755)",
        tests=("test_an_entry_is_on_disk_before_it_appears_in_the_store",),
    ),
    Fault(
        name="new parent folders not synced",
        module="spark_build.files",
        old="        folder.mkdir(exist_ok=True)\n        sync_folder(folder.parent)",
        new="        folder.mkdir(exist_ok=True)",
        tests=(
            "test_a_file_is_on_disk_before_it_has_its_name_and_so_are_new_folders",
            "test_an_entry_is_on_disk_before_it_appears_in_the_store",
            "test_a_generation_is_on_disk_before_it_appears",
        ),
    ),
    Fault(
        name="a lock's file that NFS calls stale ends the command",
        module="spark_build.files",
        old="GONE = (errno.ENOENT, errno.ESTALE)",
        new="GONE = (errno.ENOENT,)",
        tests=("test_a_lock_that_another_machine_removed_is_taken_anew",),
        attacks=("two machines publish on NFS",),
    ),
    Fault(
        name="what an NFS client remembers of a lock believed",
        module="spark_build.files",
        old="            os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))\n",
        new="            pass\n",
        tests=("test_a_lock_that_another_machine_has_made_anew_is_seen",),
        attacks=("two machines publish on NFS",),
    ),
    Fault(
        name="--require-hashes left out",
        module="spark_build.environments.installed",
        old='"--no-deps", "--require-hashes", "-r"',
        new='"--no-deps", "-r"',
        tests=("test_an_installer_refuses_a_list_without_hashes",),
    ),
    Fault(
        name="generations sorted as text",
        module="spark_build.wheelhouse.generations",
        old="sorted(int(path.name) for path in generations.iterdir() if path.name.isdecimal())",
        new="sorted((int(path.name) for path in generations.iterdir() if path.name.isdecimal()), key=str)",
        tests=("test_the_tenth_generation_comes_after_the_ninth",),
    ),
    Fault(
        name="toolchain left out of the build key",
        module="spark_build.build.keys",
        old=', "toolchain": dict(toolchain)}',
        new=', "toolchain": {}}',
        tests=("test_the_build_key_knows_the_toolchain",),
    ),
    Fault(
        name="a tree of another key reused",
        module="spark_build.build.recipe_build",
        old="    if work.is_dir() and (not mark.is_file() or mark.read_text() != key):",
        new="    if work.is_dir() and not mark.is_file():",
        tests=("test_a_tree_of_another_key_is_not_used",),
    ),
    Fault(
        name="a stage stamp of other inputs accepted",
        module="spark_build.build.recipe_build",
        old='    return stamp["outputs"] if stamp and stamp["chain"] == chain else None',
        new='    return stamp["outputs"] if stamp else None',
        tests=("test_a_stage_runs_again_for_other_inputs",),
    ),
    Fault(
        name="the build's exit code ignored",
        module="spark_build.build.stages.compilation",
        old="        if done.returncode != 0:\n            raise _first_error(",
        new="        if False:\n            raise _first_error(",
        tests=("test_failing_compiler_names_the_error_and_keeps_the_log",),
    ),
    Fault(
        name="sandbox network open",
        module="spark_build.build.sandbox",
        old='    shared = ["--share-net"] if network else []',
        new='    shared = ["--share-net"]',
        tests=("test_the_sandbox_reaches_no_server",),
        attacks=("a source downloads",),
    ),
    Fault(
        name="builds without the filter of system calls",
        module="spark_build.build.sandbox",
        old="        for filtering in (_filtering(), ()):",
        new="        for filtering in ((),):",
        tests=("test_calls_that_reach_around_namespaces_are_refused", "test_the_users_umask_is_in_no_wheel"),
        attacks=("umask 077",),
    ),
    Fault(
        name="what gc renames not synced before it is deleted",
        module="spark_build.wheelhouse.gc",
        old="        sync_folder(trash)",
        new="        pass",
        tests=("test_what_a_power_cut_leaves",),
        attacks=("a power cut",),
    ),
    Fault(
        name="the switch of current not synced",
        module="spark_build.wheelhouse.generations",
        old='    temporary.replace(view / "current")\n    sync_folder(view)',
        new='    temporary.replace(view / "current")',
        tests=("test_what_a_power_cut_leaves",),
        attacks=("a power cut",),
    ),
    Fault(
        name="guesses of the token not counted",
        module="spark_build.wheelhouse.server",
        old="                self._count(_client(scope))",
        new="                pass",
        tests=("test_guesses_of_the_token_become_slow",),
        attacks=("clients of `serve` try tokens",),
    ),
    Fault(
        name="a file system without locks not told of",
        module="spark_build.files",
        old="error.errno in NO_LOCKS",
        new="not error",
        tests=("test_without_locks_it_is_said",),
        attacks=("a file system without locks",),
    ),
    Fault(
        name="a wrong download hash accepted",
        module="spark_build.sources.download",
        old="        if digest == pinned.sha256:\n            break",
        new="        if digest:\n            break",
        tests=("test_wrong_content_is_refused_and_not_kept",),
        attacks=("an index announces another hash",),
    ),
    Fault(
        name="a remote store's entry of another build accepted",
        module="spark_build.transfer.bundle_import",
        old="    if list(found) != [build_key]:\n",
        new="    if False:\n",
        tests=("test_a_tampered_entry_is_refused[another build-another build than its name says]",),
        attacks=("puts a signed entry",),
    ),
    Fault(
        name="a fetched wheel's content never compared",
        module="spark_build.build.stages.audit",
        old="        if entry.imported and content != entry.content_digest:",
        new="        if False:",
        tests=("test_a_signer_who_says_what_is_not_so_ends_the_build",),
        attacks=("a trusted signer's record names",),
    ),
    Fault(
        name="a prefix pushed to a remote store",
        module="spark_build.transfer.remote",
        old="                if entry is None or entry.prefix is not None:\n",
        new="                if entry is None:\n",
        tests=("test_a_prefix_is_never_pushed",),
        attacks=("a vendor's prefix",),
    ),
    Fault(
        name="a remote store that fails asked again",
        module="spark_build.transfer.remote",
        old="                        self._gone.add(remote.name)\n",
        new="                        pass\n",
        tests=("test_a_store_that_fails_is_asked_once",),
        attacks=("a remote store is gone",),
    ),
    Fault(
        name="publishing without the view's lock",
        module="spark_build.wheelhouse.generations",
        old='        changing(view, "publishing a generation"),\n',
        new="        contextlib.nullcontext(),\n",
        tests=("test_publishing_holds_the_lock_of_the_view",),
        attacks=("two processes build",),
    ),
    Fault(
        name="gc collecting a pinned generation",
        module="spark_build.wheelhouse.gc",
        old="if not one.current and not one.pinned and",
        new="if not one.current and",
        tests=("test_what_may_go_is_nobodys",),
    ),
    Fault(
        name="reuse although the judgement key differs",
        module="spark_build.wheelhouse.judgements",
        old="    if entry.judgement == judgement:\n        return True\n",
        new="    if True:\n        return True\n",
        tests=("test_a_judgement_speaks_of_certain_bytes", "test_what_came_from_elsewhere_is_judged_here"),
    ),
    Fault(
        name=".partial removed after a fetch",
        module="spark_build.sources.download",
        old="    return pinned.final\n",
        new='    if not any((folder / ".partial").iterdir()):\n        (folder / ".partial").rmdir()\n'
        "    return pinned.final\n",
        tests=("test_a_fetch_that_ends_takes_nothing_from_one_whose_server_is_slow",),
    ),
    Fault(
        name="the trash removed with what is in it",
        module="spark_build.files",
        old='"rm", "-rf", "--", *map(str, trash.iterdir())]',
        new='"rm", "-rf", "--", str(trash)]',
        tests=("test_what_a_killed_deletion_left_goes_with_the_next",),
    ),
    Fault(
        name="success where nothing was checked",
        module="spark_build.cli.hints",
        old="    return NothingCheckedError.exit_code\n",
        new="    return 0\n",
        tests=("test_verify_another_platforms_view", "test_check_an_empty_wheelhouse"),
    ),
    Fault(
        name="a hint that names no recipe",
        module="spark_build.measure.session",
        old='hint=ours("build torch")',
        new='hint=ours("build pytorch")',
        tests=("test_every_printed_command_line_can_be_typed",),
    ),
)


class UnknownPlaceError(Exception):
    """A fault's module, text or tests are not there, or not once."""


@functools.cache
def _texts(root: Path, pattern: str) -> tuple[tuple[Path, str], ...]:
    return tuple((path, path.read_text()) for path in sorted(root.glob(pattern)))


def place_of(fault: Fault, root: Path) -> Path:
    """Return the file that a fault edits: its module, else the only one of the package with the text."""
    named = root / f"{fault.module.replace('.', '/')}.py"
    if named.is_file() and named.read_text().count(fault.old) == 1:
        return named
    texts = dict(_texts(root, f"{fault.module.partition('.')[0]}/**/*.py"))
    found = [path for path, text in texts.items() if fault.old in text]
    if len(found) != 1 or texts[found[0]].count(fault.old) != 1:
        raise UnknownPlaceError(f"{fault.name}: its text stands in {len(found)} modules: {fault.old!r}")
    return found[0]


def tests_of(fault: Fault, root: Path) -> Iterator[str]:
    """Yield the tests of a fault as pytest names them; in whatever file they are today."""
    for name in fault.tests:
        function = name.partition("[")[0]
        found = [path for path, text in _texts(root, "tests/**/test_*.py") if f"def {function}(" in text]
        if len(found) != 1:
            raise UnknownPlaceError(f"{fault.name}: {len(found)} files have {function}")
        yield f"{found[0].relative_to(root)}::{name}"


def attack_lines(page: str) -> list[tuple[str, str]]:
    """Return (attack, tests) of each line of docs/security.md that names a test."""
    found = re.findall(r"^\| (.*?) \|.*\| (test_\w[^|]*) \|$", page, re.MULTILINE)
    return [(str(attack), str(tests)) for attack, tests in found]


def lines_taken_out(fault: Fault, page: str) -> set[int]:
    """Return which of these lines a fault takes the defence from; KeyError for one that is not there."""
    attacks = [attack for attack, _ in attack_lines(page)]
    found = {text: {n for n, one in enumerate(attacks) if one.startswith(text)} for text in fault.attacks}
    for text, numbers in found.items():
        if len({attacks[number] for number in numbers}) != 1:
            raise KeyError(f"{fault.name}: {len(numbers)} lines begin with {text!r}")
    return set().union(*found.values())


def edited(fault: Fault, path: Path) -> str:
    """Return the text of a file with the fault in it; what is no Python would prove nothing."""
    text = path.read_text().replace(fault.old, fault.new)
    ast.parse(text, str(path))
    return text


def apply(fault: Fault, root: Path) -> tuple[Path, str]:
    """Make the edit; return the file and its text before."""
    path = place_of(fault, root)
    before = path.read_text()
    path.write_text(edited(fault, path))
    return path, before


def copy_of_checkout(folder: Path) -> Path:
    """Copy what git knows, and what is new and not ignored, to `folder`."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True).stdout.decode().split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def failing(root: Path, tests: Sequence[str]) -> tuple[list[str], str]:
    """Run tests of the copy: (those that fail, what pytest said). Raises UnknownPlaceError when none ran."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "-m",
        "not soak",
        *tests,
    ]
    env = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "500"}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or " skipped" in (done.stdout.splitlines() or [""])[-1]:
        raise UnknownPlaceError(f"no answer from {' '.join(tests)}:\n{done.stdout}{done.stderr}")
    bad = re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return [one for one in tests if any(f"{name}[".startswith(f"{one}[") for name in bad)], done.stdout


def judged(root: Path, fault: Fault, sound: set[str]) -> dict[str, Any]:
    """Return the state of a fault and of its tests, which must all pass without it and all fail with it.

    `sound`: tests that were seen to pass; the others run first, and are added.
    """
    began, tests = time.monotonic(), list(tests_of(fault, root))
    unseen = [one for one in tests if one not in sound]
    bad, said = failing(root, unseen) if unseen else ([], "")
    if bad:
        return {"state": "fails without it", "tests": dict.fromkeys(bad, said[-2000:])}
    sound.update(unseen)
    path, before = apply(fault, root)
    try:
        red, _ = failing(root, tests)
    finally:
        path.write_text(before)
    states = {one: "red" if one in red else "GREEN" for one in tests}
    state = "red" if len(red) == len(tests) else "GREEN"
    return {"state": state, "tests": states, "seconds": round(time.monotonic() - began, 1)}


def rows(root: Path, faults: Sequence[Fault], kept: Path | None) -> Iterator[tuple[Fault, dict[str, Any]]]:
    """Yield each fault with what came of it; what the file `kept` tells is not tried again."""
    known = json.loads(kept.read_text()) if kept and kept.exists() else {"sound": [], "faults": {}}
    sound = set(known["sound"])
    for fault in faults:
        told = known["faults"].get(fault.name, {})
        text = repr(fault)
        if told.get("fault") != text or told["state"] != "red":
            told = {"fault": text, **judged(root, fault, sound)}
            known = {"sound": sorted(sound), "faults": {**known["faults"], fault.name: told}}
            if kept:
                kept.write_text(json.dumps(known, indent=1))
        yield fault, told


def main(arguments: Sequence[str]) -> int:
    """Print the table; return 1 when a fault was not seen, or a test fails without one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="FAULT", help="only faults with this in their name")
    parser.add_argument("--results", type=Path, help="keep the answers in this file, and go on by it")
    given = parser.parse_args(arguments)
    chosen = [one for one in FAULTS if not given.names or any(name in one.name for name in given.names)]
    page = (ROOT / "docs" / "security.md").read_text()
    red: list[Fault] = []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        root = copy_of_checkout(Path(folder))
        for fault in chosen:
            place_of(fault, root)
        width = max((len(fault.name) for fault in chosen), default=0)
        print(f"{'FAULT'.ljust(width)}  STATE  SECONDS  TESTS")
        for fault, told in rows(root, chosen, given.results):
            red += [fault] if told["state"] == "red" else []
            seen = ", ".join(
                one if state == "red" else f"{one}: {state}" for one, state in told["tests"].items()
            )
            print(
                f"{fault.name.ljust(width)}  {told['state']:5}  {told.get('seconds', 0):7.1f}  {seen}",
                flush=True,
            )
    lines = set().union(*(lines_taken_out(fault, page) for fault in red))
    print(f"{len(chosen)} faults, {len(red)} red, {len(chosen) - len(red)} not seen by their tests")
    print(
        f"{len(lines)} of {len(attack_lines(page))} lines of docs/security.md seen red without their defence"
    )
    return 0 if chosen and len(red) == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
