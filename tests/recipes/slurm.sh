#!/usr/bin/env bash
# slurm.sh FOLDER: unpacks Debian's packages of Slurm and munge into FOLDER/usr. They are not
# installed: the hosts of the tests see them in their /usr.
set -eu -o pipefail
test ! -e "$1/usr" || exit 0
missing() {
  echo "Slurm cannot be had: $1" >&2
  exit 1
}
command -v apt-get >/dev/null || missing "there is no apt-get"
if [[ $EUID -eq 0 ]]; then
  apt-get -q update >&2 || true # what was there before may do
fi
mapfile -t names < <(
  apt-get -s --reinstall --no-install-recommends install slurmctld slurmd slurm-client munge \
    2>/dev/null |
    sed -n 's/^Inst \([^ ]*\) .*/\1/p'
)
[[ " ${names[*]} " == *" slurmd "* ]] || missing "apt-get has no slurmd to unpack"
rm -rf "$1"
mkdir -p "$1/packages"
(cd "$1/packages" && apt-get -q download "${names[@]}") >&2 || missing "its packages are not there"
for package in "$1"/packages/*.deb; do
  dpkg -x "$package" "$1/new"
done
for program in slurmctld slurmd slurmstepd; do # which an installation would do
  ln -s "$program-wlm" "$1/new/usr/sbin/$program"
done
mv "$1/new/usr" "$1/usr"
