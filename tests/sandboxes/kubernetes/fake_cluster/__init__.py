"""A Kubernetes cluster of one node for tests: the published API, and pods that are real containers.

`python -m tests.sandboxes.kubernetes.fake_cluster KUBECONFIG` serves until its stdin ends. `server`
answers as an API server does, `rules` refuses what one refuses, `node` runs pods as containers of
the local Docker daemon with the limits that a kubelet would give them. It is no cluster: there is
one node, one namespace is as good as another, and a network policy is followed by giving no network
at all.
"""
