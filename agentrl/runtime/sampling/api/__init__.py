"""A model behind someone else's API as the policy of an evaluation; nothing of it is trained."""

from agentrl.runtime.sampling.api.policy import ApiPolicy, ApiUse, open_api_policy, write_evaluation

__all__ = ["ApiPolicy", "ApiUse", "open_api_policy", "write_evaluation"]
