#!/bin/bash
#SBATCH --job-name="ppo \"lander\" run"
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gres=gpu:a100:2
#SBATCH --mem=64G
#SBATCH --partition=gpu
#SBATCH --account=proj-7
#SBATCH --qos=high
#SBATCH --constraint="ib&a100"
#SBATCH --reservation=course
#SBATCH --time=1-12:00:00
#SBATCH --exclusive
#SBATCH --signal=USR1@120
#SBATCH --output="/scratch/ada/100%% logs/job-%j.log"
#SBATCH --open-mode=append
#SBATCH --mail-type=END,FAIL
#SBATCH --nice=100
#SBATCH --requeue

source /etc/profile
module load cuda/12.4
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
exec >>'/scratch/ada/100% logs/worker-'"$rank".log 2>&1
ended=/home/ada/.clusterenv/runs/clusterenv-x1/worker-"$rank".0.exit
rm -f "$ended"
echo "== rank $rank, Slurm job $SLURM_JOB_ID on $SLURMD_NODENAME, $(taskset -cp $$)"
/opt/venv/bin/python -m clusterenv worker --rank "$rank" --connection /home/ada/.clusterenv/runs/clusterenv-x1/connection.json
code=$?
echo "$code ${SLURM_RESTART_COUNT:-0}" >"$ended.new" && mv "$ended.new" "$ended"
exit "$code"
END_OF_WORKER
srun --nodes=4 --ntasks=4 --cpus-per-task=16 --gres=gpu:a100:2 --no-kill --kill-on-bad-exit=0 --wait=0 --export=ALL --cpu-bind=cores '--comment=two words' /bin/bash -c "$worker"
