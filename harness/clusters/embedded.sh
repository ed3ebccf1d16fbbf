#!/bin/bash
@DIRECTIVES@
# One part of the suite in each task of the array. A signal lets the running cells write their checkpoints; the task then goes
# back into the queue and goes on from there.
set -u
cd @FOLDER@ || exit 2

run=
again=
trap 'again=1; [ -z "$run" ] || kill -TERM "$run"' USR1 TERM
@RUN@ --jobs "${SLURM_CPUS_ON_NODE:-1}" --shard "$SLURM_ARRAY_TASK_ID/@SHARDS@" &
run=$!
[ -z "$again" ] || kill -TERM "$run" # signalled before it was known
wait "$run"
code=$?
while kill -0 "$run" 2>/dev/null; do # a signal ended the wait
    wait "$run"
    code=$?
done

# A cancelled task is no longer RUNNING; `scontrol requeue` takes it up again. A preempted one is requeued by SLURM itself.
if [ -n "$again" ] && [ "$code" -ne 0 ] && scontrol --oneliner show job "$SLURM_JOB_ID" | grep -q 'JobState=RUNNING'; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
