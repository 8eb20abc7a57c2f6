"""agentrl.train"""
