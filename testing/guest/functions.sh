# What scripts that boot a virtual machine share; sourced by them, from the root of the repository.
# A guest has the cloud kernel of a release of Debian, and a folder of files as its root.

fail() {
    printf '%s: %s\n' "${program_name:-guest}" "$*" >&2
    exit 2
}

# Installs the Debian packages whose program is missing, if $install says so: PROGRAM=PACKAGE...
need() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
    done
    if [ ${#missing[@]} -gt 0 ] && [ -n "${install:-}" ]; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
        missing=()
    fi
    [ ${#missing[@]} -eq 0 ] || fail "missing: apt-get install --no-install-recommends ${missing[*]}"
}

# Fetches the kernel of a release of Debian into a folder, unless it is there: `kernel` has its
# version, `root` its files. Apt gets lists of its own, so that the machine's releases do not matter.
fetch_kernel() { # release, folder
    local suite=$1 work=$2 keys=/usr/share/keyrings/debian-archive-keyring.gpg wanted version name file
    if [ -e "$work/kernel" ]; then
        return
    fi
    command -v apt-get >/dev/null || fail "missing: apt-get, by which Debian's kernel is fetched"
    [ -r $keys ] || fail "missing: $keys (package debian-archive-keyring)"
    mkdir -p "$work"/{state/lists,cache/archives}/partial "$work/packages"
    apt() {
        local command=$1
        shift
        "$command" -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/nonexistent -o Dir::State="$work/state" \
            -o Dir::State::status=/dev/null -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root -o Acquire::Languages=none "$@"
    }
    echo "deb [signed-by=$keys] http://deb.debian.org/debian $suite main" >"$work/sources.list"
    apt apt-get update -qq || fail "the list of $suite could not be fetched"
    # The newest kernel of the release. Newer releases have kernel and modules in packages of their own.
    wanted=$(apt apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces linux-image-cloud-amd64 |
        grep -E '^linux-(image|binary|modules|base)-[0-9].*-cloud-amd64$') || fail "$suite has no linux-image-cloud-amd64"
    version=$(sed -n 's/^linux-image-//p' <<<"$wanted" | sort -V | tail -n 1)
    for name in $(grep -F -- "-$version" <<<"$wanted"); do
        (cd "$work/packages" && apt apt-get download -qq "$name") || fail "$name could not be fetched"
    done
    for file in "$work"/packages/*.deb; do
        dpkg-deb -x "$file" "$work/root"
    done
    # Older packages have modules in /lib, newer ones in /usr/lib; both are looked for in /lib.
    if [ -d "$work/root/usr/lib/modules" ]; then
        mkdir -p "$work/root/lib"
        ln -sfn ../usr/lib/modules "$work/root/lib/modules"
    fi
    depmod -b "$work/root" "$version"
    rm -r "$work"/{state,cache,packages}
    echo "$version" >"$work/kernel"
}

# Returns the file of the kernel that is in a folder. Older packages have it in /boot, newer ones
# beside the modules.
kernel_image() { # folder
    local image
    image=$(find "$1/root/" -name 'vmlinuz*' -type f | head -n 1)
    [ -n "$image" ] || fail "no kernel in the packages of linux-image-$(cat "$1/kernel")"
    echo "$image"
}

# Puts a shell and modules into a guest's files. `modules/order` names the modules in the order in
# which they need each other.
fill_guest() { # folder of the kernel, folder of the guest's files, modules...
    local work=$1 guest=$2 version module file name
    shift 2
    version=$(cat "$work/kernel")
    rm -rf "$guest"
    mkdir -p "$guest"/{bin,dev,proc,sys,tmp,modules}
    cp "$(command -v busybox)" "$guest/bin/busybox"
    ln -s busybox "$guest/bin/sh"
    for module in "$@"; do
        # A built-in module is said to be, and has no file; one that this kernel lacks is left out.
        modprobe -d "$work/root" -S "$version" --show-depends "$module" | sed -n 's/^insmod //p' || echo "${program_name:-guest}: no module $module" >&2
    done | awk '!seen[$1]++ { print $1 }' | while read -r file; do
        name=$(basename "$file")
        case $name in
            *.xz) xz -dc "$file" ;;
            *.gz) gzip -dc "$file" ;;
            *) cat "$file" ;;
        esac >"$guest/modules/${name%%.*}.ko"
        echo "${name%%.*}" >>"$guest/modules/order"
    done
}

# Packs a guest's files.
pack_guest() { # folder of the guest's files, file
    (cd "$1" && find . | cpio --quiet -o -H newc | gzip -1) >"$2"
}

# Becomes QEMU, which boots a guest without KVM. Serial ports are added by the caller.
qemu_guest() { # kernel, initramfs, QEMU's arguments...
    local image=$1 initramfs=$2
    shift 2
    exec qemu-system-x86_64 -accel tcg -cpu max -smp 1 -nodefaults -display none -no-reboot -monitor none \
        -kernel "$image" -initrd "$initramfs" -append "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check" "$@"
}
