#!/bin/sh
# Written by spark-build for the builds that it runs.
cache={{ cache }}
name=${0##*/}
here=${0%/*}

clean=
set -f
IFS=:
for folder in $PATH; do
    [ -e "$folder/{{ mark }}" ] || clean=${clean:+$clean:}$folder
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
            */*) [ ! -e "${real%/*}/{{ mark }}" ] || find_real "${real##*/}" ;;
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
