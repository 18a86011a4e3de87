import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.errors import UsageError
from spark_build.measure.request import ArmWish, parse_arm, parse_arms


def test_what_can_be_said() -> None:
    assert parse_arm("public") == ArmWish(name="public", what="public")
    assert parse_arm("mine=/srv/env") == ArmWish(name="mine", what="/srv/env")
    ngc = parse_arm("ngc=container:nvcr.example/pytorch:25.10-py3")
    assert (ngc.name, ngc.image) == ("ngc", "nvcr.example/pytorch:25.10-py3")
    slow = parse_arm("slow=public,threads=1,NVIDIA_TF32_OVERRIDE=0,A_B=x=y")
    assert (slow.what, slow.threads, slow.env) == ("public", 1, {"NVIDIA_TF32_OVERRIDE": "0", "A_B": "x=y"})
    assert slow.image == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no arm"),
        ("/srv/env", "no arm"),
        ("=public", "no arm"),
        ("x=", "no arm"),
        ("a b=public", "no name"),
        ("../x=public", "no name"),
        ("x=container:", "no image"),
        ("x=public,threads", "no KEY=VALUE"),
        ("x=public,1A=2", "no KEY=VALUE"),
        ("x=public,threads=0", "no number"),
    ],
)
def test_what_cannot(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_arm(text)


def test_names_are_said_once() -> None:
    assert [wish.name for wish in parse_arms(["public", "b=public"])] == ["public", "b"]
    with pytest.raises(UsageError, match="one name"):
        parse_arms(["public", "public=wheelhouse"])


@given(st.text(max_size=40))
def test_anything_else_is_one_clear_error(text: str) -> None:
    with contextlib.suppress(UsageError):  # any other exception would be a bug
        wish = parse_arm(text)
        assert wish.name
        assert wish.what
