"""Parse TOML texts into recipes, trains, targets and locks; report all mistakes of a text at once."""

from __future__ import annotations

import contextlib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from types import GenericAlias, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spark_build.decoding import decoder
from spark_build.errors import Finding, Hint, RecipeError, ours, problem
from spark_build.recipes.fields import SHAPE_ONLY
from spark_build.recipes.model import Recipe, Target, Train
from spark_build.recipes.toml_positions import Mistake, Path, Positions, quote, read_toml
from spark_build.recipes.validation import recipe_findings, target_findings, train_findings
from spark_build.text import did_you_mean

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T", bound=Recipe | Train | Target)

MOST = 200  # mistakes of shape in one file
_NOUNS = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "an array",
    "dict_type": "a table",
    "dataclass_type": "a table",
}


def parse_recipe(text: str, file: str) -> Recipe:
    """Parse recipes/<name>.toml. Raises RecipeError with all its problems."""
    return _parse(text, file, Recipe, recipe_findings)


def parse_train(text: str, file: str) -> Train:
    """Parse recipes/trains/<name>.toml. Raises RecipeError with all its problems."""
    return _parse(text, file, Train, train_findings)


def parse_target(text: str, file: str) -> Target:
    """Parse recipes/targets/<name>.toml. Raises RecipeError with all its problems."""
    return _parse(text, file, Target, target_findings)


def joint_error(problems: Sequence[Finding]) -> RecipeError:
    """Return one error for all problems, of which there is at least one."""
    files = list(dict.fromkeys(problem.place.file for problem in problems))
    subject = f"{files[0]} has" if len(files) == 1 else f"{len(files)} files have"
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return RecipeError(f"{subject} {count}", problems=problems, where=str(problems[0].place))


def _parse(text: str, file: str, kind: type[T], rules: Callable[[T], Iterable[Mistake]]) -> T:
    raw = load_toml(text, file)
    value, findings = _validate(raw, kind)
    findings += _name_findings(raw, file)
    if value is not None:
        findings += rules(value)
    if findings or value is None:
        positions = Positions(text)
        found = {problem(say, file, positions.line(path)) for path, say in findings}
        raise joint_error(sorted(found, key=lambda one: (one.place.line, one.message)))
    return value


def load_toml(text: str, file: str) -> dict[str, Any]:
    """Parse a TOML text. Raises RecipeError when it is none."""
    try:
        return read_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise joint_error([_syntax_problem(str(error), text, file)]) from error


def _syntax_problem(message: str, text: str, file: str) -> Finding:
    """Return the problem with its line, which tomllib puts into its message "(at line 3, column 5)"."""
    match = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
    line = int(match[1]) if match and match[1] else max(1, len(text.splitlines()))
    return problem(f"not valid TOML: {message[: match.start()] if match else message}", file, line)


def _name_findings(raw: Mapping[str, Any], file: str) -> Iterable[Mistake]:
    """Check that a file's name is the name inside: files are found by it."""
    stem = file.rsplit("/", 1)[-1].removesuffix(".toml")
    name = raw.get("name")
    if isinstance(name, str) and name != stem:
        yield ("name",), f"name is '{name}', but the file is named '{stem}.toml'"


@cache
def _adapter(kind: type, extra: Literal["forbid", "ignore"] = "forbid") -> TypeAdapter[Any]:
    """Return the adapter that checks shape and types; its list type configures every class inside."""
    from pydantic import ConfigDict, TypeAdapter

    listed: Any = GenericAlias(list, (kind,))
    return TypeAdapter(listed, config=ConfigDict(extra=extra, strict=True))


def _validate(raw: Mapping[str, Any], kind: type[T]) -> tuple[T | None, list[Mistake]]:
    """Return the value when its shape is right, and all mistakes in single values.

    As JSON, where pydantic's strict mode takes arrays for tuples and tables for classes.
    """
    key: Any = kind
    # Pydantic explains mistakes; importing it and making its schemas takes a fourth of a plan.
    with contextlib.suppress(LookupError, TypeError, ValueError):
        return decoder(key)(raw), []
    from pydantic import ValidationError

    text = json.dumps([raw], default=lambda _: {})
    try:
        return _adapter(key).validate_json(text)[0], []
    except ValidationError as error:
        told = error.errors(include_url=False)[:MOST]  # finding what was meant takes its time
        # "[key]" stands behind a key that is wrong itself.
        details = [(tuple(part for part in detail["loc"][1:] if part != "[key]"), detail) for detail in told]
        findings = _findings(details, raw, kind)
    try:
        return _adapter(key, "ignore").validate_json(text, context=SHAPE_ONLY)[0], findings
    except ValidationError:
        return None, findings


def _findings(details: Sequence[tuple[Path, Any]], raw: Mapping[str, Any], kind: type) -> list[Mistake]:
    """Return pydantic's findings in plain English; a misspelt key is not also reported as missing."""
    missing = {path for path, detail in details if detail["type"] == "missing"}
    findings: list[Mistake] = []
    for path, detail in details:
        if detail["type"] != "unexpected_keyword_argument":
            continue
        hint = did_you_mean(str(path[-1]), _keys_at(kind, path[:-1]))
        findings.append((path, f"unknown key '{path[-1]}'{_inside(path)}{hint}"))
        meant = re.search(r"did you mean '(.*)'", hint)
        missing.discard((*path[:-1], meant[1] if meant else ""))
    for path, detail in details:
        if path in missing:
            findings.append((path, f"missing key '{path[-1]}'{_inside(path)}"))
        elif detail["type"] not in ("missing", "unexpected_keyword_argument"):
            findings.append((path, _say(path, detail, raw)))
    return findings


