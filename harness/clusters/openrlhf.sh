#!/bin/bash
@DIRECTIVES@
# Ray on all nodes of the allocation, and the run on the first. A signal lets the running cells write their checkpoints; the job
# then goes back into the queue and goes on from there.
set -u
cd @FOLDER@ || exit 2
python=@PYTHON@
export python OMP_NUM_THREADS=1 RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0 RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper=true

# The port is the job's own, for nodes are shared. Ray's processes are the job's steps, and end with it.
host=$("$python" -c 'import ray; print(ray.util.get_node_ip_address())') || exit 1
port=$((20000 + SLURM_JOB_ID % 10000))
address=$host:$port
export address host port
# shellcheck disable=SC2016 # expanded on each node
node='
    cores=${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}
    set -- --block --disable-usage-stats --num-cpus="$cores" --num-gpus="${SLURM_GPUS_ON_NODE:-$cores}"
    if [ "$role" = head ]; then
        set -- "$@" --head --node-ip-address="$host" --port="$port" --include-dashboard=false --temp-dir="/tmp/ray-$SLURM_JOB_ID"
    else
        set -- "$@" --address="$address"
    fi
    exec "$python" -m ray.scripts.scripts start "$@"'
ray() { # ROLE NODES OPTIONS... of srun
    role=$1 srun --overlap --nodes="$2" --ntasks="$2" --ntasks-per-node=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
        "${@:3}" bash -c "$node" &
}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
ray head 1 --nodelist="$head"
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    until (exec 3<>"/dev/tcp/$host/$port") 2>/dev/null; do # the head does not answer yet
        if [ "$SECONDS" -gt 300 ]; then
            echo "the head of the Ray cluster did not answer within 300 s" >&2
            exit 1
        fi
        sleep 1
    done
    ray worker "$((SLURM_JOB_NUM_NODES - 1))" --exclude="$head"
fi
@DOCTOR@ --address "$address" --nodes "$SLURM_JOB_NUM_NODES" --within 600 || exit 1

run=
again=
code=1
trap 'again=1 heard=1; [ -z "$run" ] || kill -TERM "$run"' USR1 TERM
@RUN@ --address "$address" &
run=$!
[ -z "$again" ] || kill -TERM "$run" # signalled before it was known
heard=1
while [ -n "$heard" ]; do # a signal ends a wait with a status of its own
    heard=
    wait "$run"
    status=$?
    [ "$status" -eq 127 ] || code=$status # 127: it was waited for already
done

# A cancelled job is no longer RUNNING; `scontrol requeue` takes it up again. A preempted one is requeued by SLURM itself.
if [ -n "$again" ] && [ "$code" -ne 0 ] && scontrol --oneliner show job "$SLURM_JOB_ID" | grep -q 'JobState=RUNNING'; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
