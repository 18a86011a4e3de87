from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_build.errors import Finding
from spark_build.recipes.lint_data import FOLKLORE
from tests.helpers.linting import SHIPPED, changed, line_of, lint_texts

SMALL = """\
name = "small"
distribution = "small"
summary = ""
kind = "pep517"
[build]
[build.env.SMALL_FLAG]
value = "1"
why = "because it is faster"
"""


def env(name: str, value: str) -> str:
    """A variable before [system]: every recipe that is tested has one."""
    return f'[build.env.{name}]\nvalue = "{value}"\nwhy = "setup.py"\n\n[system]'


def test_shipped_files_have_no_errors() -> None:
    findings = lint_texts(SHIPPED)
    assert [str(one) for one in findings if one.severity == "error"] == []
    for one in findings:
        assert "not established" in one.message or "unverified" in one.message, str(one)


@pytest.mark.parametrize(
    ("component", "name"), [(component, name) for component, names in FOLKLORE.items() for name in names]
)
def test_folklore_is_an_error_with_what_to_use_instead(component: str, name: str) -> None:
    (found,) = changed(f"recipes/{component}.toml", "[system]", env(name, "1"))
    assert (found.severity, found.place.subject) == ("error", component)
    assert found.message == f"{name} is not read by {component}"
    assert found.hint == f"use {FOLKLORE[component][name]}"


def test_an_own_recipe_must_name_the_file_that_reads_a_variable() -> None:
    (found,) = [one for one in lint_texts({"recipes/small.toml": SMALL}) if one.place.subject == "small"]
    assert (found.severity, found.place.line) == ("warning", 8)
    assert found.message == "the reason for SMALL_FLAG names no file that reads it"
    named = SMALL.replace("because", "setup.py:")
    assert not lint_texts({"recipes/small.toml": named})


def test_a_gencode_for_every_file() -> None:
    value = "-gencode=arch=compute_121,code=sm_121"
    (found,) = changed("recipes/torch.toml", "[system]", env("TORCH_NVCC_FLAGS", value))
    assert found.severity == "error"
    assert "one more architecture" in found.message


@pytest.mark.parametrize(
    ("recipe", "patch", "stake", "where"),
    [
        ("torch", "attention", "memory-efficient attention built for 12.1", "[train 2.11, 2.9; target gb10]"),
        ("flash-attn", "sm121", "setup.py has no branch for 121", "[target gb10]"),
        ("flash-attn", "cxx20", "setup.py asks for C++17", "[train 2.15]"),
    ],
)
def test_a_result_that_is_wrong_without_a_patch(recipe: str, patch: str, stake: str, where: str) -> None:
    found = changed(f"recipes/{recipe}.toml", patch, "other")
    (error,) = [one for one in found if one.message.startswith(stake)]
    assert (error.severity, error.hint) == ("error", "list one in [[patches]]")
    assert error.message.endswith(f"no patch for it {where}")


def test_a_patch_for_other_trains_does_not_count() -> None:
    found = changed("recipes/torch.toml", 'trains = ["2.9", "2.11"]', 'trains = ["2.9"]')
    (error,) = [one for one in found if one.severity == "error"]
    assert error.message.endswith("no patch for it [train 2.11; target gb10]")


def test_a_lacking_patch_that_the_train_admits_is_a_warning() -> None:
    old = 'version = "2.11.0"\n'
    texts = {
        **SHIPPED,
        "recipes/torch.toml": SHIPPED["recipes/torch.toml"].replace("attention-sm121", "other"),
        "recipes/trains/2.11.toml": SHIPPED["recipes/trains/2.11.toml"].replace(
            f"[components.torch]\n{old}", f'[components.torch]\n{old}unestablished = ["a patch for 12.1"]\n'
        ),
    }
    found = {one.severity: one.message for one in lint_texts(texts) if "writes nothing" in one.message}
    assert "[train 2.11; " in found["warning"]
    assert "[train 2.9; " in found["error"]


def test_lines_lead_to_the_value() -> None:
    file = "recipes/torchvision.toml"
    (found,) = [one for one in changed(file, "{arch_list:cpp_extension}", "8.0f") if one.severity == "error"]
    assert found.place.line == line_of(file, "[build.env.TORCH_CUDA_ARCH_LIST]") + 1
    assert str(found).startswith(f"{file}:{found.place.line}: TORCH_CUDA_ARCH_LIST is '8.0f'")


def test_variants_are_linted_where_they_hold() -> None:
    texts = dict(SHIPPED)
    texts["recipes/torchvision.toml"] += (
        '\n[[build.variants]]\nwhen = { platforms = ["linux-aarch64"] }\n'
        'env.FORCE_CUDA = { value = "0", why = "setup.py" }\n'
    )
    (found,) = [one for one in lint_texts(texts) if one.severity == "error"]
    assert found.message.startswith("FORCE_CUDA is '0'")
    assert "gb10" in found.message
    assert "h200" not in found.message
    assert found.place.line == len(texts["recipes/torchvision.toml"].splitlines())


def test_what_no_target_builds_is_not_asked_for() -> None:
    texts = {file: text for file, text in SHIPPED.items() if "targets" not in file or "host-cpu" in file}
    text = texts["recipes/torchvision.toml"]
    texts["recipes/torchvision.toml"] = text.replace("[build.env.FORCE_CUDA]", "[build.env.DEBUG]")
    assert not [one for one in lint_texts(texts) if one.severity == "error"]


def test_a_broken_file_does_not_hide_what_is_wrong_elsewhere() -> None:
    texts = {**SHIPPED, "recipes/onnx.toml": "name = \n"}
    texts["recipes/torch.toml"] = texts["recipes/torch.toml"].replace("[system]", env("USE_CUBLAS", "1"))
    assert [one.message for one in lint_texts(texts) if one.severity == "error"] == [
        "USE_CUBLAS is not read by torch"
    ]


def test_a_recipe_with_its_own_pin_is_linted_like_a_train() -> None:
    pin = (
        '\n[pin]\nversion = "1.0"\nsources = [{ kind = "git", url = "/srv/small", tag = "v1", '
        f'commit = "{"0" * 40}" }}]\n'
    )
    texts = {"recipes/small.toml": SMALL.replace("because", "setup.py:") + pin}
    (found,) = lint_texts(texts)
    assert (found.severity, found.place.file, found.place.line) == ("warning", "recipes/small.toml", 12)


@pytest.mark.parametrize("pick", [lambda one: one.place.file, lambda one: one.message])
def test_findings_are_sorted_and_told_once(pick: Callable[[Finding], str]) -> None:
    findings = lint_texts(SHIPPED)
    assert len(findings) == len(set(findings))
    assert [one.place.file for one in findings] == sorted(one.place.file for one in findings)
    assert all(pick(one) for one in findings)
