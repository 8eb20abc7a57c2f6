"""The Python that stays inside the sandbox. Standard library only, any Python from 3.8.

Its text is given to `python3 -c`; agentrl never runs it. A piece comes as its length in
eight digits, then its bytes; the number that follows is read only when the piece has run, byte by
byte, so that nothing of it is in this process before.
"""

import ast
import contextlib
import linecache
import os
import signal
import sys
import traceback

END = b"\0"


def receive(fd, size):
    """Exactly `size` bytes; ends the process when there are no more."""
    data = b""
    while len(data) < size:
        chunk = os.read(fd, size - len(data))
        if not chunk:
            os._exit(0)
        data += chunk
    return data


def receive_number(fd):
    """Bytes up to a NUL."""
    data = b""
    while not data.endswith(END):
        data += receive(fd, 1)
    return data[:-1]


def run(source, name, scope):
    """Run a piece; the value of a last expression is shown as at a prompt. 0 if it went well."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    try:
        tree = ast.parse(source, name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        exec(compile(tree, name, "exec"), scope)
        if last is not None:
            sys.displayhook(eval(compile(last, name, "eval"), scope))
        return 0
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != name:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        return 1


def main():
    """Run pieces until stdin ends."""
    me = os.getpid()
    commands, words = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(1, 2)
    scope = {"__name__": "__main__", "__builtins__": __builtins__}
    count = 0
    while True:
        # An interrupt that comes too late is not for the next piece.
        signal.signal(signal.SIGINT, lambda *_: None)
        source = receive(commands, int(receive(commands, 8))).decode("utf-8", "replace")
        count += bool(source)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            status = run(source, f"<call {count}>", scope)
        finally:
            for stream in (sys.stdout, sys.stderr):
                # The piece may have closed them.
                with contextlib.suppress(Exception):
                    stream.flush()
        if os.getpid() != me:
            # A child that came back from the piece must not take the next one.
            os._exit(0)
        signal.signal(signal.SIGINT, lambda *_: None)
        number = receive_number(commands)
        os.write(words, b"\x1e%s %d\x1e" % (number, status))


if __name__ == "__main__":
    main()
