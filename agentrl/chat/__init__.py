"""agentrl.chat"""
