"""`verify` of a wheelhouse whose recipes have check scripts: the table, and what a broken operator does."""

from pathlib import Path

from tests.conftest import ROOT, Root

SCRIPT = """
import sys
sys.path.insert(0, {bench!r})
from judging import Skip, run
def here(): return "error 1e-07 (1e-04 allowed)"
def nowhere(): raise Skip("no GPU here")
def wrong():
    import tiny
    assert tiny.answer() == {answer}, f"the answer is {{tiny.answer()}}"
    return "right"
run({{"sum": here, "cuda": nowhere, "answer": wrong}})
"""


def verified(built: Root, folder: Path, answer: int) -> tuple[Root, int, list[str]]:
    """A copy of the root whose recipe has a check: exit code and lines of `verify`."""
    root = built.copy(folder / "root")
    recipe = (root.folder / "recipes" / "tiny.toml").read_text()
    root.recipe(recipe + '\n[verify]\nchecks = ["mine"]\n')
    script = root.folder / "bench" / "checks" / "mine.py"
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT.format(bench=str(ROOT / "bench"), answer=answer))
    done = root.run("verify", "--reverify")
    return root, done.returncode, done.stdout.splitlines()


def test_the_table_names_package_and_check(built: Root, tmp_path: Path) -> None:
    root, code, lines = verified(built, tmp_path, 42)
    assert code == 0
    head, origin, *rows, last = lines
    assert head.split() == ["PACKAGE", "CHECK", "STATUS", "EVIDENCE"]
    assert origin.split()[:2] == ["origin", "ok"]
    assert [row.split()[:3] for row in rows] == [
        ["tiny", "mine.sum", "ok"],
        ["tiny", "mine.cuda", "skipped"],
        ["tiny", "mine.answer", "ok"],
    ]
    assert last == "verified: 3 of 4 checks ok, 1 skipped"
    assert root.json("wheelhouse", "generations")["generations"][-1]["verified"]
    (again,) = (one for one in root.json("verify")["checks"] if one["name"] == "mine.sum")
    assert again == {
        "name": "mine.sum",
        "status": "ok",
        "evidence": "error 1e-07 (1e-04 allowed)",
        "package": "tiny",
    }


def test_a_wrong_operator_is_exit_code_9(built: Root, tmp_path: Path) -> None:
    root, code, lines = verified(built, tmp_path, 43)
    assert code == 9
    assert lines[-2:] == ["verified: 2 of 4 checks ok, 1 skipped", "FAILED mine.answer: the answer is 42"]
    assert not root.json("wheelhouse", "generations")["generations"][-1]["verified"]
    assert root.run("verify").returncode == 9  # also from what was kept
