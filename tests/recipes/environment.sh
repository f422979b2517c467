#!/usr/bin/env bash
# environment.sh VENV FOLDER: sets up what the recipes run with.
#   FOLDER/venv       requirements.txt; what VENV has besides, such as torch and goccl, is found there
#   FOLDER/mpich ...  a package of apart.txt each
set -eu -o pipefail
own=$(dirname "$0")
venv=$(cd "$1" && pwd)
mkdir -p "$2"
folder=$(cd "$2" && pwd)
python=$folder/venv/bin/python

test -x "$python" || "$venv/bin/python" -m venv --without-pip "$folder/venv"
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
there=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# After its own packages, and with the .pth files of VENV, by which goccl is found in the tree.
echo "import site; site.addsitedir('$there')" >"$site/venv.pth"

# DeepSpeed comes as source, and its set-up asks which torch there is.
install=("$python" -m pip --disable-pip-version-check install --no-build-isolation)
"${install[@]}" --requirement "$own/requirements.txt"
# What they depend on is there, but for libraries of fast networks.
while IFS='=' read -r name _ version; do
  [[ $name == \#* ]] || "${install[@]}" --no-deps --prefix "$folder/$name" "$name==$version"
done <"$own/apart.txt"

# Their first lines name the Python of VENV.
for program in goccl torchrun; do
  sed "1s|.*|#!$python|" "$venv/bin/$program" >"$folder/venv/bin/$program"
  chmod +x "$folder/venv/bin/$program"
done
