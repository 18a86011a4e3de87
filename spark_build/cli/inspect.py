"""The command wheelhouse inspect, and its page."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from packaging.utils import canonicalize_name

from spark_build.cli import render
from spark_build.cli.hints import nothing_checked, typeable
from spark_build.cli.options import Options, command, shared
from spark_build.errors import Finding, HostError, UsageError
from spark_build.text import did_you_mean, format_size, printable
from spark_build.wheels.elf import Needed, explain_library
from spark_build.wheels.model import DeviceCode, Library, WheelFacts, finding_row
from spark_build.wheels.rules_device import demand, device_findings, order

if TYPE_CHECKING:
    from spark_build.build.context import Context
    from spark_build.recipes.model import Recipe
    from spark_build.wheelhouse.generations import Generation
    from spark_build.wheels.device_code import DeviceCodeDifference
    from spark_build.wheels.diff import WheelChange

AUDIT_SAID_NO = 8


@command()
@click.argument("wheel")
@click.argument("other", required=False)
@click.option("--cross-check", is_flag=True, help="Compare the device code with cuobjdump's list.")
@shared
def inspect(options: Options, wheel: str, other: str | None, *, cross_check: bool) -> int:
    """Show the contents of WHEEL, a file or a name in the current generation; with OTHER, the differences."""
    first = _page(options, wheel, cross_check=cross_check)
    second = _page(options, other, cross_check=cross_check) if other else None
    if second is None:
        render.print_json(document(first)) if options.json else show(first)
    else:
        _compare(options, first, second)
    pages = [first, *([second] if second else [])]
    differs = any(rows for page in pages if page.checked for rows in page.checked.values())
    if cross_check and not any(page.checked for page in pages):
        return nothing_checked(
            "there is no device code that --cross-check could compare", "leave --cross-check out"
        )
    return AUDIT_SAID_NO if differs else 0


def _compare(options: Options, first: InspectPage, second: InspectPage) -> None:
    from spark_build.wheels.diff import Side, members, wheel_changes

    found = wheel_changes(*(Side(facts=page.facts, members=members(page.path)) for page in (first, second)))
    if options.json:
        differences = [asdict(finding) for finding in found]
        other = document(second)
        render.print_json({**document(first), "other": other, "differences": differences})
    else:
        show_changes(first, second, found)


def _page(options: Options, wheel: str, *, cross_check: bool) -> InspectPage:
    """Read a wheel and judge it."""
    from spark_build.wheels.reader import read_facts
    from spark_build.wheels.repair import symbol_policies, system_libraries
    from spark_build.wheels.rules import best_platform_tag

    path, setting = _located(options, wheel)
    cuobjdump = _cuobjdump() if cross_check else None
    facts = read_facts(path)
    recipe = _recipe(setting, facts) if setting else None
    findings, judged = _judge(facts, setting, recipe)
    checked = None
    if cuobjdump:
        from spark_build.wheels.diff import cross_checked

        checked = cross_checked(path, facts.device_code, cuobjdump)
    return InspectPage(
        path=path,
        facts=facts,
        findings=findings,
        needed=explain_library(
            facts,
            system_libraries=system_libraries(_platform(facts)),
            provided=recipe.repair.outside if recipe else (),
        ),
        best_tag=best_platform_tag(facts, symbol_policies(_platform(facts))),
        judged=judged,
        checked=checked,
    )


def _located(options: Options, wheel: str) -> tuple[Path, Context | None]:
    """Return the wheel's file and its basis: a view for a name, --target for a file."""
    path = Path(wheel)
    if path.is_file():
        return path, options.setting() if options.target != "auto" else None
    if wheel.endswith(".whl") or "/" in wheel or path.exists():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UsageError(f"{wheel} {what}", hint="name the file of a wheel, or a wheel of the wheelhouse")
    from spark_build.cli.wheelhouse import current

    return _published(current(options), wheel), options.setting()


def _published(found: Generation, name: str) -> Path:
    for wheel in found.wheels:
        if canonicalize_name(wheel.name) == canonicalize_name(name):
            return found.folder / wheel.filename
    known = did_you_mean(name, [wheel.name for wheel in found.wheels])
    raise UsageError(f"no wheel of generation {found.number} is named '{name}'{known}")


def _cuobjdump() -> Path:
    found = shutil.which("cuobjdump")
    if found is None:
        raise HostError(
            "--cross-check needs cuobjdump, which is not on PATH",
            hint="install the CUDA toolkit, or leave --cross-check out",
        )
    return Path(found)


def _recipe(setting: Context, facts: WheelFacts) -> Recipe | None:
    """Return the recipe that builds this wheel, if the train has a version of it."""
    for recipe in setting.catalogue.recipes.values():
        pinned = recipe.name in setting.train.components or recipe.pin is not None
        if pinned and canonicalize_name(recipe.distribution) == facts.name:
            return recipe
    return None


