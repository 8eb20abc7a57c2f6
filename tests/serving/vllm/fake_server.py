"""Stands for a vLLM API server where only its processes matter: starts in a blink.

    fake_server.py MODE --host H --port P --served-model-name NAME...

MODE `serve` answers `/v1/models`; `nest` also has a child and a grandchild in a session of its own,
all deaf to SIGTERM; `hang` never listens; `fail` ends with a traceback; `option` as argparse ends.
"""

import http.server
import json
import signal
import subprocess
import sys
import time

DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
NEST = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {DEAF!r}]); {DEAF}"


def main() -> None:
    mode, words = sys.argv[1], sys.argv[2:]
    names = words[words.index("--served-model-name") + 1 :]
    port = int(words[words.index("--port") + 1])
    print(f"mode {mode}", flush=True)
    if mode == "fail":
        raise ValueError("this model has no weights")
    if mode == "option":
        sys.exit("api_server.py: error: unrecognized arguments: --frobnicate 3")
    if mode == "hang":
        time.sleep(600)
    if mode == "nest":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", NEST], start_new_session=True)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"data": [{"id": name} for name in names]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


main()
