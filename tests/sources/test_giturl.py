"""Addresses of repositories: what is shown of them, where relative ones lead, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.sources.git_remote import (
    BadAddressError,
    check_address,
    check_path,
    check_tag,
    display_url,
    mirror_name,
    redacted,
    resolve_url,
    submodules,
)


@pytest.mark.parametrize(
    ("base", "relative", "leads"),
    [
        ("https://example.org/a/b.git", "../c.git", "https://example.org/a/c.git"),
        ("https://me:pw@example.org/a/b/", "../../c", "https://me:pw@example.org/c"),
        ("git@example.org:a/b", "../c", "git@example.org:a/c"),
        ("/srv/git/a", "./sub", "/srv/git/a/sub"),
        ("file:///srv/git/a", "../b", "file:///srv/git/b"),
        ("https://example.org/a", "https://other.org/b", "https://other.org/b"),
    ],
)
def test_where_an_address_leads(base: str, relative: str, leads: str) -> None:
    assert resolve_url(base, relative) == leads


@pytest.mark.parametrize("base", ["https://example.org/a", "git@example.org:a", "/a"])
def test_no_relative_address_leads_to_another_host(base: str) -> None:
    with pytest.raises(BadAddressError, match="leads above"):
        resolve_url(base, "../../evil.org/x")


@pytest.mark.parametrize(
    "text",
    [
        "fatal: unable to access 'https://me:se%40cret@example.org/x/': no",
        "https://secret@example.org/x",
        "HTTPS://me:se@cret@example.org/x and ssh://git:secret@example.org",
    ],
)
def test_credentials_are_not_shown(text: str) -> None:
    assert "cret" not in redacted(text)
    assert "example.org" in redacted(text)


@given(st.text("ab1.-_", min_size=1), st.text("abc%:.", min_size=1))
def test_a_mirror_does_not_depend_on_credentials(user: str, password: str) -> None:
    plain = "https://example.org/group/lib.git"
    url = f"https://{user}:{password}@example.org/group/lib.git"
    assert display_url(url) == plain
    assert mirror_name(url) == mirror_name(plain) == mirror_name(plain + "/")
    assert mirror_name(plain).endswith("-lib.git")
    assert mirror_name(plain) != mirror_name("https://example.org/other/lib.git")


@given(st.text(max_size=40))
def test_a_mirror_is_one_folder(url: str) -> None:
    name = mirror_name(url)
    assert "/" not in name
    assert name.endswith(".git")
    assert len(name) < 100


@given(st.text(st.sampled_from("./-agit\0"), max_size=12))
def test_accepted_paths_stay_inside(path: str) -> None:
    try:
        check_path(path)
    except BadAddressError:
        return
    parts = path.split("/")
    assert not path.startswith(("/", "-"))
    assert ".." not in parts
    assert ".git" not in parts


@pytest.mark.parametrize(
    "url", ["https://example.org/a", "ssh://git@example.org/a", "git@example.org:a", "/srv/a"]
)
def test_usual_addresses_are_accepted(url: str) -> None:
    check_address(url)


@pytest.mark.parametrize("tag", ["v1.0", "release/2.9", "", "v1.0-rc1+local"])
def test_usual_tags_are_accepted(tag: str) -> None:
    check_tag(tag)


@pytest.mark.parametrize("tag", ["a b", "a:b", "a..b", "-a", "/a", "a/", "a@{1}", "a*", "a\nb", "a.", "a\\b"])
def test_unusable_tags_are_refused(tag: str) -> None:
    with pytest.raises(BadAddressError):
        check_tag(tag)


def test_submodules_that_git_leaves_out_are_left_out() -> None:
    config = {
        "submodule.a.b.path": "third_party/a",
        "submodule.a.b.url": "../a.git",
        "submodule.none.path": "none",
        "submodule.none.url": "../none",
        "submodule.none.update": "none",
        "submodule.gone.path": "gone",
        "submodule.gone.url": "../gone",
    }
    links = {"third_party/a": "1" * 40, "none": "2" * 40}
    (found,) = submodules("https://example.org/g/main", config, links)
    assert (found.path, found.url, found.commit) == ("third_party/a", "https://example.org/g/a.git", "1" * 40)
