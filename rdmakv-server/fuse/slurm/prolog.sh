#!/bin/sh
# Prolog of Slurm: mounts a cluster's files on this node, for one job. See README.md beside this file.
#
# slurmd runs it as root before the job's first step. It exits with 0 once the job may use $RDMAKV_MOUNTS/$SLURM_JOB_ID. With 1 Slurm
# drains the node and requeues the job.

set -u

say() {
    echo "rdmakv prolog: job ${SLURM_JOB_ID:-unknown}: $*" >&2
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
[ -n "${RDMAKV_ETCD:-}" ] || fail "read $config: RDMAKV_ETCD is not set: set it to the addresses of etcd"
[ -n "${RDMAKV_BACKING:-}" ] || fail "read $config: RDMAKV_BACKING is not set: set it to the backing directory"
export RDMAKV_ETCD
place=${RDMAKV_MOUNTS:-/mnt/rdmakv}/$SLURM_JOB_ID
longest=${RDMAKV_MOUNT_SECONDS:-60}

is_mounted() {
    grep -q "^rdmakv $place fuse" /proc/self/mounts
}

if is_mounted; then
    if timeout 10 ls "$place" >/dev/null 2>&1; then
        exit 0
    fi
    say "unmount $place: the process of an earlier mount died"
    umount -l "$place" || fail "unmount $place: it failed: unmount it by hand"
fi

mkdir -p "$place" || fail "make $place: it failed: choose another RDMAKV_MOUNTS"
# shellcheck disable=SC2086 # several words
timeout "$longest" rdmakv-fuse mount "$place" --backing "$RDMAKV_BACKING" -d ${RDMAKV_MOUNT_FLAGS:-} ||
    fail "mount $place: it failed, or took more than $longest s: see the message above, and \`rdmakv cluster status\`"
is_mounted || fail "mount $place: nothing is mounted there: see the message above"
