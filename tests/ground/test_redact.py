"""Secrets in text, wherever they stand."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_build.text import scrub, scrub_value

SECRET = "hunter2Xq7"
PLACES = [
    f"https://user:{SECRET}@index.example/simple",
    f"https://{SECRET}@index.example/simple",
    f"PIP_INDEX_URL=https://user:{SECRET}@index.example/simple/",
    f"PIP_EXTRA_INDEX_URL='https://a:b@x.example https://user:{SECRET}@y.example'",
    f"http_proxy=http://user:{SECRET}@proxy.example:3128",
    f"PIP_PROXY=user:{SECRET}@proxy.example:3128",
    f"proxy is /+some+user:{SECRET}@proxy.example:3128",
    f"git clone ssh://git:{SECRET}@host.example/repository",
    f"https://user:pa/ss{SECRET}@index.example/",
    f"https://user:p@ss{SECRET}@index.example/",
    f"https://user:p@ss/w{SECRET}@index.example:8080/x",
    f"https://index.example/redirect?to=https://user:{SECRET}@index.example",
    f"Authorization: Basic {SECRET}",
    f"authorization: Bearer {SECRET}.{SECRET}.{SECRET}",
    f"HF_TOKEN={SECRET}",
    f"export AWS_SECRET_ACCESS_KEY={SECRET}",
    f"AWS_ACCESS_KEY_ID={SECRET}",
    f"SCCACHE_AZURE_CONNECTION_STRING=AccountKey={SECRET};x",
    f'{{"password": "two words {SECRET}"}}',
    f"password: '{SECRET}'",
    f"twine upload --password {SECRET} dist/*",
    f"https://index.example/file.whl?X-Amz-Signature={SECRET}&x=1",
    f"https://index.example/file.whl?token={SECRET}",
    f"api_key = {SECRET}",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----",
    f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
]
TOKENS = [
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2" * 9,
    "glpat-" + "a1B2" * 5,
    "hf_" + "a1B2" * 8,
    "pypi-" + "a1B2" * 10,
    "npm_" + "a1B2" * 9,
    "AKIA" + "A1B2" * 4,
    "xoxb-" + "1234567890-a1",
    "eyJ" + "a1B2" * 4 + ".eyJ" + "a1B2" * 4 + "." + "a1B2" * 4,
    "session-eyJ" + "a1B2" * 4 + "-eyJ." + "a1B2" * 4 + "." + "a1B2" * 4,
]


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_is_gone(place: str) -> None:
    assert SECRET not in scrub(place)
    assert SECRET not in scrub(f"before {place} after\nnext line")


@pytest.mark.parametrize("token", TOKENS)
def test_tokens_are_known_by_their_shape(token: str) -> None:
    assert token not in scrub(f"+ curl -H 'X: {token}'")


@given(
    st.sampled_from(PLACES[:9]),
    st.text(st.characters(categories=("L", "N", "P", "Z")), max_size=30),
    st.text(st.characters(categories=("L", "N", "P", "Z")), max_size=30),
)
@example(PLACES[0], "a:b", "@c")
def test_whatever_stands_around_it(place: str, before: str, after: str) -> None:
    assert SECRET not in scrub(f"{before} {place} {after}")


@given(st.text())
def test_twice_is_once(text: str) -> None:
    once = scrub(text, home="/home/me")
    assert "/home/me/" not in once
    assert scrub(once, home="/home/me") == once


@pytest.mark.parametrize(
    "text",
    [
        "https://index.example/simple/torch/",
        "git+https://github.com/pytorch/pytorch@v2.13.0",
        "fatal: could not read https://example.org: timed out",
        "c++ -I/usr/include/x -DVALUE=1 -o a.o a.cpp:12:3: error: expected ';'",
        '{"key": "3f2a", "recipe": "torch", "seconds": 12.5}',
        "12:30:01 build 9/68 at 2.1 GiB",
        "design = 3; candidate template: signature: void f(int)",
        "https://index.example:8080/path@2",
        "torch==2.13.0+cu130.spark1 --hash=sha256:abcdef",
    ],
)
def test_what_helps_stays(text: str) -> None:
    assert scrub(text) == text


def test_long_lines_take_no_longer() -> None:
    """A pattern that goes back and forth over a log would take hours here."""
    for piece in ("://", "a:", "://a:b", "token", "bearer ", "eyJaaaaaaaaa.", "-", "/home/", "user:"):
        scrub(piece * (200_000 // len(piece)))


@pytest.mark.timeout(30)
def test_runs_of_starts_of_secrets_take_no_longer() -> None:
    """What looks like the beginning of a token at each of its parts, and is none; minutes otherwise."""
    for piece in ("eyJabcdefgh-", "a+"):
        scrub(piece * (500_000 // len(piece)))


def test_homes() -> None:
    said = "/home/ada/build/x.log and /home/ada, /home/bob/.netrc, /homework, /data/home/x"
    assert scrub(said, home="/home/ada") == "~/build/x.log and ~, /home/***/.netrc, /homework, /data/home/x"
    assert scrub("/srv/me/.cache /srv/mean", home="/srv/me") == "~/.cache /srv/mean"


def test_values_stay_json() -> None:
    value = {"env": {"HF_TOKEN": SECRET, "n": 3}, "lines": [f"https://u:{SECRET}@h/ ok", None, True]}
    found = scrub_value(value)
    assert SECRET not in json.dumps(found)
    assert found["env"]["n"] == 3
    assert found["lines"] == ["https://***@h/ ok", None, True]
