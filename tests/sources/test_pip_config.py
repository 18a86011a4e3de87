"""What follows from pip's settings: a pure function."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.errors import SourceError
from spark_build.sources.http import PipConfig, pip_config

WORD = st.text(st.characters(exclude_categories=("Z", "Cc", "Cs")), min_size=1, max_size=20)
MULTIPLE = {"extra-index-url": "extra_index_urls", "find-links": "find_links"}
SINGLE = {"index-url": "index_url", "cert": "cert", "proxy": "proxy", "client-cert": "client_cert"}


def test_nothing_configured_leaves_pips_defaults() -> None:
    assert pip_config({}) == PipConfig()


def test_every_option_is_read() -> None:
    config = pip_config(
        {
            ":env:.default-timeout": "180",
            "global.cert": "/etc/ca.pem",
            "global.client-cert": "/etc/me.pem",
            "global.extra-index-url": "\nhttps://a/simple\nfile:///b/simple",
            "global.find-links": "/wheels https://c/links.html",
            "global.index-url": "https://u:p@d/simple",
            "global.no-index": "Yes",
            "global.proxy": "http://e:3128",
            "global.retries": "7",
            "global.trusted-host": "F.example g:8443",
        }
    )
    assert config == PipConfig(
        index_url="https://u:p@d/simple",
        extra_index_urls=("https://a/simple", "file:///b/simple"),
        find_links=("/wheels", "https://c/links.html"),
        no_index=True,
        cert="/etc/ca.pem",
        client_cert="/etc/me.pem",
        proxy="http://e:3128",
        timeout=180,
        retries=7,
        trusted_hosts=("f.example", "g:8443"),
    )


def test_other_sections_and_options_do_not_count() -> None:
    settings = {
        "list.index-url": "https://wrong/simple",
        "global.format": "columns",
        "global.index-url": "https://right/simple",
    }
    assert pip_config(settings).index_url == "https://right/simple"


@given(st.permutations(["global", "install", "download", ":env:"]), st.integers(1, 4))
def test_a_stronger_section_wins_in_any_order(order: list[str], count: int) -> None:
    given_sections = order[:count]
    strongest = max(given_sections, key=["global", "install", "download", ":env:"].index)
    config = pip_config({f"{section}.index-url": f"https://{section}" for section in given_sections})
    assert config.index_url == f"https://{strongest}"


def test_an_empty_variable_changes_nothing() -> None:
    settings = {":env:.index-url": "", "global.index-url": "https://a"}
    assert pip_config(settings).index_url == "https://a"


@given(
    st.sampled_from(sorted(MULTIPLE)), st.lists(WORD, max_size=5), st.sampled_from([" ", "\n", "\n  ", "\t"])
)
def test_lists_come_back_whatever_is_in_them(option: str, values: list[str], gap: str) -> None:
    config = pip_config({f"global.{option}": gap.join(values)})
    assert list(getattr(config, MULTIPLE[option])) == values


@given(st.sampled_from(sorted(SINGLE)), WORD)
def test_a_value_is_taken_as_it_is(option: str, value: str) -> None:
    assert getattr(pip_config({f":env:.{option}": value}), SINGLE[option]) == value


@pytest.mark.parametrize(
    ("option", "value"),
    [("no-index", "perhaps"), ("timeout", "soon"), ("retries", "-1"), ("timeout", "nan"), ("retries", "inf")],
)
def test_a_value_that_pip_refuses_is_refused(option: str, value: str) -> None:
    with pytest.raises(SourceError, match=option) as caught:
        pip_config({f"global.{option}": value})
    assert value in caught.value.message
    assert caught.value.hint is not None
