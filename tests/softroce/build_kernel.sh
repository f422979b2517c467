#!/usr/bin/env bash
# Builds the kernel of the SoftRoCE guests, once, into ${GOCCL_SOFTROCE:-~/.cache/goccl/softroce}.
#
#   build_kernel.sh          installs and builds what is missing, and prints the path of the kernel
#   build_kernel.sh --find   only prints the path; fails where the kernel has not been built
#
# The kernel's name holds a hash of kernel.config and of this script: a change of either is a new kernel.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${GOCCL_SOFTROCE:-$HOME/.cache/goccl/softroce}
hash=$(cat "$here/kernel.config" "$here/build_kernel.sh" | sha256sum)
kernel=$cache/linux-${hash:0:12}
log=$cache/build.log
source_package=linux-source-6.1
lock_timeout=3600

used_in_guests=(iproute2 iputils-ping ibverbs-providers ibverbs-utils perftest)
used_to_build=(gcc make libc6-dev flex bison bc xz-utils)

say() { echo "softroce: $*" >&2; }
fail() { say "$@"; exit 1; }

as_root() {
  if [[ $EUID -eq 0 ]]; then "$@"; else sudo -n "$@"; fi
}

# install PACKAGE...: those that are missing.
install() {
  local package missing=()
  for package in "$@"; do
    [[ $(dpkg-query -Wf '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  local command=(apt-get install -y --no-install-recommends "${missing[@]}")
  command -v apt-get >/dev/null || fail "this machine has no apt-get. Debian calls what is missing: ${missing[*]}"
  as_root true 2>/dev/null ||
    fail "packages are missing. As root: apt-get update && ${command[*]}"
  say "${command[*]}"
  as_root apt-get update -qq >>"$log" 2>&1
  as_root env DEBIAN_FRONTEND=noninteractive "${command[@]}" >>"$log" 2>&1 ||
    fail "that has failed; log in $log"
}

download() {
  (cd "$work" && apt-get download -qq "$source_package") >>"$log" 2>&1
}

unpack_source() {
  # Sources that are far from what we build, and half of the size.
  local unneeded=('*/tools/testing/*' '*/drivers/gpu/*.[ch]' '*/Documentation/*.rst' '*.dts')
  download || { as_root apt-get update -qq && download; } >>"$log" 2>&1 ||
    fail "no $source_package. It is in Debian 12, and \`apt-get update\`, as root, makes it known. Log in $log"
  mkdir "$work/source"
  dpkg-deb --fsys-tarfile "$work/$source_package"*.deb | tar -xO "./usr/src/$source_package.tar.xz" | xz -dc -T0 |
    tar -x -C "$work/source" --strip-components=1 "${unneeded[@]/#/--exclude=}"
}

# A process's vector registers are saved and restored by ptrace, which takes all that the machine's
# processor has or nothing: 2,696 bytes with AVX-512, 11,008 with AMX. The source has room for the
# first only, and no guest starts on a processor with more.
make_room_for_registers() {
  local file=$work/source/arch/x86/um/user-offsets.c
  sed -i 's/DEFINE_LONGS(HOST_FP_SIZE, 2696);/DEFINE_LONGS(HOST_FP_SIZE, 12288);/' "$file"
  grep -q '(HOST_FP_SIZE, 12288)' "$file" || fail "the size of the registers is not where it was in $file"
}

# A signal handler must not change errno, or what it interrupts takes one error for another: hostfs
# saw a file that is not there as one without a type (EIO). The source keeps errno for all signals
# but the timer's. Later kernels do it in hard_handler, too.
keep_errno() {
  local file=$work/source/arch/um/os-Linux/signal.c
  sed -i -e '/^static void hard_handler/,/^}/ {
      s/^\tmcontext_t \*mc = .*/&\n\tint saved_errno = errno;/
      s/^\t} while (pending);/&\n\terrno = saved_errno;/
    }' "$file"
  [[ $(grep -c saved_errno "$file") -eq 2 ]] || fail "hard_handler is not as it was in $file"
}

configure() {
  make -C "$work/source" ARCH=um O="$work/build" KCONFIG_ALLCONFIG="$here/kernel.config" allnoconfig >>"$log" 2>&1
  # Kconfig drops without a word what it does not know or what misses a dependency.
  local dropped
  dropped=$(grep '^CONFIG_' "$here/kernel.config" | grep -vxFf "$work/build/.config" || true)
  [[ -z $dropped ]] || fail "this kernel cannot have: $dropped"
}

build() {
  say "building $kernel: about 8 CPU minutes, $(nproc) CPUs; log in $log"
  unpack_source
  say "source unpacked after $((SECONDS - begin)) s"
  make_room_for_registers
  keep_errno
  configure
  make -C "$work/build" ARCH=um -j"$(nproc)" linux >>"$log" 2>&1
  strip -g -o "$work/linux" "$work/build/linux"
  mv "$work/linux" "$kernel"
  say "built after $((SECONDS - begin)) s"
}

if [[ ${1-} == --find ]]; then
  [[ -x $kernel ]] || fail "the kernel has not been built. Run $here/build_kernel.sh"
  echo "$kernel"
  exit
fi

begin=$SECONDS
mkdir -p "$cache"
exec {lock}>"$cache/lock"
flock -n "$lock" || {
  say "another build is running; waiting for it"
  flock -w "$lock_timeout" "$lock" || fail "the other build has not ended after $lock_timeout s"
}
work=
trap 'code=$?; rm -rf "$work"; [[ $code -eq 0 ]] || tail -n 5 "$log" >&2' EXIT
: >"$log"
install "${used_in_guests[@]}"
if [[ ! -x $kernel ]]; then
  install "${used_to_build[@]}"
  rm -rf "$cache"/build.*/ # what an interrupted build has left
  work=$(mktemp -d "$cache/build.XXXXXX")
  build
fi
echo "$kernel"
