"""What a rule of `recipes lint` has to say, before its line number is looked up."""

from __future__ import annotations

from typing import Literal, NamedTuple

from spark_build.recipes.toml_positions import Path

Severity = Literal["error", "warning"]


class Remark(NamedTuple):
    """One finding; `path` leads to the key in the TOML file."""

    severity: Severity
    file: str  # "recipes/torch.toml"
    path: Path
    message: str
    hint: str = ""


def recipe_file(name: str) -> str:
    """The display name of a recipe's file."""
    return f"recipes/{name}.toml"


def train_file(name: str) -> str:
    """The display name of a train's file."""
    return f"recipes/trains/{name}.toml"
