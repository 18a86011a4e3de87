# shellcheck shell=sh
# Makes and mends .venv; sourced by spark-build and run-tests, which set $here (the checkout).
#
# In .venv:  setup          the checkout's path and the SPARK_BUILD_PYTHON it was made with, written first
#            install.log    what venv and pip said
#            installed      the pyproject.toml that was installed, written last: without it .venv is half
#                           made (a kill, a power cut) and is made again
#            installed-dev  the same for the test extras; installed-dev,docs for those and the site's
#            lock-EXTRAS    the tools/locks/EXTRAS.txt that was installed
#
# tools/locks/ has the sha256 of each file that is installed; tools/lock.py writes it. With SPARK_BUILD_UNLOCKED=1
# pip takes what its index offers and pyproject.toml allows instead.

venv=${here:?}/.venv
log=$venv/install.log

say() {
    printf '%s\n' "spark-build: $*" >&2
}

# die MESSAGE: this machine lacks something; 4 is the program's own exit code for that
die() {
    say "$@"
    exit 4
}

# --- every start: builtins, and two of cmp ----------------------------------------------------------

# Was .venv made here, from the Python asked for, and does that still exist?
is_ours() {
    place='' asked=''
    if [ -r "$venv/setup" ]; then
        { read -r place && read -r asked; } <"$venv/setup" || :
    fi
    [ "$place" = "$here" ] && [ "${SPARK_BUILD_PYTHON:-$asked}" = "$asked" ] &&
        [ -x "$venv/bin/python" ] && [ -x "$venv/bin/spark-build" ]
}

# is_installed [EXTRAS]
is_installed() {
    is_ours && cmp -s -- "$here/pyproject.toml" "$venv/installed" && is_lock_known verify &&
        { [ "${1:-verify}" = verify ] ||
            { cmp -s -- "$here/pyproject.toml" "$venv/installed-$1" && is_lock_known "$1"; }; }
}

# is_lock_known EXTRAS: also of a project without a lock
is_lock_known() {
    [ ! -e "$here/tools/locks/$1.txt" ] || cmp -s -- "$here/tools/locks/$1.txt" "$venv/lock-$1"
}

# --- Python ---------------------------------------------------------------------------------------

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

look_for_python() {
    for python in python3 python3.14 python3.13 python3.12 python3.11; do
        if is_new_enough "$python"; then return 0; fi
    done
    return 1
}

# Sets $python to the interpreter's real file: /usr/bin/python3 may be another version after a system
# upgrade, and a .venv that points at it would be broken without looking so.
find_python() {
    if [ -n "${SPARK_BUILD_PYTHON:-}" ]; then
        python=$SPARK_BUILD_PYTHON
        is_new_enough "$python" ||
            die "SPARK_BUILD_PYTHON=$python is no Python 3.11 or newer: correct it or unset it"
    elif ! look_for_python; then
        command -v python3 >/dev/null 2>&1 || install_packages python3 python3-venv
        look_for_python || die "needs Python 3.11 or newer, and python3 here is older: install one, then" \
            "type SPARK_BUILD_PYTHON=/path/to/python3 $0"
    fi
    python=$("$python" -c 'import os, sys; print(os.path.realpath(sys._base_executable))')
}

has_venv_module() {
    "$python" -c 'import venv, ensurepip' >/dev/null 2>&1
}

# Debian keeps what venv needs in a package of its own.
need_venv_module() {
    if has_venv_module; then return 0; fi
    case $python in
        /usr/bin/python3.*) install_packages "${python##*/}-venv" ;;
        *) die "$python lacks the modules venv and ensurepip: install them, or type" \
            "SPARK_BUILD_PYTHON=/path/to/another/python3 $0" ;;
    esac
}

# --- system packages ------------------------------------------------------------------------------

# install_packages NAME...: through apt as root or with a sudo that asks nothing; else says what to type
install_packages() {
    command -v apt-get >/dev/null 2>&1 ||
        die "this machine lacks what Debian and Ubuntu call $*: install it, then try again"
    if [ "$(id -u)" -eq 0 ]; then
        sudo=''
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        sudo='sudo -n'
    else
        say "this machine lacks system packages; type the next line, then try again"
        printf '%s\n' "sudo apt-get update && sudo apt-get install -y $*" >&2
        exit 4
    fi
    say "installing system packages: $*"
    said=$(mktemp)
    # The lists may be missing or out of date: then once more after an update.
    if ! apt_get install "$@" >"$said" 2>&1 &&
        ! { apt_get update >"$said" 2>&1 && apt_get install "$@" >>"$said" 2>&1; }; then
        tail -n 12 "$said" >&2
        rm -f "$said"
        die "apt-get could not install $*: mend what it says above, then try again"
    fi
    rm -f "$said"
}

