"""State of a trainer on its way to the disk and back: each rank writes and reads its own part."""
