#!/usr/bin/env bash
# Says what lies under a directory that is to hold the store: file system, options, drive, transport, free space.
#   launch/check_mount.sh DIRECTORY [--doctor]
# Reads only. With --doctor, `radixtier doctor` looks further: it writes test files of up to 256 MiB, measures the
# drive, tries O_DIRECT and GPUDirect Storage, and removes the files. For NVMe over fabrics see docs/deploy.md.
#   PYTHON    interpreter that has radixtier (default: python3)
# Exit status: 0; 1 if a server could not or should not use the directory; 2 for bad usage.
set -euo pipefail

usage() {
    sed -n '2,3s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

directory=""
doctor=""
for word in "$@"; do
    case $word in
        --doctor) doctor=1 ;;
        -*) usage ;;
        *) [ -z "$directory" ] || usage && directory=$word ;;
    esac
done
[ -n "$directory" ] || usage

status=0
line() { printf '  %-8s %-12s %s\n' "$@"; }
bad() {
    line problem "$1" "$2"
    status=1
}

echo "$directory"
if [ -L "$directory" ]; then
    bad directory "a symbolic link: name $(readlink -f -- "$directory") itself"
    exit 1
elif [ ! -d "$directory" ]; then
    bad directory "missing: install -d -m 700 -o USER $directory"
    exit 1
fi

# A network mount whose server is gone would hold up whoever looks at it.
if ! found=$(timeout 20 findmnt --noheadings --raw --output FSTYPE,SOURCE,OPTIONS --target "$directory"); then
    bad mount "does not answer, or findmnt is missing (util-linux)"
    exit 1
fi
read -r kind source options <<<"$(tail -n 1 <<<"$found")"

case $kind in
    ext4 | xfs) line ok "file system" "$kind" ;;
    tmpfs | ramfs) bad "file system" "$kind lies in RAM: name a directory on a drive" ;;
    overlay | aufs) bad "file system" "$kind is a container's own layer, gone with the container: mount a volume" ;;
    nfs* | cifs | smb3 | 9p | ceph | lustre | gpfs | beegfs | glusterfs | virtiofs | fuse*)
        bad "file system" "$kind keeps its bytes elsewhere: the journal (SQLite) wants a local file system" ;;
    *) line warning "file system" "$kind: the store is tested on ext4 and XFS" ;;
esac
line ok source "$source"
line ok options "$options"
case ,$options, in *,ro,*) bad options "mounted read-only" ;; esac
case ,$options, in *,data=journal,*) line warning options "data=journal: ext4 refuses O_DIRECT with it" ;; esac
case ,$options, in *,sync,* | *,dirsync,*) line warning options "sync: every write waits for the drive" ;; esac
case ,$options, in *,nobarrier,* | *,barrier=0,*) bad options "no barriers: what was synced may be gone after a power cut" ;; esac

# The disk of a partition; a RAID or LVM names its members itself.
device=$(readlink -f -- "${source%%\[*}")
disk=$(lsblk --noheadings --nodeps --output PKNAME "$device" 2>/dev/null | head -n 1 || true)
disk=${disk:-$(basename "$device")}
disk=${disk// /}
if [ -d "/sys/block/$disk" ]; then
    model=$(cat "/sys/block/$disk/device/model" 2>/dev/null || true)
    members=$(find "/sys/block/$disk/slaves" -mindepth 1 -maxdepth 1 -printf '%f ' 2>/dev/null || true)
    line ok drive "$disk ${model:-$members}"
    # pcie is in this machine; tcp, rdma and fc are over fabrics, and may go away while the server runs.
    for member in $disk $members; do
        for file in "/sys/block/$member/device/transport" "/sys/block/$member/device"/nvme*/transport; do
            [ ! -r "$file" ] || line ok transport "$member: $(cat "$file")"
        done
    done
    case $disk in
        vd* | nbd*) ;; # virtual drives often claim to turn
        *) [ "$(cat "/sys/block/$disk/queue/rotational" 2>/dev/null || echo 0)" = 0 ] || line warning drive "it turns" ;;
    esac
fi

free=$(df --output=avail -B 1 -- "$directory" | tail -n 1)
gib=$((free >> 30))
if [ "$gib" -lt 2 ]; then
    bad space "$gib GiB free: the server leaves 1 GiB to others and needs room for a store"
else
    line ok space "$gib GiB free; without a size the store takes half of what is free beyond 1 GiB"
fi

owner=$(stat --format '%U, mode %a' -- "$directory")
if [ -O "$directory" ] && [ -w "$directory" ]; then
    line ok owner "$owner"
else
    bad owner "$owner: the server's user, who should run this, must own it"
fi

if [ -n "$doctor" ]; then
    echo
    "${PYTHON:-python3}" -m radixtier.cli doctor "$directory" || status=1
fi
exit "$status"
