"""agentrl.batch"""
