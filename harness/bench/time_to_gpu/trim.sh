#!/bin/sh
# Stands before `ctr` and `systemctl` on PATH, and switches one trim of the boot path off; TRIM_OFF names
# it. It stands there for each variant, so that all pay for it alike.
program=$(basename "$0")
case ${TRIM_OFF-}/$program in
    without-local-image-check/ctr)
        # As if the image had not been looked for: it is pulled.
        case " $* " in *' images ls -q '*) exit 0 ;; esac
        ;;
    without-async-removal/ctr)
        case " $* " in
            *' images rm '*)
                count=$#
                while [ "$count" -gt 0 ]; do
                    word=$1 count=$((count - 1))
                    shift
                    set -- "$@" "$word"
                    [ "$word" != rm ] || set -- "$@" --sync
                done
                ;;
        esac
        ;;
    without-deferred-monitoring/systemctl)
        case " $* " in
            *' restart --no-block nvidia-dcgm'*)
                unit=$3
                set -- restart "$unit"
                ;;
        esac
        ;;
esac
exec "${TRIM_PROGRAMS:-/usr/bin}/$program" "$@"
