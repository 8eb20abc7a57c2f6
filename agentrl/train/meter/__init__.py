"""Speed and memory of training: floating-point operations, peak of the device, memory."""
