"""One process or many: torch, data parallel, FSDP2, DeepSpeed ZeRO."""
