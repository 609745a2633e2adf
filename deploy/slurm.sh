#!/bin/bash
# A trainer on a machine with GPUs, and workers on four others. See docs/src/remote.md.
#
#   sbatch deploy/slurm.sh ./train --its arguments
#
# The trainer gets the variables LISTEN, TLS_CERTIFICATE and TLS_KEY, for
# `Remote::listen(LISTEN)` and `.tls(TLS_CERTIFICATE, TLS_KEY)`. The folder of the job has to be one
# that all machines see.
#
# With RANKS=8 the program has 8 local ranks, of which rank r listens at the port of LISTEN plus r; all
# share the workers.
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=8
#SBATCH hetjob
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
set -euo pipefail
if [ $# -eq 0 ]; then
    echo "usage: sbatch $0 PROGRAM [ARGUMENT…]" >&2
    exit 2
fi

port=$((20000 + SLURM_JOB_ID % 10000))
ranks=${RANKS:-1}
trainer=$(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_0")
trainer=${trainer%%$'\n'*}

# A secret and a certificate for this job alone, in a folder that only its user reads. The token is in
# the environment, and so never in a list of processes.
tls=$(mktemp -d "$PWD/tls-$SLURM_JOB_ID-XXXXXX")
workers=
finish() {
    # SIGTERM ends workers after their pieces of work.
    if [ -n "$workers" ]; then
        kill "$workers" 2>/dev/null || true
        wait "$workers" || true
    fi
    rm -rf "$tls"
}
trap finish EXIT
trap 'exit 143' TERM INT
DATAPIPES_TOKEN=$(openssl rand -hex 32)
export DATAPIPES_TOKEN
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 \
    -subj /CN=trainer -addext "subjectAltName=DNS:$trainer" \
    -keyout "$tls/key.pem" -out "$tls/trainer.pem" 2>/dev/null

addresses=
for ((rank = 0; rank < ranks; rank++)); do
    addresses+=${addresses:+,}tls://$trainer:$((port + rank))
done

# The loss of one machine costs no other.
srun --het-group=1 --kill-on-bad-exit=0 --no-kill \
    env DATAPIPES_WORKER="$addresses" DATAPIPES_WORKER_CA="$tls/trainer.pem" \
    DATAPIPES_WORKER_PROCESSES="${SLURM_CPUS_PER_TASK_HET_GROUP_1:-32}" "$@" &
workers=$!

srun --het-group=0 env LISTEN="0.0.0.0:$port" TLS_CERTIFICATE="$tls/trainer.pem" \
    TLS_KEY="$tls/key.pem" "$@" &
training=$!
# A job that is cancelled interrupts this wait, where it would not interrupt a command.
wait "$training"
