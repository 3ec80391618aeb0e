#!/bin/bash
#SBATCH --job-name=clusterenv
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --partition=gpu
#SBATCH --signal=USR1@90
#SBATCH --output=/home/ada/.clusterenv/runs/clusterenv-x1/job-%j.log
#SBATCH --open-mode=append

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export MKL_NUM_THREADS="${MKL_NUM_THREADS:-$OMP_NUM_THREADS}"
export OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-$OMP_NUM_THREADS}"
export NUMEXPR_NUM_THREADS="${NUMEXPR_NUM_THREADS:-$OMP_NUM_THREADS}"
export PYTHONUNBUFFERED="${PYTHONUNBUFFERED:-1}"
export PYTHONFAULTHANDLER="${PYTHONFAULTHANDLER:-1}"

IFS= read -r -d '' worker <<'END_OF_WORKER' || true
rank=2
# Slurm signals everything in a step: this shell waits for the worker to leave by itself.
trap : TERM
trap '' USR1
exec >>/home/ada/.clusterenv/runs/clusterenv-x1/worker-"$rank".log 2>&1
ended=/home/ada/.clusterenv/runs/clusterenv-x1/worker-"$rank".3.exit
rm -f "$ended"
echo "== rank $rank, Slurm job $SLURM_JOB_ID on $SLURMD_NODENAME, $(taskset -cp $$)"
CLUSTERENV_INCARNATION=3 /opt/venv/bin/python -m clusterenv worker --rank "$rank" --connection /home/ada/.clusterenv/runs/clusterenv-x1/connection.json
code=$?
echo "$code ${SLURM_RESTART_COUNT:-0}" >"$ended.new" && mv "$ended.new" "$ended"
exit "$code"
END_OF_WORKER
srun --nodes=1 --ntasks=1 --kill-on-bad-exit=0 --wait=0 --export=ALL /bin/bash -c "$worker"
