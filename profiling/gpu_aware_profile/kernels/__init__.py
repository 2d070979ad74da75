"""Kernels of the classes A, B and C for real GPUs, as a program that measures one GPU.

- `arrays`: what a kernel needs of a device, and inputs that are equal on all of them
- `classes`: kernels of each class, in sizes that follow the memory of the device
- `cuda`: the device, through CuPy
- `program`: the process that `process_timing` starts; it repeats a kernel until its median is known
  well enough, and checks its results

Numerics are written against an array module, so that tests run them on NumPy; only `cuda` needs a
GPU.
"""
