#!/usr/bin/env bash
#SBATCH --nodes 2
#SBATCH --ntasks-per-node 1
#SBATCH --requeue
#SBATCH --open-mode append
# When a rank fails the job is queued again, three times at most; the program has checkpoints.
# sbatch slurm_requeue.sh examples/restart.py checkpoint.pt
set -eu
srun goccl run "$@" && exit
((${SLURM_RESTART_COUNT:-0} < 3)) || exit 1
scontrol requeue "$SLURM_JOB_ID"
