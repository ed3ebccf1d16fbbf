#!/bin/bash
# `harness submit --slurm` against a SLURM of its own on this machine: three virtual nodes, no configuration left behind.
#
#   apt-get install -y slurmctld slurmd slurm-client munge        (as root, once)
#   benchmarks/slurm_here.sh [HARNESS]                            (as root; default .venv/bin/harness)
#
# An array of shards is submitted, cancelled in the middle, requeued, sent its signal before the time limit, and finishes by
# itself; its table must be that of a run without SLURM, but for costs. Takes about ten minutes; base checkpoints are trained once.
# No cgroups are needed: processes are followed by their parents (proctrack/linuxproc).
set -eu
harness=$(realpath -s "${1:-.venv/bin/harness}")
suite=smoke
work=$(mktemp -d "${TMPDIR:-/tmp}/slurm here.XXXX") # with a blank, as people's folders may have
daemons=$(mktemp -d /tmp/slurm.XXXX)                # without one: SLURM's own files
export SLURM_CONF=$daemons/slurm.conf
started=$(date +%s)

say() { echo "$(($(date +%s) - started)) s: $*"; }
end() {
    for file in "$daemons"/*.pid; do
        [ ! -s "$file" ] || kill "$(cat "$file")" 2>/dev/null || true
    done
    sleep 2
    rm -rf "$daemons" "$work"
}
trap end EXIT

nodes=n1,n2,n3
cat >"$SLURM_CONF" <<CONF
ClusterName=here
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$daemons/munge.sock
CredType=cred/munge
StateSaveLocation=$daemons/state
SlurmdSpoolDir=$daemons/spool.%n
SlurmctldPidFile=$daemons/slurmctld.pid
SlurmdPidFile=$daemons/slurmd.%n.pid
SlurmctldLogFile=$daemons/slurmctld.log
SlurmdLogFile=$daemons/slurmd.%n.log
SlurmctldPort=16817
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=30
MinJobAge=3600
NodeName=$nodes NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=16818,16819,16820 CPUs=1 RealMemory=4000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
mkdir "$daemons/state"
head -c 1024 /dev/urandom >"$daemons/munge.key"
chmod 700 "$daemons" && chmod 600 "$daemons/munge.key"
chmod 711 "$daemons"
munged --key-file="$daemons/munge.key" --socket="$daemons/munge.sock" --pid-file="$daemons/munge.pid" \
    --log-file="$daemons/munge.log" --seed-file="$daemons/munge.seed" --force 2>/dev/null
slurmctld -f "$SLURM_CONF"
for node in n1 n2 n3; do slurmd -f "$SLURM_CONF" -N "$node"; done

until_() { # SECONDS WORDS COMMAND...
    local last=$((SECONDS + $1)) words=$2
    shift 2
    until "$@"; do
        if [ "$SECONDS" -gt "$last" ]; then
            say "not within the time: $words"
            squeue --all || true
            cat "$work"/results/$suite/slurm/*/*.log || true
            exit 1
        fi
        sleep 1
    done
    say "$words"
}
ready() { [ "$(sinfo --noheader --Node --states=idle | wc -l)" -eq 3 ]; }
checkpoint() { compgen -G "$work/results/$suite/*/resume/step-*" >/dev/null; }
nothing_runs() { ! squeue --noheader --states=RUNNING,COMPLETING | grep -q .; }
nothing_left() { ! squeue --noheader | grep -q .; }
state() { (cd "$work" && "$harness" status $suite "$@" | tail -n 2 | head -n 1); }

until_ 60 "SLURM is up, three nodes idle" ready
set_=(--set "training.steps=${STEPS:-60}" --set training.checkpoint_every=2)
cd "$work"
"$harness" submit $suite --slurm --time 10 --cpus 1 --shards 2 "${set_[@]}" | tee submitted
job=$(grep -o '[0-9]*$' submitted)

until_ 300 "submitted; a running cell has a checkpoint" checkpoint
scancel "$job"
until_ 60 "cancelled: nothing runs" nothing_runs
say "then: $(state "${set_[@]}")"
for task in 1 2; do scontrol requeue "${job}_$task"; done
running() { [ "$(squeue --noheader --states=RUNNING | wc -l)" -eq 2 ]; }
until_ 240 "requeued by hand: both parts run again, after the two minutes that SLURM makes a requeued job wait" running
started_again() { "$harness" status $suite "${set_[@]}" | grep -q ' running '; }
until_ 120 "a cell runs again" started_again
scancel --signal=USR1 --batch "$job"
restarts() { [ "$(scontrol --oneliner show job "$job" | grep -c 'Restarts=2')" -eq 2 ]; }
until_ 90 "signalled as before a time limit: both parts requeued themselves" restarts
until_ 900 "both parts have ended" nothing_left
say "in the end: $(state "${set_[@]}")"
say "logs: $(grep -h -o 'part of the suite: .*' results/$suite/slurm/*/*.log | sort | uniq -c | tr '\n' ';')"

"$harness" run $suite --results alone "${set_[@]}" >/dev/null 2>&1
say "run without SLURM"
table() {
    "$harness" show $suite --results "$1" "${set_[@]}" --format json | python3 -c '
import json, sys
costs = {"cpu_seconds", "gpu_seconds", "gain_per_gpu_second"}
for row in json.load(sys.stdin)["rows"]:
    print(json.dumps({key: value for key, value in row.items() if key not in costs}))'
}
table results >of_slurm
table alone >of_one_run
[ -s of_slurm ]
diff of_slurm of_one_run
say "the tables are equal but for costs: $(wc -l <of_slurm) rows"
