#!/bin/sh
# Install the OpenRLHF engine's environment:  tools/install_openrlhf.sh [FOLDER]      (default .venv-openrlhf)
# A machine without a GPU gets exactly constraints-openrlhf.txt, one with a GPU constraints-openrlhf-gpu.txt.
# GPU=yes takes the latter without looking for one, as an image is built.
# flash-attn is never built, and no op of DeepSpeed's. Takes 2 to 4 minutes and 4.4 GB without a GPU.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$here/.venv-openrlhf}
pins=$here/constraints-openrlhf.txt gpu= found=
python=${PYTHON:-python3}

[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
pip() { "$folder/bin/python" -m pip install -q --disable-pip-version-check "$@"; }
pin() { grep -i "^$1==" "$pins"; }

if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
    needs="a GPU needs NVIDIA's driver 580 or newer, or its compatibility package, for CUDA 13.0 (here: ${driver:-unknown})"
    [ "${driver%%.*}" -ge 580 ] 2>/dev/null || echo "install_openrlhf: $needs" >&2
    # Triton compiles its kernels' launchers when they are first called.
    command -v gcc >/dev/null 2>&1 || command -v clang >/dev/null 2>&1 || {
        echo "install_openrlhf: a GPU needs gcc, for Triton (Debian: apt-get install gcc)" >&2
        exit 1
    }
    "$folder/bin/python" -c 'import os, sys, sysconfig; sys.exit(not os.path.isfile(sysconfig.get_path("include") + "/Python.h"))' || {
        echo "install_openrlhf: a GPU needs Python.h, for Triton (Debian: apt-get install python3-dev)" >&2
        exit 1
    }
    gpu=yes found=yes
elif [ "${GPU:-}" = yes ]; then
    gpu=yes
fi
[ -z "$gpu" ] || pins=$here/constraints-openrlhf-gpu.txt

pip "$(pin setuptools)" "$(pin wheel)"
[ -n "$gpu" ] || pip "$(pin torch)"
later=$(mktemp)
trap 'rm -f "$later"' EXIT
# DeepSpeed's setup imports torch and its own requirements, so it comes after them.
grep -v -i -e '^deepspeed==' "$pins" >"$later"
pip --no-deps -r "$later"
(
    # Its setup asks for nvcc where torch has CUDA, whether or not an op is to be compiled.
    [ -z "$gpu" ] || export DS_ACCELERATOR=cpu DS_BUILD_OPS=0
    pip --no-deps --no-build-isolation "$(pin deepspeed)"
)
pip --no-deps -e "$here"

if [ -n "$found" ]; then
    "$folder/bin/python" -c "import torch; torch.ones(1, device='cuda').item()" || {
        echo "install_openrlhf: torch finds no use for the GPU: $needs" >&2
        exit 1
    }
fi
"$folder/bin/python" -c "import deepspeed, ray, transformers, vllm; print('OpenRLHF environment ready')"
