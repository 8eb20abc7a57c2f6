"""agentrl_envs"""
