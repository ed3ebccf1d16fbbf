#!/bin/sh
# Install the harness beside the torch that a machine's image brings:  tools/beside_image.sh PYTHON FOLDER
# FOLDER becomes an environment that sees PYTHON's packages behind its own. torch and what came with it stay as they are; what
# the harness needs besides is installed into FOLDER, where it has another version in the image too.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
image=$1 folder=$2

[ -x "$folder/bin/python" ] || "$image" -m venv --without-pip "$folder"
behind=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/image.pth
"$image" -c '
import site, sysconfig
places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
print(*dict.fromkeys(places), sep="\n")' >"$behind"

pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
grep -v -i -e '^torch==' -e '^triton==' -e '^nvidia-' "$here/constraints.txt" >"$pins"
"$folder/bin/python" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >>"$pins"
"$image" -m pip --python "$folder/bin/python" install -q --disable-pip-version-check --constraint "$pins" -e "$here[lora]" || {
    echo "beside_image: pip could not install what the harness needs beside torch; above is why" >&2
    exit 1
}
