#!/usr/bin/env bash
#SBATCH --nodes 2
#SBATCH --ntasks-per-node 2
#SBATCH --cpus-per-task 8
# sbatch slurm.sh examples/train_digits.py
set -eu
GOCCL_SECRET=$(head -c 32 /dev/urandom | base64)
export GOCCL_SECRET
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
srun goccl run "$@"
