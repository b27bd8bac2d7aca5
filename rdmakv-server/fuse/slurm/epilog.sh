#!/bin/sh
# Epilog of Slurm: ends what prolog.sh mounted for a job, and waits a while until the backing directory has its files. See README.md
# beside this file.
#
# slurmd runs it as root after the job's last step. It exits with 1, so that Slurm drains the node, only if the mount cannot be ended.

set -u

say() {
    echo "rdmakv epilog: job ${SLURM_JOB_ID:-unknown}: $*" >&2
}

fail() {
    say "$*"
    exit 1
}

config=${RDMAKV_SLURM_CONFIG:-/etc/rdmakv/slurm.conf}
if [ -r "$config" ]; then
    # shellcheck disable=SC1090 # the administrator's
    . "$config"
fi

case ${SLURM_JOB_ID:-} in
    '' | *[!0-9]*) fail "read SLURM_JOB_ID: it has no number of a job: let slurmd run this" ;;
esac
place=${RDMAKV_MOUNTS:-/mnt/rdmakv}/$SLURM_JOB_ID
busy=${RDMAKV_UNMOUNT_SECONDS:-30}
settle=${RDMAKV_SETTLE_SECONDS:-300}
path=${RDMAKV_SETTLE_PATH:-/}

is_mounted() {
    grep -q "^rdmakv $place fuse" /proc/self/mounts
}

if is_mounted; then
    # What programs closed is in the cluster already. Programs that are left have some seconds to end.
    waited=0
    until umount "$place" 2>/dev/null; do
        if [ "$waited" -ge "$busy" ]; then
            say "unmount $place: programs use it after $busy s: they keep what they have open, and nothing else sees it"
            umount -l "$place" || fail "unmount $place: it failed: unmount it by hand"
            break
        fi
        waited=$((waited + 1))
        sleep 1
    done
fi
if [ -d "$place" ]; then
    rmdir "$place" || say "remove $place: it failed: see what is in it"
fi

# All jobs of the cluster share the files, so others may be writing. The agent carries the rest whether or not this waits.
if [ "$settle" -gt 0 ] && [ -n "${RDMAKV_ETCD:-}" ]; then
    export RDMAKV_ETCD
    if ! timeout "$((settle + 10))" rdmakv-fuse files settle --timeout "$settle" "$path"; then
        say "the backing directory does not have all files of $path after $settle s: see \`rdmakv-fuse files status\`"
    fi
fi
exit 0
