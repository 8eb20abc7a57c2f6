"""agentrl.reward"""
