"""New weights from the trainer to every engine, and the proof that they arrived."""
