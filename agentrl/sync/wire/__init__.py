"""Tensors as bytes: buckets, checksums, patches."""
