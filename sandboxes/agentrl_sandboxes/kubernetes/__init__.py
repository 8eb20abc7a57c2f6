"""The Kubernetes backend: a pod for each sandbox, whose PID 1 is our supervisor.

`backend` makes pods from `manifest` over `client`; `pods` starts and ends one, `attach` is the way
in; `verdicts` reads from its status what went wrong, `failures` from the API's answers; `network`
shows that nothing can be reached from inside; `sweep` finds what was left behind.
"""

from agentrl_sandboxes.kubernetes.backend import KubernetesBackend

__all__ = ["KubernetesBackend"]
