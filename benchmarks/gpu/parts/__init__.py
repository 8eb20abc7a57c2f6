"""The parts of `make gpu`.

They compare families with their own forward, attention, the head and gradients with the CPU, FSDP2
with one process, a model loaded in parts with one loaded whole, the embedded engine with the
trainer, and weights sent by CUDA IPC with those sent; and they measure speed and memory.
"""
