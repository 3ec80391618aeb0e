#!/bin/bash
#SBATCH --job-name=clusterenv
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:1
#SBATCH --no-kill
#SBATCH --signal=USR1@90
#SBATCH --export=ALL
#SBATCH --output=/dev/null
#SBATCH --open-mode=append

# The environment of sbatch brings CLUSTERENV_CONNECTION, whose value is not shown.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export MKL_NUM_THREADS="${MKL_NUM_THREADS:-$OMP_NUM_THREADS}"
export OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-$OMP_NUM_THREADS}"
export NUMEXPR_NUM_THREADS="${NUMEXPR_NUM_THREADS:-$OMP_NUM_THREADS}"
export PYTHONUNBUFFERED="${PYTHONUNBUFFERED:-1}"
export PYTHONFAULTHANDLER="${PYTHONFAULTHANDLER:-1}"

IFS= read -r -d '' worker <<'END_OF_WORKER' || true
rank=$SLURM_PROCID
# Slurm signals everything in a step: this shell waits for the worker to leave by itself.
trap : TERM
trap '' USR1
echo "== rank $rank, Slurm job $SLURM_JOB_ID on $SLURMD_NODENAME, $(taskset -cp $$)"
/opt/venv/bin/python -m clusterenv worker --rank "$rank"
END_OF_WORKER
srun --nodes=2 --ntasks=2 --gres=gpu:1 --no-kill --kill-on-bad-exit=0 --wait=0 --export=ALL /bin/bash -c "$worker"
