"""The host's side of a sandbox: child processes, channels, sessions, uploads."""
