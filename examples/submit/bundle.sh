#!/bin/sh
# A finished suite as one file, checked as everybody will check it: one random cell is trained again (docs/submit.md).
#
#   harness run examples/run/pair.yaml
#   sh examples/submit/bundle.sh pair
set -e
harness bundle "$1" --results "${2:-results}"
harness submit-check "$1"-*.zip --re-execute 1
