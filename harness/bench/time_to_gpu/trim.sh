#!/bin/sh
# Precedes `ctr` and `systemctl` on PATH, and switches off the trim of the boot path that TRIM_OFF names.
# Nodes of all variants have this program, so that its cost is the same for all.
program=$(basename "$0")
case ${TRIM_OFF-}/$program in
    without-local-image-check/ctr)
        # Print no image, so that the image is pulled.
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
