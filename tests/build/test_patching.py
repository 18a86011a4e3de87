"""Patches apply exactly or not at all, in trees of any kind, by the real git."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import pytest

from spark_build.build.patches import PatchState, apply, check, touched_files
from spark_build.errors import HostError, PatchError
from tests.helpers.gitrepos import Repository

SOURCE = "".join(f"int value_{number} = {number};\n" for number in range(1, 41))


def made_patch(folder: Path, before: dict[str, str], after: dict[str, str], context: int = 3) -> Path:
    """What git writes for a change."""
    repository = Repository.make(folder / "made")
    repository.save(before)
    for name in before.keys() - after.keys():
        repository.git("rm", "--quiet", name)
    repository.write(after)
    path = folder / "0001-change.patch"
    text = repository.git("diff", "--cached", "--find-renames", f"-U{context}", "HEAD")
    path.write_text(text + "\n")
    return path


def fill(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def contents(tree: Path) -> dict[str, str]:
    return {str(path.relative_to(tree)): path.read_text() for path in tree.rglob("*") if path.is_file()}


@pytest.fixture
def patch(tmp_path: Path) -> Path:
    """Two hunks in src/a.c: lines 10 and 30 change."""
    after = SOURCE.replace("value_10 = 10", "value_10 = 100").replace("value_30 = 30", "value_30 = 300")
    return made_patch(tmp_path, {"src/a.c": SOURCE}, {"src/a.c": after})


def test_it_applies_also_with_an_offset(patch: Path, tmp_path: Path) -> None:
    tree = fill(tmp_path / "tree", {"src/a.c": "// new line\n" * 7 + SOURCE})
    assert check(patch, tree) == PatchState(state="applies")
    assert "value_10 = 10;" in (tree / "src/a.c").read_text()
    log = io.BytesIO()
    apply(patch, tree, log)
    assert "value_10 = 100;" in (tree / "src/a.c").read_text()
    assert "value_30 = 300;" in (tree / "src/a.c").read_text()
    assert b"$ git apply" in log.getvalue()


def test_what_is_there_already_is_said(patch: Path, tmp_path: Path) -> None:
    tree = fill(tmp_path / "tree", {"src/a.c": SOURCE})
    apply(patch, tree, None)
    before = contents(tree)
    assert check(patch, tree).state == "already-upstream"
    with pytest.raises(PatchError, match="is in the source already"):
        apply(patch, tree, None)
    assert contents(tree) == before


@pytest.mark.parametrize(("change", "state"), [("+x", "already-upstream"), ("-x", "applies")])
def test_what_fits_both_ways_is_not_done_twice(change: str, state: str, tmp_path: Path) -> None:
    """Among equal lines git could apply either direction again and again."""
    patch = tmp_path / "p.patch"
    ranges = "@@ -1,2 +1,3 @@" if change == "+x" else "@@ -1,3 +1,2 @@"
    patch.write_text(f"--- a/a\n+++ b/a\n{ranges}\n x\n{change}\n x\n")
    tree = fill(tmp_path / "tree", {"a": "x\nx\nx\n"})
    assert check(patch, tree).state == state


def test_the_file_and_the_hunk_are_named(patch: Path, tmp_path: Path) -> None:
    changed = "// more\n" * 4 + SOURCE.replace("int value_30 = 30;", "long value_30 = 30;")
    tree = fill(tmp_path / "tree", {"src/a.c": changed})
    state = check(patch, tree)
    assert state.state == "does-not-apply"
    assert state.detail == "src/a.c: the hunk at line 27 does not match"
    with pytest.raises(PatchError, match=r"0001-change.patch does not apply: src/a.c: the hunk") as caught:
        apply(patch, tree, None)
    assert caught.value.where == str(patch)
    assert contents(tree) == {"src/a.c": changed}


def test_a_missing_file_is_named(patch: Path, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    state = check(patch, tmp_path / "tree")
    assert state == PatchState(state="does-not-apply", detail="src/a.c: No such file or directory")


def test_files_come_go_move_and_become_executable(tmp_path: Path) -> None:
    repository = Repository.make(tmp_path / "made")
    repository.save({"gone": "g\n", "old": SOURCE, "run": "#!/bin/sh\n"})
    repository.git("rm", "--quiet", "gone")
    repository.git("mv", "old", "new")
    repository.git("update-index", "--chmod=+x", "run")
    repository.write({"added/ü file": "x\n"})
    patch = tmp_path / "p.patch"
    patch.write_text(repository.git("diff", "--cached", "--find-renames", "HEAD") + "\n")
    tree = fill(tmp_path / "tree", {"gone": "g\n", "old": SOURCE, "run": "#!/bin/sh\n"})
    assert check(patch, tree).state == "applies"
    apply(patch, tree, None)
    assert contents(tree) == {"new": SOURCE, "run": "#!/bin/sh\n", "added/ü file": "x\n"}
    assert (tree / "run").stat().st_mode & 0o100
    assert check(patch, tree).state == "already-upstream"


def test_a_warning_of_git_is_no_path(patch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = shutil.which("git")
    assert git is not None
    own = (
        fill(tmp_path / "bin", {"git": f'#!/bin/sh\necho "warning: 1\t2\tx" >&2\nexec {git} "$@"\n'}) / "git"
    )
    own.chmod(0o755)
    monkeypatch.setenv("PATH", f"{own.parent}:{os.environ['PATH']}")
    assert touched_files(patch) == {"src/a.c"}


def test_paths_of_a_patch_in_a_checkout(patch: Path, tmp_path: Path) -> None:
    clone = Repository.make(tmp_path / "clone")
    inside = fill(clone.folder / "patches" / "torch", {"p.patch": patch.read_text()}) / "p.patch"
    clone.save({".gitignore": "src/\n"})
    assert touched_files(inside) == {"src/a.c"}
    tree = fill(tmp_path / "tree", {"elsewhere/a.c": SOURCE})
    (tree / "src").symlink_to("elsewhere")
    assert check(inside, tree).detail == "src/a.c lies beyond the symbolic link src"


def test_without_git(patch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="cannot run git: it is not installed"):
        check(patch, tmp_path)


def test_paths_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    patch = tmp_path / "p.patch"
    patch.write_bytes(b'--- /dev/null\n+++ "b/\\377x"\n@@ -0,0 +1 @@\n+1\n')
    assert touched_files(patch) == {os.fsdecode(b"\xffx")}
    apply(patch, tmp_path / "tree", None)
    assert list((tmp_path / "tree").iterdir()) == [tmp_path / "tree" / os.fsdecode(b"\xffx")]


def test_a_surrounding_repository_swallows_nothing(patch: Path, tmp_path: Path) -> None:
    clone = Repository.make(tmp_path / "clone")
    clone.save({".gitignore": "build/\n"})
    work = clone.folder / "build" / "torch"
    tree = fill(work / "src", {"src/a.c": SOURCE})
    assert check(patch, tree).state == "applies"
    apply(patch, tree, None)
    assert "value_10 = 100;" in (tree / "src/a.c").read_text()


def test_the_users_git_does_not_matter(patch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Repository.make(tmp_path / "other")
    settings = tmp_path / "gitconfig"
    settings.write_text(
        "[apply]\n\twhitespace = error-all\n\tignoreWhitespace = change\n[core]\n\tautocrlf = true\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_DIR", str(other.folder / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other.folder))
    patch.write_text(patch.read_text().replace("+int value_10 = 100;", "+int value_10 = 100; "))
    tree = fill(tmp_path / "tree", {"src/a.c": SOURCE})
    apply(patch, tree, None)
    assert "value_10 = 100; \n" in (tree / "src/a.c").read_bytes().decode()
    spaced = fill(tmp_path / "spaced", {"src/a.c": SOURCE.replace("int ", "int  ")})
    assert check(patch, spaced).state == "does-not-apply"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "No valid patches"),
        ("--- a/../up\n+++ b/../up\n@@ -1 +1 @@\n-a\n+b\n", "lies outside"),
        ("--- a//etc/x\n+++ b//etc/x\n@@ -1 +1 @@\n-a\n+b\n", "lies outside"),
        ("--- a/link/x\n+++ b/link/x\n@@ -1 +1 @@\n-a\n+b\n", "beyond the symbolic link link"),
        (
            (
                "diff --git a/own b/own\nnew file mode 120000\n--- /dev/null\n+++ b/own\n@@ -0,0 +1 @@\n"
                "+../elsewhere\n\\ No newline at end of file\n--- /dev/null\n+++ b/own/y\n@@ -0,0 +1 @@\n+b\n"
            ),
            "beyond a symbolic link",
        ),
        ("--- /dev/null\n+++ b/.git/hooks/x\n@@ -0,0 +1 @@\n+x\n", "invalid path"),
        ("--- a/a\n+++ b/a\n@@ -1,9 +1,9 @@\n-a\n", "corrupt patch"),
    ],
)
def test_patches_that_are_none(text: str, said: str, tmp_path: Path) -> None:
    tree = fill(tmp_path / "tree", {"a": "a\n"})
    fill(tmp_path / "elsewhere", {"x": "a\n"})
    (tree / "link").symlink_to("../elsewhere")
    patch = tmp_path / "p.patch"
    patch.write_text(text)
    state = check(patch, tree)
    assert state.state == "does-not-apply"
    assert said in state.detail
    with pytest.raises(PatchError):
        apply(patch, tree, None)
    assert contents(tmp_path / "elsewhere") == {"x": "a\n"}


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    patch = tmp_path / "p.patch"
    patch.write_bytes(b"--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n caf\xe9\r\n-x\x0cy\n+z\n")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a").write_bytes(b"caf\xe9\r\nx\x0cy\n")
    apply(patch, tree, None)
    assert (tree / "a").read_bytes() == b"caf\xe9\r\nz\n"


def test_every_file_that_it_reads_or_writes_is_told(tmp_path: Path) -> None:
    patch = tmp_path / "p.patch"
    patch.write_text(
        "diff --git a/old.txt b/new name.txt\nsimilarity index 80%\nrename from old.txt\n"
        "rename to new name.txt\n--- a/old.txt\n+++ b/new name.txt\n@@ -1 +1 @@\n-a\n+b\n"
        "diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "diff --git a/run b/run\nold mode 100644\nnew mode 100755\n"
        'diff --git "a/\\303\\274.c" "b/\\303\\274.c"\n--- "a/\\303\\274.c"\t2024-01-01\n+++ "b/\\303\\274.c"\t2024-01-01\n@@ -1 +1 @@\n-a\n+b\n'
    )
    assert touched_files(patch) == {"old.txt", "new name.txt", "gone", "run", "ü.c"}