def _judge(
    facts: WheelFacts, setting: Context | None, recipe: Recipe | None
) -> tuple[tuple[Finding, ...], AuditBasis]:
    """Audit by the recipe and its target as for publication, else by the wheel's own name and tags."""
    from spark_build.wheels.audit import findings_alone
    from spark_build.wheels.repair import symbol_policies, system_libraries

    target = setting.target.name if setting else ""
    train = setting.train.name if setting else ""
    if setting is None or recipe is None:
        findings = findings_alone(
            facts,
            system_libraries=system_libraries,
            policies=symbol_policies,
            capabilities=setting.target.cuda_architectures if setting else (),
        )
        return findings, AuditBasis(target=target, train=train)
    return _by_recipe(facts, setting, recipe), AuditBasis(recipe=recipe.name, target=target, train=train)


def _by_recipe(facts: WheelFacts, setting: Context, recipe: Recipe) -> tuple[Finding, ...]:
    from spark_build.recipes.evaluation import evaluate
    from spark_build.wheels.audit import as_vendor, audit
    from spark_build.wheels.repair import symbol_policies, system_libraries
    from spark_build.wheels.rules import AuditExpectation

    pin = setting.train.components.get(recipe.name) or recipe.pin
    assert pin is not None  # `_recipe` has looked
    platform = setting.target.platform
    findings = audit(
        facts,
        AuditExpectation(
            distribution=recipe.distribution,
            version=evaluate(recipe, pin, setting.target, setting.train).wheel_version,
            platform=platform,
            python=setting.target.python,
            provided=recipe.repair.outside,
            system_libraries=system_libraries(platform),
            policies=symbol_policies(platform),
        ),
    )
    findings += device_findings(facts, demand(recipe, setting.target))
    return as_vendor(findings) if recipe.kind == "repack" else findings


def _platform(facts: WheelFacts) -> str:
    from spark_build.wheels.audit import platforms_of

    return platforms_of(facts)[0]


LARGEST = 5
SHOWN = 40  # libraries, or differences of one kind; --json has them all
SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditBasis:
    """Basis of an audit; without fields, the wheel's own name and tags."""

    recipe: str = ""
    target: str = ""
    train: str = ""

    def __str__(self) -> str:
        if not self.target:
            return "its own name and tags; --target NAME adds a GPU and the recipe, if there is one"
        place = f"for {self.target}, train {self.train}"
        return f"recipe {self.recipe} {place}" if self.recipe else f"its own name and tags {place}: no recipe"


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectPage:
    """Everything shown of one wheel; `checked`: where cuobjdump disagrees, None when it was not asked.

    best_tag: the platform tag that it could have, by its symbol versions; "" without machine code.
    """

    path: Path
    facts: WheelFacts
    findings: tuple[Finding, ...]
    needed: tuple[Needed, ...]
    best_tag: str = ""
    judged: AuditBasis = field(default_factory=AuditBasis)
    checked: dict[str, tuple[DeviceCodeDifference, ...]] | None = None


def document(page: InspectPage) -> dict[str, Any]:
    """Return a page as JSON."""
    facts, payload = page.facts, page.facts.payload
    codes = {code.path: code for code in facts.device_code}
    named = {library.path for library in facts.libraries}
    found: dict[str, Any] = {
        "filename": facts.filename,
        "path": str(page.path),
        "name": facts.name,
        "version": facts.version,
        "build": facts.build,
        "tags": list(facts.filename_tags),
        "best_tag": page.best_tag or None,
        "requires": list(facts.requires),
        "size": facts.size,
        "unpacked": payload.unpacked,
        "files": payload.files,
        "largest": [asdict(file) for file in payload.largest],
        "record_ok": not facts.record_problems,
        "judged_by": asdict(page.judged),
        "libraries": [_library(library, codes.get(library.path)) for library in facts.libraries],
        "device_files": [
            {"path": code.path, "kind": code.kind, "sass": code.sass, "ptx": code.ptx, **_more(code)}
            for code in facts.device_code
            if code.path not in named
        ],
        "needed": [asdict(library) for library in page.needed],
        "findings": [{**finding_row(finding), "advice": finding.hint} for finding in page.findings],
    }
    if page.checked is not None:
        found["cross_check"] = {path: [asdict(row) for row in rows] for path, rows in page.checked.items()}
    return found


def _library(library: Library, code: DeviceCode | None) -> dict[str, Any]:
    return {
        "path": library.path,
        "machine": library.machine,
        "needed": list(library.needed),
        "sass": library.sass,
        "ptx": library.ptx,
        **(_more(code) if code else {}),
    }


def _more(code: DeviceCode) -> dict[str, Any]:
    """Return the parts that no import loads."""
    return {
        "lto": code.loaded.lto,
        "relocatable": asdict(code.relocatable),
        "elsewhere": asdict(code.elsewhere),
        "problems": list(code.problems),
    }


