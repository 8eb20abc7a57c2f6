"""The inspector's server in a child process of the run that it shows.

It listens on this machine alone, at a free port, and ends with its parent, however that ended.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from agentrl.inspect.web.library import Library
from agentrl.inspect.web.serve import serve
from agentrl.machine.processes.child_main import ChildChannel

_NICE = 10
"""The run comes first: what the page costs is what the run leaves."""


def serve_run(channel: ChildChannel) -> None:
    """Serve the run that the parent names; sends the address of its page, or why there is none."""
    channel.end_with_parent()
    os.nice(_NICE)
    try:
        library = Library([Path(channel.receive().head["run"])])
        view = f"#/run?run={quote(library.readers()[0].run.id, safe='')}"
        serve(
            library,
            host="127.0.0.1",
            port=0,
            browser=False,
            say=lambda line: None,
            opened=lambda address: channel.send({"address": address + view}),
        )
    except Exception as error:  # recording boundary: the run goes on without its page
        channel.send({"error": f"{type(error).__name__}: {error}"})
