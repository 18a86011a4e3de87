"""Patches are read as git writes them, and a hunk that does not fit is found where it fits best."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.build.patches import NOWHERE, contains_lines, nearest_place, parse_patch, touched_files

LINE = st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=12)
TEXT = st.lists(LINE, max_size=25)

RENAMED = """\
From: somebody
Subject: a mail, as git format-patch writes it
---
 old.txt | 2 +-

diff --git a/old.txt b/new name.txt
similarity index 80%
rename from old.txt
rename to new name.txt
index 1..2 100644
--- a/old.txt
+++ b/new name.txt
@@ -1,3 +1,3 @@ heading
 one
-two
+2

@@ -10 +10,0 @@
-ten
\\ No newline at end of file
diff --git a/made.txt b/made.txt
new file mode 100755
index 0..1
--- /dev/null
+++ b/made.txt
@@ -0,0 +1,2 @@
+a
+--- b
diff --git a/gone.txt b/gone.txt
deleted file mode 100644
--- a/gone.txt
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --git a/run.sh b/run.sh
old mode 100644
new mode 100755
diff --git "a/tab\\there" "b/tab\\there"
--- "a/tab\\there"
+++ "b/tab\\there"
@@ -1 +1 @@
-\\303\\274
+u
--
2.39.5
"""


def test_all_that_git_writes() -> None:
    files = parse_patch(RENAMED)
    assert [(file.old, file.new) for file in files] == [
        ("old.txt", "new name.txt"),
        (NOWHERE, "made.txt"),
        ("gone.txt", NOWHERE),
        ("run.sh", "run.sh"),
        ("tab\there", "tab\there"),
    ]
    first, second = files[0].hunks
    assert (first.old, first.new) == (("one", "two", ""), ("one", "2", ""))
    assert (second.number, second.old_start, second.old, second.new) == (2, 10, ("ten",), ())
    assert files[1].path == "made.txt"
    assert files[1].hunks[0].new == ("a", "--- b")
    assert files[3].hunks == ()
    assert touched_files(files) == ("gone.txt", "made.txt", "new name.txt", "old.txt", "run.sh", "tab\there")


def test_plain_diffs_and_octal_names() -> None:
    text = '--- "a/\\303\\274.c"\t2024-01-01\n+++ b/x.c\t2024-01-01\n@@ -1 +1 @@\n-a\n+b\n--- a/y\n+++ b/y\n'
    assert [(file.old, file.new) for file in parse_patch(text)] == [("ü.c", "x.c"), ("y", "y")]
    assert parse_patch("no patch at all\n") == ()


@given(TEXT, TEXT)
def test_what_difflib_writes_is_read_back(before: list[str], after: list[str]) -> None:
    lines = difflib.unified_diff(before, after, "a/some/file", "b/some/file", lineterm="", n=2)
    files = parse_patch("\n".join(lines) + "\n")
    assert touched_files(files) == (("some/file",) if before != after else ())
    rebuilt = list(before)
    for hunk in reversed(files[0].hunks if files else ()):
        start = hunk.old_start - 1 if hunk.old else hunk.old_start
        assert tuple(before[start : start + len(hunk.old)]) == hunk.old
        rebuilt[start : start + len(hunk.old)] = hunk.new
    assert rebuilt == after


@given(TEXT, st.integers(-5, 40))
def test_nonsense_does_not_upset_the_reader(lines: list[str], cut: int) -> None:
    text = RENAMED + "\n".join(lines)
    parse_patch(text[: cut * 20])
    parse_patch("--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n" + "\n".join(lines))
    parse_patch("diff --git " + "\ndiff --git ".join(lines))


@given(TEXT, st.lists(LINE, min_size=1, max_size=6), TEXT, st.integers(-3, 60))
def test_a_piece_that_is_there_is_found(
    before: list[str], piece: list[str], after: list[str], expected: int
) -> None:
    lines = [*before, *piece, *after]
    assert contains_lines(lines, piece)
    place = nearest_place(lines, piece, expected)
    assert place is not None
    assert place.similarity == 1
    assert lines[place.line - 1 : place.line - 1 + len(piece)] == piece


@given(TEXT, TEXT, st.integers(-3, 60))
def test_only_equal_text_is_fully_alike(lines: list[str], wanted: list[str], expected: int) -> None:
    place = nearest_place(lines, wanted, expected)
    assert (place is None) == (not lines or not wanted)
    if place is not None:
        assert 1 <= place.line <= len(lines)
        assert (place.similarity == 1) == contains_lines(lines, wanted)


def test_of_equal_places_the_expected_one_is_named() -> None:
    lines = [f"line {number}" for number in range(100)] + ["if (x) {", "  y();", "}"] * 3
    place = nearest_place(lines, ["if (x) {", "  y();", "}"], 105)
    assert place is not None
    assert place.line == 104


def test_of_many_equal_places_the_nearest_to_the_expected_one_is_named() -> None:
    lines = [f"line {number % 10}" for number in range(600)]
    place = nearest_place(lines, ["line 0", "line 1", "line 2"], 307)
    assert place is not None
    assert (place.line, place.similarity) == (311, 1)


def test_a_piece_with_every_line_edited_is_found_where_it_was() -> None:
    lines = ["{", "    y();", "}"] * 40
    lines[60:63] = ["static int wanted(int a) {", "    return a + some_value;", "};"]
    place = nearest_place(lines, ["static int wanted(int b) {", "    return b + some_value;", "}"], 61)
    assert place is not None
    assert place.line == 61


@pytest.mark.parametrize("expected", [1, 40, 400])
def test_an_edited_piece_is_found(expected: int) -> None:
    lines = [f"int value_{number} = {number};" for number in range(50)]
    lines += ["static int capability(int major)", "{", "    return major == 12 && minor == 0;", "}"]
    wanted = ["static int capability(int major)", "{", "    return major == 12;", "}"]
    place = nearest_place(lines, wanted, expected)
    assert place is not None
    assert place.line == 51
    assert 0.8 < place.similarity < 1


def test_a_piece_longer_than_the_file() -> None:
    place = nearest_place(["a", "b"], ["a", "b", "c"], 1)
    assert place is not None
    assert place.line == 1
    assert not contains_lines(["a", "b"], ["a", "b", "c"])
    assert not contains_lines(["a"], [])
