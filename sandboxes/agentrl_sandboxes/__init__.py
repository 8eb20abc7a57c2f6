"""agentrl_sandboxes"""
