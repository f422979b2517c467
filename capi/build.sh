#!/bin/sh
# Builds libgoccl.so.0, and libgoccl.so beside it: capi/build.sh GO FOLDER [FLAG...]
#
# GO is the command of Go, FOLDER is made where it is missing, and each FLAG is one more of `go
# build`. Two builds of the same sources by the same Go and C compiler give the same bytes, wherever
# the sources lie.
set -eu

if [ $# -lt 2 ]; then
  echo "usage: $0 GO FOLDER [FLAG...]" >&2
  exit 2
fi
go=$1
if ! command -v "$go" >/dev/null; then
  version=$(sed -n 's/^go \([0-9]*\.[0-9]*\).*/\1/p' "$(dirname -- "$0")/../go.mod")
  echo "building libgoccl.so.0 needs Go $version or newer, and there is no $go: install Go from" \
    "https://go.dev/dl, or name the command of another one, as in make install GO=/opt/go/bin/go" >&2
  exit 1
fi
mkdir -p -- "$2"
folder=$(CDPATH='' cd -- "$2" && pwd)
shift 2
cd -- "$(dirname -- "$0")/.."

# The version script hides some forty symbols of the Go runtime, and gives the others a version. Go
# splits the flags at spaces, and those of the linker in them once more. Its build ID would differ
# with the path of the script.
linker="-Wl,-soname,libgoccl.so.0 \"-Wl,--version-script=$PWD/capi/exports.map\""
"$go" build -buildmode=c-shared -buildvcs=false -trimpath \
  -ldflags="-s -w -buildid= '-extldflags=$linker'" "$@" -o "$folder/libgoccl.so.0" ./capi
# Go's own header: goccl.h is the one to use.
rm -f -- "$folder/libgoccl.so.h"

# What -lgoccl finds: a script of the linker, for wheels hold no symbolic links. An older build may
# have put the library itself here, and running programs may have it mapped.
rm -f -- "$folder/libgoccl.so"
echo 'INPUT(libgoccl.so.0)' >"$folder/libgoccl.so"
