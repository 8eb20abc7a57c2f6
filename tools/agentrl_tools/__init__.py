"""agentrl_tools"""
