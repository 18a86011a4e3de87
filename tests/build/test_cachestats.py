from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.build.compiler_cache import HITS, MISSES, CacheUse, parse_statistics

# What ccache 4.7.5 wrote for: a compilation, the same again, -E, a link, a source with a mistake,
# --version, two sources at once, -save-temps.
CCACHE = """\
# a.cpp
cache_miss
direct_cache_miss
local_storage_miss
local_storage_read_miss
local_storage_read_miss
local_storage_write
local_storage_write
preprocessed_cache_miss
# a.cpp
direct_cache_hit
local_storage_hit
local_storage_read_hit
local_storage_read_hit
# a.cpp
called_for_preprocessing
# a.o
called_for_link
# bad.cpp
compile_failed
direct_cache_miss
local_storage_miss
local_storage_read_miss
local_storage_read_miss
preprocessed_cache_miss
#\x20
no_input_file
# a.cpp
multiple_source_files
# a.cpp
unsupported_compiler_option
"""
# What sccache 0.16.0 printed after eight compilations by gcc and three by nvcc (shortened).
SCCACHE = {
    "stats": {
        "compile_requests": 11,
        "requests_not_cacheable": 2,
        "requests_executed": 27,
        "cache_errors": {"counts": {}, "adv_counts": {}},
        "cache_hits": {
            "counts": {"CUDA": 3, "CUDA (Device code)": 1, "PTX": 1, "CUBIN": 5},
            "adv_counts": {"cuda [nvcc]": 3, "cubin [ptxas]": 5, "ptx [cicc]": 1, "cuda [cudafe++]": 1},
        },
        "cache_misses": {
            "counts": {"C/C++": 8, "PTX": 4, "CUDA (Device code)": 2},
            "adv_counts": {"cuda [cudafe++]": 2, "c [gcc]": 3, "c++ [gcc]": 5, "ptx [cicc]": 4},
        },
        "non_cacheable_compilations": 3,
        "not_cached": {"multiple input files": 2},
    },
    "cache_location": "redis, name: tcp://127.0.0.1:6379, prefix: /",
    "version": "0.16.0",
}
OTHERS = st.sampled_from(["local_storage_hit", "local_storage_read_miss", "direct_cache_miss", ""])
CALLS = st.lists(st.sampled_from(["hit", "miss", "link"]), max_size=30)
COUNTS = st.integers(0, 10_000)


def test_what_ccache_wrote() -> None:
    assert parse_statistics(CCACHE) == CacheUse(hits=1, misses=1)


def test_what_sccache_printed() -> None:
    """The steps inside nvcc are no compilations of their own."""
    assert parse_statistics(json.dumps(SCCACHE)) == CacheUse(hits=3, misses=8)


@given(calls=CALLS, data=st.data())
def test_each_call_counts_once(calls: list[str], data: st.DataObject) -> None:
    counters = {"hit": HITS, "miss": MISSES, "link": {"called_for_link"}}
    text = ""
    for call in calls:
        lines = [data.draw(st.sampled_from(sorted(counters[call]))), *data.draw(st.lists(OTHERS, max_size=4))]
        text += "# src/a b#.cpp\n" + "".join(f"{line}\n" for line in data.draw(st.permutations(lines)))
    assert parse_statistics(text) == CacheUse(hits=calls.count("hit"), misses=calls.count("miss"))


@given(st.text())
def test_no_text_is_too_strange(text: str) -> None:
    parse_statistics(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["stats", "cache_hits", "cache_misses", "counts", "not_cached", "PTX"]), inner
        )
    ),
)


@given(st.dictionaries(st.sampled_from(["stats", "version"]), JSON))
def test_no_json_is_too_strange(value: dict[str, object]) -> None:
    use = parse_statistics(json.dumps(value))
    assert use.rate is None or 0 <= use.rate <= 1


def test_deeply_nested_json_is_not_too_strange() -> None:
    assert parse_statistics('{"stats":' * 100_000) == CacheUse()


@given(hits=COUNTS, misses=COUNTS)
def test_the_words_never_round_to_all_or_nothing(hits: int, misses: int) -> None:
    use = CacheUse(hits=hits, misses=misses)
    assert ("(100%" in str(use)) == (use.rate == 1)
    assert ("(0%" in str(use)) == (use.rate == 0)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (CacheUse(), "nothing that the cache keeps was compiled"),
        (CacheUse(hits=63, misses=5), "63 of 68 compilations from the cache (93%)"),
        (CacheUse(hits=1), "1 of 1 compilation from the cache (100%)"),
        (CacheUse(hits=999, misses=1), "999 of 1000 compilations from the cache (99%)"),
    ],
)
def test_words(use: CacheUse, words: str) -> None:
    assert str(use) == words
