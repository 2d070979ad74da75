#!/bin/sh
# The site's own: a folder per job for scratch files
mkdir -p "/tmp/scratch.$SLURM_JOB_ID"
exit 0
