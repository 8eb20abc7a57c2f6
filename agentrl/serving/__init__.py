"""agentrl.serving"""