def show(page: InspectPage) -> None:
    """Print a page."""
    facts, payload = page.facts, page.facts.payload
    print(printable(facts.filename))
    build = f", build {facts.build}" if facts.build else ""
    print(f"  {facts.name} {printable(facts.version)}{build}, for {' '.join(facts.filename_tags)}")
    record = "RECORD is true" if not facts.record_problems else "RECORD is wrong, see below"
    files = f"{payload.files} files of {format_size(payload.unpacked)}"
    print(f"  {format_size(facts.size)} packed, {files}; {record}")
    if page.best_tag:
        lacking = [one.soname for one in page.needed if one.source == "missing"]
        before = f", once repair has bundled {' '.join(lacking)}" if lacking else ""
        print(f"  best platform tag by its symbol versions: {page.best_tag}{before}")
    print(f"  judged by {page.judged}")
    _title("LARGEST FILES")
    rows = [[format_size(file.size), printable(file.path)] for file in payload.largest[:LARGEST]]
    render.print_table(["SIZE", "FILE"], rows)
    if facts.libraries:
        _title("LIBRARIES AND PROGRAMS")
        # Libraries first: of torch's 140 files of machine code most are test programs.
        ordered = sorted(facts.libraries, key=lambda library: ".so" not in library.path.rpartition("/")[2])
        libraries = [[printable(one.path), one.machine, printable(" ".join(one.needed))] for one in ordered]
        render.print_table(["FILE", "MACHINE", "NEEDS"], libraries[:SHOWN])
        _more_than_shown(len(libraries))
    if page.needed:
        _title("WHERE THEY COME FROM")
        sources = [[printable(one.soname), one.source, printable(one.reason)] for one in page.needed]
        render.print_table(["LIBRARY", "FROM", "WHY"], sources)
    if facts.device_code:
        _title("DEVICE CODE (entries by architecture)")
        for headers, block in code_blocks(facts.device_code, shutil.get_terminal_size((110, 24)).columns):
            render.print_table(headers, block)
    _show_checked(page)
    _show_findings(page.findings)


def _title(text: str) -> None:
    print(f"\n{text}", flush=True)


def _more_than_shown(count: int) -> None:
    if count > SHOWN:
        print(f"and {count - SHOWN} more (--json has them all)")


def code_blocks(codes: Sequence[DeviceCode], width: int) -> list[tuple[list[str], list[list[str]]]]:
    """Return the table of architectures in as many columns as the terminal's width allows."""
    from spark_build.wheels.diff import counts, roles

    short = _distinct([code.path for code in codes])
    rows = [
        (printable(short[code.path]) + where, dict(counts(part)))
        for code in codes
        for where, part in roles(code)
        if counts(part)
    ]
    columns = sorted({target for _, have in rows for target in have}, key=order)
    left = width - max((len(name) for name, _ in rows), default=0)
    each = max(1, left // (2 + max((len(target) for target in columns), default=1)))
    blocks = []
    for start in range(0, len(columns), each):
        part = columns[start : start + each]
        lines = [
            [name, *(str(have.get(target, "-")) for target in part)]
            for name, have in rows
            if any(target in have for target in part)
        ]
        blocks.append((["FILE", *part], lines))
    return blocks


def _distinct(paths: Sequence[str]) -> dict[str, str]:
    """Return the last parts of each path, as many as make it unique."""
    found: dict[str, str] = {}
    for path in paths:
        parts = path.split("/")
        ends = ("/".join(parts[-depth:]) for depth in range(1, len(parts) + 1))
        found[path] = next(
            (end for end in ends if sum(f"/{one}".endswith(f"/{end}") for one in paths) == 1), path
        )
    return found


def _show_checked(page: InspectPage) -> None:
    if page.checked is None:
        return
    _title("CROSS-CHECK")
    for path, differences in page.checked.items():
        said = "cuobjdump lists the same" if not differences else "cuobjdump lists something else:"
        print(f"{printable(path)}: {said}")
        for row in differences:
            print(f"  {row.listing} {row.target}: {row.ours} here, {row.theirs} there")
    if not page.checked:
        print("no device code to check")


def _show_findings(findings: Sequence[Finding]) -> None:
    """Print findings by severity, each with its rule and its fix."""
    numbers = [(sum(finding.severity == kind for finding in findings), kind) for kind in SEVERITIES]
    said = ", ".join(f"{number} {kind}{'s' * (number > 1)}" for number, kind in numbers if number)
    _title(f"FINDINGS: {said or 'none'}")
    for one in sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)):
        print(f"{one.severity}: {one.rule}: {one.message}")
        if one.hint:
            print(f"  next: {typeable(one.hint)}")


def show_changes(first: InspectPage, second: InspectPage, found: Sequence[WheelChange]) -> None:
    """Print the differences between two wheels."""
    print(f"first:  {printable(first.facts.filename)}")
    print(f"second: {printable(second.facts.filename)}")
    if not found:
        print("\nnothing differs that is looked at")
    for kind in dict.fromkeys(finding.kind for finding in found):
        rows = [finding for finding in found if finding.kind == kind]
        _title(kind.upper())
        render.print_table(
            ["WHAT", "FIRST", "SECOND"],
            [
                [printable(row.subject), printable(row.first) or "-", printable(row.second) or "-"]
                for row in rows[:SHOWN]
            ],
        )
        _more_than_shown(len(rows))
