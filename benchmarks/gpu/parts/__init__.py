"""The parts of `make gpu`.

They compare attention, the head and gradients with the CPU, FSDP2 with one process, the embedded
engine with the trainer, and weights sent by CUDA IPC with those sent; and they measure speed and
memory.
"""
