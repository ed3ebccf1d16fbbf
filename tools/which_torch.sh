#!/bin/sh
# Say where `make gpu-check` finds torch:  tools/which_torch.sh PYTHON
#   core    there is no NVIDIA GPU: the usual environment, small models on the CPU
#   image   PYTHON's own torch uses the GPU: an environment beside it (tools/beside_image.sh)
#   clean   neither: the OpenRLHF engine's environment (tools/install_openrlhf.sh)
set -eu
if ! command -v nvidia-smi >/dev/null 2>&1 || ! nvidia-smi -L >/dev/null 2>&1; then
    echo core
elif "$1" -c "import torch; torch.ones(1, device='cuda').item()" >/dev/null 2>&1; then
    echo image
else
    echo clean
fi