# Waits for another apt (a fresh Ubuntu upgrades itself); keeps the lock on .venv from any daemon.
apt_get() {
    # shellcheck disable=SC2086 # $sudo is empty or two words
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get -y --no-install-recommends \
        -o DPkg::Lock::Timeout=300 "$@" </dev/null 9>&-
}

# --- .venv ----------------------------------------------------------------------------------------

# set_up EXTRAS: .venv with the package, editable, and verify, dev (which contains it) or dev,docs
set_up() {
    find_python
    # The lock lies on the checkout folder itself: nothing to clean up. pip inherits it, so that after
    # a kill -9 of this shell alone the next start waits for a pip that is still writing.
    exec 9<"$here"
    "$python" -c "$take_lock" 9
    if ! is_installed "$1"; then
        need_venv_module
        # A subshell: the caller's environment reaches the command line unchanged.
        (install "$1")
    fi
    exec 9>&-
}

take_lock='
import fcntl, sys
lock = int(sys.argv[1])
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("spark-build: another start is setting up .venv: waiting for it", file=sys.stderr, flush=True)
    fcntl.flock(lock, fcntl.LOCK_EX)
except OSError:
    pass  # a file system without locks
'

install() {
    # What would lead pip or the new interpreter elsewhere.
    unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX PIP_ROOT PIP_PYTHON PIP_NO_BUILD_ISOLATION
    export PIP_USER=0
    if is_ours && [ -e "$venv/installed" ]; then
        say "updating .venv"
        install_package "$1" || failed
        return
    fi
    if [ -e "$venv/pyvenv.cfg" ] && ! [ -e "$venv/setup" ]; then
        die "$venv was not made by spark-build: move it away, then try again"
    fi
    say "setting up .venv (once, about half a minute)"
    if ! { make_venv && install_package "$1"; }; then
        clear_venv || :
        failed
    fi
}

make_venv() {
    mkdir -p -- "$venv" &&
        printf '%s\n' "$here" "${SPARK_BUILD_PYTHON:-}" >"$venv/setup" &&
        : >"$log" &&
        clear_venv &&
        "$python" -m venv -- "$venv" >>"$log" 2>&1
}

# Leaves only the note of whose .venv it is, and the log.
clear_venv() {
    [ ! -d "$venv" ] ||
        find "$venv/" -mindepth 1 -maxdepth 1 ! -name setup ! -name install.log -exec rm -rf {} +
}

# While pip changes files there is no `installed`; when pip gave up in good order, the old one is back.
install_package() {
    rm -f -- "$venv/replaced"
    cp -- "$here/pyproject.toml" "$venv/installing" || return
    [ ! -e "$venv/installed" ] || mv -- "$venv/installed" "$venv/replaced" || return
    if ! install_locked "$1"; then
        [ ! -e "$venv/replaced" ] || mv -- "$venv/replaced" "$venv/installed"
        return 1
    fi
    # pip compiles what it copies; our own files would otherwise be compiled by the first start, and by
    # every start of a user with PYTHONDONTWRITEBYTECODE.
    "$venv/bin/python" -m compileall -q "$here/spark_build" >>"$log" 2>&1 || :
    for extras in verify "$1"; do
        [ ! -e "$here/tools/locks/$extras.txt" ] ||
            cp -- "$here/tools/locks/$extras.txt" "$venv/lock-$extras" || return
    done
    [ "$1" = verify ] || cp -- "$venv/installing" "$venv/installed-$1" || return
    mv -- "$venv/installing" "$venv/installed"
}

# The locked files and no others, then ourselves by the build backend among them.
install_locked() {
    if [ -n "${SPARK_BUILD_UNLOCKED:-}" ] || [ ! -e "$here/tools/locks/$1.txt" ]; then
        pip_install -e "${here}[$1]"
    else
        pip_install --require-hashes -r "$here/tools/locks/$1.txt" &&
            pip_install --no-deps --no-build-isolation -e "$here"
    fi
}

pip_install() {
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input install --progress-bar off "$@" \
        >>"$log" 2>&1 </dev/null
}

failed() {
    if [ -e "$log" ]; then
        grep -v '^ *$' -- "$log" | tail -n 12 >&2
        say "all of it: $log"
    fi
    die "could not set up $venv: mend what is said above (without a network: PIP_NO_INDEX=1" \
        "PIP_FIND_LINKS=DIR; where the index has other files than tools/locks: SPARK_BUILD_UNLOCKED=1)," \
        "then try again"
}
