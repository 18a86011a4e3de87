"""Scripts that stand before the compilers on PATH and call them through the compiler cache.

`compilers/NAME` is the compiler of that name, for projects that call one by name (setuptools, make, torch's
cpp_extension). `tools/ccache` is the launcher for CMake, also for a project that looks for ccache itself.
`tools/cmake` takes `compilers` off PATH while CMake configures: it then finds the real compilers, whose
paths some projects write into what they build, and wraps them once, by the launcher.

ccache 4.7 takes a compilation of nvcc as one thing, but looks at what `nvcc -E` prints, which is one device
pass. Measured with nvcc 13.0 and two architectures: after a change of a header that only the host or only
the other architecture includes, and of code below `#ifndef __CUDA_ARCH__`, it returned the old object. With
CCACHE_DEPEND it goes by nvcc's own list of files, which has those of all passes: all five changes were
seen. It also ignores NVCC_APPEND_FLAGS and NVCC_PREPEND_FLAGS (old object again), and refuses
--generate-dependencies-with-compile and --dependency-output, as cpp_extension calls -MD and -MF, and other
long names. Hence what the script does for nvcc. Its own calls of gcc go past the cache: they never hit.

ccache fails when it cannot write to its folder, so that is asked first.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

MARK = ".spark-build-wrappers"  # a folder with this file holds wrappers, perhaps those of another build
_COMPILER = re.compile(r"((\w+-)*linux-gnu-)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+)(-\d+(\.\d+)*)?|nvcc")

_SCRIPT = """\
#!/bin/sh
# Written by spark-build for the builds that it runs.
cache=@CACHE@
name=${0##*/}
here=${0%/*}

clean=
set -f
IFS=:
for folder in $PATH; do
    [ -e "$folder/@MARK@" ] || clean=${clean:+$clean:}$folder
done
unset IFS
set +f

find_real() {
    real=
    set -f
    IFS=:
    for folder in $clean; do
        if [ -f "$folder/$1" ] && [ -x "$folder/$1" ]; then
            real=$folder/$1
            break
        fi
    done
    unset IFS
    set +f
    [ -n "$real" ] && return
    echo "$1: not found" >&2
    exit 127
}

case $name in
    cmake)
        find_real cmake
        case ${1-} in
            --build | --install | --open | --workflow | -E | -P) ;;
            *) PATH=$here:$clean ;;
        esac
        exec "$real" "$@"
        ;;
    ccache | sccache)
        while :; do
            case ${1-} in
                '' | -*) PATH=$clean exec "$cache" "$@" ;;
                ccache | sccache | */ccache | */sccache) shift ;;
                *) break ;;
            esac
        done
        real=$1
        shift
        case $real in
            */*) [ ! -e "${real%/*}/@MARK@" ] || find_real "${real##*/}" ;;
            *) find_real "$real" ;;
        esac
        ;;
    *) find_real "$name" ;;
esac

export PATH="$clean"
if [ -n "${CCACHE_DIR-}" ] && [ ! -w "$CCACHE_DIR" ]; then
    exec "$real" "$@"
fi
[ "${real##*/}" = nvcc ] || exec "$cache" "$real" "$@"

compiles=
lists=
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    case $argument in
        -c | --compile) compiles=1; argument=-c ;;
        -dc | --device-c) compiles=1; argument=-dc ;;
        --output-file) argument=-o ;;
        --output-file=*) set -- "$@" -o; argument=${argument#*=} ;;
        -MD | -MMD | --generate-dependencies-with-compile | --generate-nonsystem-dependencies-with-compile)
            argument=-MD
            lists=1
            ;;
        --dependency-output) argument=-MF ;;
        --dependency-output=*) set -- "$@" -MF; argument=${argument#*=} ;;
        --dependency-target-name) argument=-MT ;;
        --dependency-target-name=*) set -- "$@" -MT; argument=${argument#*=} ;;
    esac
    set -- "$@" "$argument"
done
[ -n "$compiles" ] || exec "$real" "$@"

export CCACHE_DEPEND=1
# The path may be a script that calls another nvcc; 4 ms.
export CCACHE_COMPILERCHECK='%compiler% --version'
# What nvcc reads from the environment and ccache does not know of.
export CCACHE_NAMESPACE="${NVCC_PREPEND_FLAGS-}|${NVCC_APPEND_FLAGS-}|${NVCC_CCBIN-}"
[ -z "${NVCC_CCBIN-}" ] || export CCACHE_EXTRAFILES="$(command -v "$NVCC_CCBIN")"
[ -z "$lists" ] || exec "$cache" "$real" "$@"
list=$(mktemp) || exec "$real" "$@"
"$cache" "$real" "$@" -MD -MF "$list"
code=$?
rm -f "$list"
exit "$code"
"""


def write(folder: Path, *, program: Path, search: str) -> tuple[Path, Path]:
    """Write wrappers for the compilers on the PATH `search`; the folders to put before it, in order."""
    tools, compilers = folder / "tools", folder / "compilers"
    script = _SCRIPT.replace("@CACHE@", shlex.quote(str(program))).replace("@MARK@", MARK)
    found = {
        path.name
        for place in map(Path, filter(None, search.split(":")))
        if place.is_dir()
        for path in place.iterdir()
        if _COMPILER.fullmatch(path.name) or path.name == "cmake"
    }
    for place, names in (
        (tools, {"ccache", "sccache"} | (found & {"cmake"})),
        (compilers, found - {"cmake"}),
    ):
        place.mkdir(parents=True, exist_ok=True)
        (place / MARK).touch()
        for name in names:
            (place / name).unlink(missing_ok=True)
            (place / name).write_text(script)
            (place / name).chmod(0o755)
    return tools, compilers
