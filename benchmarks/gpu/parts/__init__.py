"""The parts of `make gpu`: each measures one thing on a device and compares it with the CPU."""
