"""INSTALL.txt and NOTICE.txt of an export: what a person reads who was handed the folder."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_build.wheels.model import StoredWheel


@dataclass(frozen=True, kw_only=True, slots=True)
class Licence:
    """A licence text inside a wheel, and where it lies there."""

    wheel: str
    path: str
    text: str


def install_text(
    title: str,
    wheels: Sequence[StoredWheel],
    python: str,
    *,
    with_tool: bool,
    view: str = "",
    pins: Sequence[str] = (),
) -> str:
    """How to install from the folder.

    `python`: the ABI ("cp312"), "" when it is not known; `view`: the options that select the wheels' view;
    `pins`: files with the pins of what is not handed on.
    """
    own = [wheel.name for wheel in wheels if wheel.origin != "public"] or [wheel.name for wheel in wheels]
    names = " ".join(own)
    version = f"{python[2]}.{python[3:].rstrip('t')}" if python else ""
    text = f"""\
{title}: {len(wheels)} wheels{f", for Python {version}" if version else ""}
Type the commands in this folder.

Is the copy whole?

    sha256sum --check --quiet SHA256SUMS

pip, without any network:

    python{version} -m pip install --no-index --find-links . {names}
    python{version} -m pip install --no-index --find-links . --require-hashes -r requirements.txt

uv:

    uv pip install --no-index --find-links . {names}
    uv pip install --no-index --find-links . --require-hashes -r requirements.txt

A Dockerfile, with this folder as the build context (Python {version or "of the wheels"} in the image):

    RUN --mount=type=bind,target=/wheels \\
        pip install --no-index --find-links /wheels --require-hashes -r /wheels/requirements.txt

"""
    if with_tool:
        text += f"""\
spark-build itself, which takes the wheels in, proves every one and verifies them on this machine:

    python{version} -m venv ~/spark-build
    ~/spark-build/bin/python -m pip install --no-index --find-links spark-build 'spark-build[verify]'
    ~/spark-build/bin/spark-build wheelhouse import .
    ~/spark-build/bin/spark-build {view}verify
"""
    else:
        text += "With spark-build on this machine: spark-build wheelhouse import .\n"
    for name in pins:
        recipe = name.partition("-")[0]
        text += f"""
The wheels were compiled with {recipe}, which is not in this folder: NVIDIA's licence does not let it be
handed on. Installing does not want it. Another machine makes the same from its pins ({name}):
spark-build build {recipe}
"""
    return text


def pins_text(recipe: str, version: str, platform: str, wheels: Sequence[tuple[str, str]]) -> str:
    """Pins of a vendor's wheels as pip reads them: (file name, sha256) of each."""
    lines = [
        f"# {recipe} {version} for {platform}: what the wheels in this folder were compiled with.",
        "# It is not here: NVIDIA's licence does not let its compilers and most of its tools be handed on",
        "# (CUDA EULA 1.1.2, and 2.6 attachment A).",
        f"# Another machine makes the same: spark-build build {recipe}. The wheels alone:",
        "# pip download --no-deps --require-hashes -r THIS_FILE",
    ]
    for filename, sha256 in sorted(wheels):
        name, number = filename.split("-")[:2]
        lines.append(f"{name.replace('_', '-')}=={number} --hash=sha256:{sha256}")
    return "\n".join(lines) + "\n"


def notice_text(
    vendors: Mapping[str, Sequence[str]], bundled: Mapping[str, Sequence[str]], licences: Sequence[Licence]
) -> str:
    """Whose libraries are inside and under which terms; each text once.

    vendors: wheels of NVIDIA's own, with where their licence files lie; bundled: other wheels, with the
    libraries of NVIDIA's inside them.
    """
    lines = [
        "This folder holds software of NVIDIA Corporation. NVIDIA's licence terms apply to it, also when you",
        "hand it on: read them below before you do.",
    ]
    for wheel, paths in sorted(vendors.items()):
        lines += ["", wheel, *(f"  licence: {path}" for path in paths or ("none in the wheel: ask NVIDIA",))]
    for wheel, libraries in sorted(bundled.items()):
        said = "  holds libraries of NVIDIA's: " + ", ".join(libraries)
        lines += ["", wheel, *textwrap.wrap(said, 100, subsequent_indent="    ")]
    by_text: dict[str, list[Licence]] = {}
    for one in licences:
        by_text.setdefault(one.text, []).append(one)
    for text, places in by_text.items():
        heading = [f"{one.path} in {one.wheel}" for one in places]
        lines += ["", "=" * 100, *heading, "=" * 100, "", text.rstrip("\n")]
    return "\n".join(lines) + "\n"
