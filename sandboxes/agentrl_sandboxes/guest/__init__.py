"""The half of agentrl_sandboxes that runs inside a sandbox, where only the standard library is.

The host sends these modules over stdin (`agentrl_sandboxes.launch`), so nothing of agentrl needs to
be visible inside, and any Python 3.9 or newer there will do. `pathlib`, `signal`, `json` and
`socket` are not used: importing them takes longer than everything else a start does.
"""
