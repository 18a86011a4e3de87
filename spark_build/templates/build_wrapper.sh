#!/bin/sh
# Written by spark-build for the builds that it runs.
name=${0##*/}
fifo=${SPARK_BUILD_JOBSERVER-}

find_real() {
    set -f
    IFS=:
    for folder in $PATH; do
        if [ -f "$folder/$1" ] && [ -x "$folder/$1" ] && [ ! -e "$folder/{{ mark }}" ]; then
            real=$folder/$1
            break
        fi
    done
    unset IFS
    set +f
}

real=
find_real "$name"

# Whether these words would build something; ninja's -v is talkative, make's is its version.
builds() {
    for word in "$@"; do
        case $name:$word in
            *:--version | *:-h | *:--help | *:-n | *:--dry-run | *:--just-print | *:--recon) return 1 ;;
            ninja:-t* | *make:-v | *make:-q | *make:--question) return 1 ;;
        esac
    done
}

# Whether a configure step stands above process $1.
configures() {
    pid=$1
    while [ "${pid:-0}" -gt 1 ] && [ -r "/proc/$pid/status" ]; do
        is_configure_step && return
        while read -r key value; do
            if [ "$key" = PPid: ]; then
                pid=$value
                break
            fi
        done < "/proc/$pid/status"
    done
    return 1
}

# Process $pid is CMake without a mode of its own, or a configure script; an interpreter may come first.
is_configure_step() {
    place=0
    found=
    words=$(tr '\0' '\n' 2>/dev/null < "/proc/$pid/cmdline") || return 1
    while IFS= read -r word; do
        place=$((place + 1))
        case $found:$word in
            cmake:--build | cmake:--install | cmake:--open | cmake:--workflow) return 1 ;;
            cmake:-E | cmake:-P) return 1 ;;
        esac
        [ "$place" -le 2 ] || continue
        case ${word##*/} in
            cmake | cmake3) found=cmake ;;
            configure | config.status) found=configure ;;
        esac
    done <<WORDS
$words
WORDS
    [ -n "$found" ]
}

stop=${SPARK_BUILD_STOP-}
if [ -n "$stop" ] && builds "$@" && ! configures "$PPID"; then
    call="$name${1:+ $*}"
    echo "$call" > "$stop"
    echo "{{ sign }} $call" >&2
    # Whoever started the build ends it now. Where nobody does, our caller learns that nothing was built.
    sleep 5
    exit {{ stopped }}
fi
[ -n "$real" ] || [ "$name" != gmake ] || find_real make
if [ -z "$real" ]; then
    echo "$name: not found" >&2
    exit 127
fi
[ -p "$fifo" ] || exec "$real" "$@"

left=$#
rest=
jobs=
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    before=
    if [ -n "$rest" ]; then
        set -- "$@" "$argument"
        continue
    fi
    case $argument in
{% if ninja %}
        -- | -t?*) rest=1; set -- "$@" "$argument" ;;
        -t) rest=1; set -- "$@" "$argument" ;;
        --*) set -- "$@" "$argument" ;;
        -j* | -l* | -[nvh]j* | -[nvh]l* | -[nvh][nvh]j* | -[nvh][nvh]l*)
            before=${argument%%[jl]*}
            value=${argument#"$before"}
            letter=${value%"${value#?}"}
            value=${value#?}
            if [ -z "$value" ] && [ "$left" -gt 0 ]; then
                value=$1
                shift
                left=$((left - 1))
            fi
            [ "$letter" = j ] && jobs=$value
            [ "$before" = - ] || set -- "$@" "$before"
            ;;
        -[Cfkdw])
            set -- "$@" "$argument"
            if [ "$left" -gt 0 ]; then
                argument=$1
                shift
                left=$((left - 1))
                set -- "$@" "$argument"
            fi
            ;;
        *) set -- "$@" "$argument" ;;
    esac
done

