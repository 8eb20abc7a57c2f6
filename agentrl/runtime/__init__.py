"""agentrl.runtime"""
