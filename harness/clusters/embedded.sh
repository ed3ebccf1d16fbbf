#!/bin/bash
@DIRECTIVES@
# One part of the suite in each task of the array. A signal lets the running cells write their checkpoints; the task then goes
# back into the queue and goes on from there.
set -u
cd @FOLDER@ || exit 2

task=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID # SLURM_JOB_ID of one task is that of the whole array
run=
again=
code=1
trap 'again=1 heard=1; [ -z "$run" ] || kill -TERM "$run"' USR1 TERM
@RUN@ --jobs "${SLURM_CPUS_ON_NODE:-1}" --shard "$SLURM_ARRAY_TASK_ID/@SHARDS@" &
run=$!
[ -z "$again" ] || kill -TERM "$run" # signalled before it was known
heard=1
while [ -n "$heard" ]; do # a signal ends a wait with a status of its own
    heard=
    wait "$run"
    status=$?
    [ "$status" -eq 127 ] || code=$status # 127: it was waited for already
done

# A cancelled task is no longer RUNNING; `scontrol requeue` takes it up again. A preempted one is requeued by SLURM itself.
if [ -n "$again" ] && [ "$code" -ne 0 ] && scontrol --oneliner show job "$task" | grep -q 'JobState=RUNNING'; then
    scontrol requeue "$task"
fi
exit "$code"