export MAKEFLAGS=" -j{{ cores }} --jobserver-auth=fifo:$fifo"
[ "$jobs" = 1 ] && exec "$real" -j1 "$@"
case $("$real" --version 2>/dev/null) in
    0.* | 1.[0-9] | 1.[0-9].* | 1.1[0-2] | 1.1[0-2].*) ;;
    *) exec "$real" "$@" ;;
esac
# This one knows no jobserver: it gets the tokens that are free now, for as long as it runs.
tokens=$(dd if="$fifo" iflag=nonblock bs=1 count=4096 2>/dev/null)
"$real" -j$((${{ "{#" }}tokens} + 1)) "$@"
code=$?
printf %s "$tokens" 1<>"$fifo"
exit "$code"
{% else %}
        --) rest=1; set -- "$@" "$argument" ;;
        --jobs=*) jobs=${argument#*=} ;;
        --load-average=* | --max-load=*) ;;
        --jobs | --load-average | --max-load) value= ; before=- ;;
        --*) set -- "$@" "$argument" ;;
        -[CfIoWE])
            set -- "$@" "$argument"
            if [ "$left" -gt 0 ]; then
                argument=$1
                shift
                left=$((left - 1))
                set -- "$@" "$argument"
            fi
            ;;
        -j* | -l* | -[bBdeiknpqrRsStvw]j* | -[bBdeiknpqrRsStvw][bBdeiknpqrRsStvw]j*)
            before=${argument%%[jl]*}
            value=${argument#"$before"}
            value=${value#?}
            case $argument in "$before"j?*) jobs=$value ;; esac
            [ "$before" = - ] || set -- "$@" "$before"
            ;;
        *) set -- "$@" "$argument" ;;
    esac
    # The number may be the next argument; it need not be there.
    if [ -n "$before" ] && [ -z "$value" ] && [ "$left" -gt 0 ]; then
        case $1 in
            *[!0-9.]* | '') ;;
            *)
                case $argument in *j | --jobs) jobs=$1 ;; esac
                shift
                left=$((left - 1))
                ;;
        esac
    fi
done

# MAKEFLAGS is "letters -options -- variables"; the jobserver of whoever called is among the options.
flags=${MAKEFLAGS-}
variables=
case $flags in *' -- '*) variables=" -- ${flags#* -- }"; flags=${flags%% -- *} ;; esac
read_end=
write_end=
kept=
case $flags in [!\ -]*) kept=${flags%% *} ;; esac
set -f
for flag in ${flags#"$kept"}; do
    case $flag in
        --jobserver-auth=*,* | --jobserver-fds=*,*)
            flag=${flag#*=}
            read_end=${flag%,*}
            write_end=${flag#*,}
            ;;
        --jobserver-* | -j* | -l*) ;;
        *) kept="$kept $flag" ;;
    esac
done
set +f
if [ "$jobs" = 1 ]; then
    export MAKEFLAGS="$kept$variables"
    exec "$real" -j1 "$@"
fi

# Two descriptors of the FIFO, which speak the form that every make since 4.2 knows.
if ! [ "/proc/self/fd/$read_end" -ef "$fifo" ] || ! [ "/proc/self/fd/$write_end" -ef "$fifo" ]; then
    read_end=
    write_end=
    for number in 9 8 7 6 5 4 3; do
        if [ ! -e "/proc/self/fd/$number" ]; then
            if [ -z "$read_end" ]; then read_end=$number; else write_end=$number; break; fi
        fi
    done
    [ -n "$write_end" ] || exec "$real" -j1 "$@"
    eval "exec $read_end<>\"\$fifo\" $write_end<>\"\$fifo\""
fi
case $kept in [!\ -]*) ;; *) kept=" ${kept# }" ;; esac
export MAKEFLAGS="$kept -j{{ cores }} --jobserver-auth=$read_end,$write_end$variables"
# A make below comes through here again, so that its -j is dropped, too.
case $0 in
    *[[:space:]]*) exec "$real" "$@" ;;
    *) exec "$real" "$@" "MAKE=$0" ;;
esac
{% endif %}
