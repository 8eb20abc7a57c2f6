"""Images in a conversation: their slots in text, their tokens among ids, and the proof of both."""
