"""Placeholders such as {jobs} in a recipe's environment variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from spark_build.errors import RecipeError

PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_:.-]+)\}")


def fill(text: str, values: Mapping[str, str | Callable[[], str]], *, where: str) -> str:
    """Replace every {name}; a value may be a function, called only when it is wanted."""

    def value_of(match: re.Match[str]) -> str:
        value = values.get(match.group(1))
        if value is None:
            raise RecipeError(
                f"{{{match.group(1)}}} is no placeholder; there are {', '.join(sorted(values))}", where=where
            )
        return value if isinstance(value, str) else value()

    return PLACEHOLDER.sub(value_of, text)
