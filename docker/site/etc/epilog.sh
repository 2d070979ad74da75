#!/bin/sh
rm -rf "/tmp/scratch.$SLURM_JOB_ID"
exit 0
