#!/bin/sh
# Jobs of one user before we come, in several forms; some end in the second in which they start.
set -u
mkdir -p history && cd history || exit 1
for options in --gres=gpu:1 --gres=gpu:a100:1 "--gpus=2" "--gpus=v100:2" "-N2 --gpus-per-node=a100:1" \
    "-n2 --gpus-per-task=1" "--gres=gpu:v100:4" "-q long --gres=gpu:1"; do
    # shellcheck disable=SC2086  # options
    sbatch -t 5 $options --wrap='true'
done
sbatch -t 5 --array=1-4 --gres=gpu:1 --wrap='sleep 2'
sbatch -t 5 --gpus=a100:1 -L matlab:1 --comment='run 7, first' --wrap='srun sleep 1'
sbatch -t 5 --wrap='sleep 1'
