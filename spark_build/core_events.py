"""Events as rows of JSON and back, by the names and the types of their fields.

Rows outlive the program that wrote them: what a newer one added is left out, never an error.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from spark_build import errors
from spark_build.errors import Problem, RecipeError, SparkBuildError
from spark_build.events import Event

KINDS: dict[str, type] = {one.__name__: one for one in get_args(Event)}


def encode(event: Event) -> dict[str, Any]:
    """A row for an event, of what JSON knows."""
    return {"event": type(event).__name__, **_plain(event)}


def decode(row: Mapping[str, Any]) -> Event | None:
    """The event of a row; None for a kind that is not known here, or fields that do not fit it."""
    kind = KINDS.get(str(row.get("event")))
    try:
        event: Event | None = None if kind is None else _record(row, kind)
    except (TypeError, ValueError):
        return None
    return event


def _plain(value: Any) -> Any:
    if isinstance(value, SparkBuildError):
        return _plain_error(value)
    if dataclasses.is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _plain_error(error: SparkBuildError) -> dict[str, Any]:
    row = {"type": type(error).__name__, "message": error.message, "where": error.where}
    row |= {"hint": error.hint, "log": error.log}
    if isinstance(error, RecipeError):
        row["problems"] = _plain(error.problems)
    return row


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Types of the fields of a dataclass; looked up once for thousands of rows."""
    return get_type_hints(kind)


def _record(raw: Any, kind: type) -> Any:
    """A dataclass from the fields that it knows; those that lack keep their defaults."""
    if not isinstance(raw, Mapping):
        raise TypeError(kind)
    return kind(**{name: _value(raw[name], hint) for name, hint in _hints(kind).items() if name in raw})


def _value(raw: Any, hint: Any) -> Any:
    """A value of the type that the hint names; TypeError or ValueError where it is of another."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _first(raw, arguments)
    if origin is Literal and raw in arguments:
        return raw
    if origin is tuple and isinstance(raw, list):
        return tuple(_value(one, kind) for one, kind in zip(raw, _each(arguments, len(raw)), strict=True))
    if origin in (dict, Mapping) and isinstance(raw, Mapping):
        return {name: _value(one, arguments[1]) for name, one in raw.items()}
    if isinstance(hint, type) and origin is None:
        return _single(raw, hint)
    raise TypeError(hint)


def _first(raw: Any, kinds: tuple[Any, ...]) -> Any:
    """A value of the first type of a union that it fits."""
    for kind in kinds:
        try:
            return _value(raw, kind)
        except (TypeError, ValueError):
            continue
    raise TypeError(kinds)


def _each(arguments: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """Types of the elements of a tuple; `tuple[X, ...]` has as many as there are."""
    return arguments[:1] * count if arguments[1:] == (...,) else arguments


def _single(raw: Any, kind: type) -> Any:
    if kind is type(None) and raw is None:
        return None
    if issubclass(kind, SparkBuildError) and isinstance(raw, Mapping):
        return _error(raw)
    if dataclasses.is_dataclass(kind):
        return _record(raw, kind)
    if kind is float and type(raw) is int:
        return float(raw)
    if kind in (str, int, float, bool) and type(raw) is kind:
        return raw
    raise TypeError(kind)


def _error(raw: Mapping[str, Any]) -> SparkBuildError:
    """An error of the kind that its row names, else of no particular kind."""
    named = getattr(errors, str(raw.get("type")), None)
    kind = named if isinstance(named, type) and issubclass(named, SparkBuildError) else SparkBuildError
    error: SparkBuildError = kind(str(raw.get("message", "")), where=raw.get("where"), hint=raw.get("hint"))
    error.log = raw.get("log")
    if isinstance(error, RecipeError):
        error.problems = _value(raw.get("problems", []), tuple[Problem, ...])
    return error
