"""Programs and pytest plugins that are copied into a sandbox; standard library only, no agentrl."""
