"""Make values of plain ones, as JSON and TOML have them, by the types of their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

Decoder = Callable[[Any], Any]


@cache
def decoder(kind: Any, *, newer: bool = False) -> Decoder:
    """Return what makes a value of this type of a plain one; a class may do it by itself (`of_plain`).

    Types are exact, but for whole numbers as float. For anything else it raises TypeError, ValueError or
    LookupError. newer: fields that are not known are left out.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        return partial(_table, kind, {name: decoder(one, newer=newer) for name, one in hints.items()}, newer)
    if hasattr(kind, "of_plain"):
        return partial(kind.of_plain)
    if origin is Literal:
        return partial(_choice, arguments)
    if origin is Annotated:
        return partial(_checked, decoder(arguments[0], newer=newer), arguments[1].problem)
    inner = [decoder(one, newer=newer) for one in arguments if one is not ...]
    if origin in (Union, UnionType):
        return partial(_first, inner)
    if origin is tuple:
        return partial(_array, *inner)
    return partial(_named, *inner) if origin in (dict, Mapping) else partial(_single, kind)


def _table(kind: Any, decoders: Mapping[str, Decoder], newer: bool, value: Any) -> Any:
    _single(dict, value)
    known = value if not newer else [name for name in value if name in decoders]
    return kind(**{name: decoders[name](value[name]) for name in known})


def _checked(decode: Decoder, problem: Callable[[Any], str], value: Any) -> Any:
    found = decode(value)
    if said := problem(found):
        raise ValueError(said)
    return found


def _first(decoders: Sequence[Decoder], value: Any) -> Any:
    """Return a value of the first type of a union that fits."""
    for decode in decoders[:-1]:
        try:
            return decode(value)
        except (TypeError, ValueError, LookupError):
            continue
    return decoders[-1](value)


def _array(decode: Decoder, value: Any) -> Any:
    return tuple(map(decode, _single(list, value)))


def _named(decode_name: Decoder, decode: Decoder, value: Any) -> Any:
    return {decode_name(name): decode(one) for name, one in _single(dict, value).items()}


def _choice(choices: Sequence[str], value: Any) -> Any:
    if _single(str, value) not in choices:
        raise ValueError(f"{value!r} is none of {', '.join(choices)}")
    return value


def _single(kind: type, value: Any) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{value!r:.60} is no {kind.__name__}")
    return value
