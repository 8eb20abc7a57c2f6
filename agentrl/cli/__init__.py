"""agentrl.cli"""
