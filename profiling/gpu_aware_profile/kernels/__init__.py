"""Kernels of the classes A, B and C for real GPUs, as a program that measures one GPU.

- `arrays`: what a kernel needs of a device, and inputs that are equal on all of them
- `compute_bound`: class A; `transformer`: class B; `memory_bound`: class C
- `classes`: kernels of a class, in sizes that follow the memory of the device
- `sampling`: repeats a kernel until its median is known well enough, and checks its result
- `cuda`: the device, through CuPy; `program`: the process that `kernel_timing` starts

Numerics are written against an array module, so that tests run them on NumPy; only `cuda` needs a
GPU.
"""
