"""What docs/bench.md shows was printed by the program."""

import re
from pathlib import Path

from tests.measure.test_bench_pages import run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bench.md"


def test_the_table_of_others_is_compared_as_shown(tmp_path: Path) -> None:
    blocks = re.findall(r"```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (table,) = [block for block in blocks if block.startswith("environment,")]
    (shown,) = [block for block in blocks if block.startswith("$ spark-build bench compare theirs.csv\n")]
    file = tmp_path / "theirs.csv"
    file.write_text(table)
    assert run("compare", file).stdout == shown.split("\n", 1)[1]
