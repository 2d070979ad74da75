"""Adds the client of Slurm's library, which is compiled where Slurm's headers are."""

from setuptools import setup

setup(cffi_modules=["slurm_gpu_aware/slurm/libslurm_build.py:builder"])
