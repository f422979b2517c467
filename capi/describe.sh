#!/bin/sh
# Writes what pkg-config and CMake ask for: capi/describe.sh FOLDER INCLUDE [RPATH]
#
# FOLDER is that of the library, and INCLUDE that of the headers, relative to it. RPATH is "rpath"
# where programs are to find the library without LD_LIBRARY_PATH: the linker then writes its path
# into them.
set -eu

if [ $# -lt 2 ]; then
  echo "usage: $0 FOLDER INCLUDE [rpath]" >&2
  exit 2
fi
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
part() { sed -n "s/^#define GOCCL_VERSION_$1 //p" "$here/goccl.h"; }

include=$(printf %s "$2" | sed 's/[\\&|]/\\&/g')
rpath=
if [ "${3-}" = rpath ]; then
  rpath=' -Wl,-rpath,${libdir}'
fi
mkdir -p -- "$1/pkgconfig" "$1/cmake/goccl"
for file in pkgconfig/goccl.pc cmake/goccl/goccl-config.cmake cmake/goccl/goccl-config-version.cmake; do
  sed -e "s|@VERSION@|$(part MAJOR).$(part MINOR).$(part PATCH)|" -e "s|@INCLUDE@|$include|" \
    -e "s|@RPATH@|$rpath|" "$here/package/${file##*/}.in" >"$1/$file"
done
