"""The parts that commands share: start, options, progress, failures, the closing report."""
