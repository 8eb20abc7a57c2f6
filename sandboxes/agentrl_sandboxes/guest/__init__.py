"""The half of agentrl_sandboxes that runs inside a sandbox, where only the standard library is.

The host sends these modules over stdin (`agentrl_sandboxes.host.channel`), so nothing of agentrl
needs to be visible inside. In a container only those modules of the standard library are there that
these import at their top (`agentrl_sandboxes.host.interpreter`), and only the codec UTF-8.
`pathlib`, `signal`, `json` and `socket` are not used: importing them takes longer than everything
else a start does.
"""
