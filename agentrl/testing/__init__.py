"""agentrl.testing"""
