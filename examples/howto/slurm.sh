#!/usr/bin/env bash
#SBATCH --nodes 2
#SBATCH --ntasks-per-node 2
#SBATCH --cpus-per-task 8
# sbatch slurm.sh examples/train_digits.py
set -eu
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
GOCCL_SECRET=$(head -c 32 /dev/urandom | base64)
export MASTER_ADDR GOCCL_SECRET
export MASTER_PORT=${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 10000))} # jobs may share a host
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS exec python "$@"' - "$@"
