#!/bin/bash
# Try train.sbatch on one machine, as root, with a small SLURM of two hosts, which are namespaces of the kernel:
#   apt-get install slurm-wlm munge iproute2
#   PATH=$PWD/.venv/bin:$PATH bash docs/clusters/try_slurm.sh
# A training runs undisturbed. The same training is then stopped by its time limit, and one of its tasks is killed; at
# the end it must have trained every epoch once, and have the same weights. EPOCHS (500) must take over three minutes.
# Processes, mounts, files and addresses are the script's own: nothing else of the machine sees them, and all end with it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ "${1:-}" != inside ]; then
    exec unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc bash "$here/try_slurm.sh" inside
fi
EPOCHS=${EPOCHS:-500}
trap 'status=$?; [ $status = 0 ] || tail -n 30 -- *.log; exit $status' EXIT

# Two hosts, node1 (this namespace) and node2, which reach each other by a cable.
hostname node1
mount -t tmpfs tmpfs /run
mkdir -p /run/munge /run/netns /run/try/slurm /run/try/spool-node1 /run/try/spool-node2
cd /run/try
printf '%s\n' '127.0.0.1 localhost' '10.0.0.1 node1' '10.0.0.2 node2' > hosts
mount --bind hosts /etc/hosts
ip netns add node2
ip link add cable type veth peer name cable netns node2
ip address add 10.0.0.1/24 dev cable
ip -n node2 address add 10.0.0.2/24 dev cable
for device in lo cable; do
    ip link set "$device" up
    ip -n node2 link set "$device" up
done

# SLURM, with a controller on node1 and without limits by control groups.
dd if=/dev/urandom of=munge.key bs=1024 count=1 status=none
chmod 600 munge.key
munged --force --key-file="$PWD/munge.key" --log-file="$PWD/munge.log" --seed-file="$PWD/munge.seed"
cat > slurm.conf <<END
ClusterName=try
SlurmctldHost=node1
SlurmUser=root
AuthInfo=cred_expire=5
StateSaveLocation=$PWD/slurm
SlurmdSpoolDir=$PWD/spool-%n
SlurmctldPidFile=$PWD/slurmctld.pid
SlurmdPidFile=$PWD/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
KillWait=30
ReturnToService=2
NodeName=node[1-2] CPUs=$(nproc)
PartitionName=all Nodes=ALL Default=YES
END
export SLURM_CONF=$PWD/slurm.conf XDG_CACHE_HOME=$PWD/cache
slurmctld -L "$PWD/slurmctld.log"
slurmd -L "$PWD/slurmd1.log"
nsenter --net=/run/netns/node2 unshare --uts bash -c "hostname node2; slurmd -L '$PWD/slurmd2.log'"
until [ "$(sinfo --noheader --states=idle --format=%D)" = 2 ]; do sleep 1; done

python - <<END
from train.data.embedded import embedded_pairs
for name, side in (("corpus.de", "source"), ("corpus.en", "target")):
    open(name, "w").writelines(getattr(pair, side) + "\n" for pair in embedded_pairs()[:4000])
END

# Submit the training into the folder NAME, with options of sbatch.
submit() {
    RUN=$PWD/$1 CORPUS=$PWD/corpus sbatch --job-name="$1" --output="$1.log" --ntasks-per-node=1 --gpus-per-node=0 \
        --cpus-per-task=1 "${@:2}" "$here/train.sbatch" --epochs "$EPOCHS" --training.num-widths 1 \
        --training.best loss --training.batch-tokens 512 --training.save-seconds 5 --search.beam-size 1 \
        --corpus.tokenizer words --model.tie-embeddings none --model.num-hiddens 32 --model.embed-size 32
}
# Wait until a command succeeds; it is an error if no job is left before.
await() {
    until "$@" 2> /dev/null; do
        [ -n "$(squeue --noheader)" ] || { "$@"; return; }
        sleep 1
    done
}
epochs() { wc -l < disturbed/metrics.jsonl; }
has_more_than() { [ "$(epochs)" -gt "$1" ]; }
has_ended() { [ -z "$(squeue --noheader)" ]; }

echo "$(sinfo --version), JAX $(python -c 'import jax; print(jax.__version__)'), $(nproc) cores"
submit whole --time=60
await has_ended
[ -e whole/summary.json ]
echo "undisturbed: $EPOCHS epochs, $SECONDS s in all"

submit disturbed --time=3 --signal=TERM@30  # SLURM sends the signal up to a minute earlier
await grep -q 'go on with' disturbed.log || { echo "$EPOCHS epochs ended before; give more EPOCHS"; exit 1; }
stopped=$(epochs)
echo "stopped by its time limit of 3 minutes after $stopped epochs"
scontrol update JobId=2 TimeLimit=60
await has_more_than "$stopped"
task=$(grep -lzx SLURM_PROCID=1 /proc/[0-9]*/environ 2> /dev/null | cut -d/ -f3)
echo "task 1 is killed after $(epochs) epochs, or some more"
kill -KILL "$task"
killed=$SECONDS
await eval '[ -z "$(squeue --noheader --states=running)" ]'
echo "the job has ended $((SECONDS - killed)) s later"
await has_ended
scontrol show job 2 | grep -o 'Restarts=[0-9]*'
cmp whole/model.safetensors disturbed/model.safetensors
python - <<END
import json
epochs = [json.loads(line)["epoch"] for line in open("disturbed/metrics.jsonl")]
assert epochs == list(range(1, $EPOCHS + 1)), epochs
END
echo "each of $EPOCHS epochs was trained once, and the weights are equal to those of the undisturbed training"