def _say(path: Path, detail: Any, raw: Mapping[str, Any]) -> str:
    """Return a plain message for a wrong value."""
    if detail["type"] == "rule":
        return str(detail["msg"])
    value: Any = raw
    for part in path:
        value = value[part]
    label = _dotted(path)
    if detail["type"] == "literal_error":
        options = detail["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        return f"{label} must be one of {options}, not {_describe(value)}"
    noun = _NOUNS.get(detail["type"])
    return f"{label} must be {noun}, not {_describe(value)}" if noun else f"{label}: {detail['msg']}"


def _describe(value: Any) -> str:
    """Return a TOML value in words."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, list | dict):
        return "an array" if isinstance(value, list) else "a table"
    return f"the number {value}" if isinstance(value, int | float) else f"the date or time {value}"


def _inside(path: Path) -> str:
    return f" in {_dotted(path[:-1])}" if path[:-1] else ""


def _dotted(path: Path) -> str:
    """Return a key path as people write it: build.env.MAX_JOBS, needs[0].name."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += (
                f"{'.' if text else ''}{part if re.fullmatch('[A-Za-z0-9_-]+', part) else json.dumps(part)}"
            )
    return text


def _keys_at(kind: Any, path: Path) -> list[str]:
    """Return the keys that a table at this path may have."""
    for part in path:
        if is_dataclass(kind):
            kind = get_type_hints(kind)[str(part)]
        else:  # tuple[X, ...] or dict[str, X]
            kind = get_args(kind)[0 if get_origin(kind) is tuple else 1]
        if get_origin(kind) is UnionType:  # X | None
            kind = get_args(kind)[0]
    return [field.name for field in fields(kind)]


_SHA256 = re.compile("[0-9a-f]{64}")
# As `render_lock` writes them.
_PACKAGE = re.compile(
    r'\[\[packages\]\]\nname = "([a-z0-9]+(?:-[a-z0-9]+)*)"\n'
    r'version = "(\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?)"\nwheels = \[\n((?:  .*\n)*)\]\n'
)
_WHEEL = re.compile(r'  \{ path = "([^"\\]+)", hashes = \{ sha256 = "([0-9a-f]{64})" \} \},\n')


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """The wheels that a build environment or a closure may be made of: pin -> file name -> sha256."""

    file: str
    wheels: Mapping[str, Mapping[str, str]]
    owner: str = ""  # as `recipes pin` takes it: a recipe's name, or trains/NAME
    pins: Mapping[str, str] = field(default_factory=dict)  # name -> version of a closure, locked or not

    @property
    def names(self) -> frozenset[str]:
        """Return the names of which it lists wheels."""
        return frozenset(pin.partition("==")[0] for pin in self.wheels)

    def allows(self, file: str, sha256: str) -> bool:
        """Return whether it lists these bytes under this file name."""
        return any(files.get(file) == sha256 for files in self.wheels.values())

    def hashes(self, pins: Sequence[str], platform: str) -> dict[str, tuple[str, ...]]:
        """Return each pin's allowed sha256s for a platform such as linux-aarch64; none: it is not listed."""
        ends = ("-any.whl", f"_{platform.partition('-')[2]}.whl")
        return {
            pin: tuple(
                sorted(
                    one for name, one in self.wheels.get(normalized(pin), {}).items() if name.endswith(ends)
                )
            )
            for pin in pins
        }


def lock_file(owner: str) -> str:
    """Return where the lock of a recipe ("onnx") or a train ("trains/2.13") lies below a data folder."""
    train = owner.removeprefix("trains/")
    # PEP 751 forbids dots in pylock.NAME.toml, and trains have them.
    return f"recipes/locks/pylock.{owner}.toml" if train == owner else f"recipes/locks/{train}/pylock.toml"


def normalized(pin: str) -> str:
    """Return an exact pin as name==version, with the name as indexes have it."""
    name, _, version = pin.partition("==")
    return f"{canonicalize_name(name.strip())}=={version.strip()}"


def parse_lock(text: str, file: str) -> Lock:
    """Return the lock that a text holds. Raises RecipeError when it is none that can be used."""
    written = {
        f"{name}=={version}": dict(_WHEEL.findall(rows)) for name, version, rows in _PACKAGE.findall(text)
    }
    if render_lock(written) == text:  # ten times as fast as TOML, and a plan reads a lock for each recipe
        return Lock(file=file, wheels=written)
    try:
        raw = read_toml(text)
        wheels = dict(_package(one) for one in raw["packages"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecipeError(
            f"{file} is no lock of wheels: {' '.join(str(error).split())[:200]}",
            hint=Hint("delete it, then write it anew: ", ours("recipes pin")),
        ) from error
    return Lock(file=file, wheels=wheels)


def _package(raw: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    found = {str(one["path"]): str(one["hashes"]["sha256"]) for one in raw["wheels"]}
    if bad := [name for name, sha256 in found.items() if not _SHA256.fullmatch(sha256)]:
        raise ValueError(f"the sha256 of {bad[0]}")
    return normalized(str(Requirement(f"{raw['name']}=={raw['version']}"))), found


def render_lock(wheels: Mapping[str, Mapping[str, str]]) -> str:
    """Return the text of a lock; parse_lock gives the same wheels back.

    A wheel is named by a path beside the lock and by no index: its hash decides, wherever it comes from.
    """
    lines = ['lock-version = "1.0"', 'created-by = "spark-build"']
    for pin, files in sorted(wheels.items()):
        name, _, version = pin.partition("==")
        lines += ["", "[[packages]]", f"name = {quote(name)}", f"version = {quote(version)}", "wheels = ["]
        for file, sha256 in sorted(files.items()):
            lines.append(f"  {{ path = {quote(file)}, hashes = {{ sha256 = {quote(sha256)} }} }},")
        lines.append("]")
    return "\n".join(lines) + "\n"
