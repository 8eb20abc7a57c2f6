"""Look for a second copy of a library; runs inside a sandbox, standard library only.

A model that finds the unbroken file in a folder of the interpreter learns to copy, not to repair.
Takes `{"modules": {name: {file name: bytes}}, "places": [folders]}` and prints where a copy lies.
"""

import json
import os
import sys


def near(path, size):
    """True if a file is about as large: many files are called alike."""
    try:
        return 0.7 < os.path.getsize(path) / max(size, 1) < 1.4  # noqa: PTH202 - sooner started
    except OSError:
        return False  # a link to what sandboxes do not show


def main():
    """Print the first copy; nothing if there is none."""
    asked = json.loads(sys.argv[1])
    wanted = asked["modules"]
    if set(wanted) & set(sys.stdlib_module_names):
        sys.stdout.write("the standard library\n")
        return
    places = {sys.prefix, sys.base_prefix, "/usr/lib/python3", "/usr/local/lib", *sys.path}
    for place in sorted({*places, *asked["places"]} - {""}):
        # What is not there or may not be read has nothing in it for a model either.
        for folder, below, files in os.walk(place):
            if "__pycache__" in below:
                below.remove("__pycache__")
            found = set(files)
            parent, _, last = folder.rpartition("/")
            for name, names in wanted.items():
                # Vendored copies leave some files out; a bare `__init__.py` is any package's.
                mine = set(names) - {"__init__.py"}
                single = mine == {f"{name}.py"} <= found and near(
                    f"{folder}/{name}.py", names[f"{name}.py"]
                )
                package = last == name and len(mine & found) * 2 > len(mine)
                top = last == name and parent in sys.path
                if single or package or top:
                    sys.stdout.write(f"{folder}\n")
                    return


main()
