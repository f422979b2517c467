#!/bin/sh
# Installs the library, the headers, and what pkg-config and CMake ask for: `make install`.
#
# BUILT is the folder of libgoccl.so.0 as capi/build.sh makes it. PREFIX, LIBDIR, INCLUDEDIR and
# DESTDIR come from the environment: what is installed lies below DESTDIR, and is to be used at
# LIBDIR and INCLUDEDIR.
set -eu

built=$1
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
includedir=${INCLUDEDIR:-$prefix/include}
for given in "PREFIX=$prefix" "LIBDIR=$libdir" "INCLUDEDIR=$includedir"; do
  case ${given#*=} in
    /*) ;;
    *)
      echo "make install: $given must be an absolute path" >&2
      exit 2
      ;;
  esac
done
cd -- "$(dirname -- "$0")/.."
staged=$(mktemp -d)
trap 'rm -rf -- "$staged"' EXIT

sh capi/describe.sh "$staged" "$(realpath -ms --relative-to="$libdir" "$includedir")"

# A file is replaced when the new one is there as a whole: running programs go on with the old one.
put() { # FILE FOLDER
  install -d -- "$2"
  install -m 644 -- "$1" "$2/.${1##*/}.part" || {
    rm -f -- "$2/.${1##*/}.part"
    return 1
  }
  mv -f -- "$2/.${1##*/}.part" "$2/${1##*/}"
}
lib=${DESTDIR-}$libdir
for header in capi/goccl*.h; do
  put "$header" "${DESTDIR-}$includedir"
done
put "$built/libgoccl.so.0" "$lib"
put "$built/libgoccl.so" "$lib"
put "$staged/pkgconfig/goccl.pc" "$lib/pkgconfig"
put "$staged/cmake/goccl/goccl-config.cmake" "$lib/cmake/goccl"
put "$staged/cmake/goccl/goccl-config-version.cmake" "$lib/cmake/goccl"
echo "installed libgoccl.so.0 in $lib, and its headers in ${DESTDIR-}$includedir"
