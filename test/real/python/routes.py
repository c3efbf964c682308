"""Prints the HTTP routes that an engine's Python sources declare: a path and its methods a line.

routes.py FOLDER … reads each file below the folders and runs none of it. What decorates a
handler, is added to an application or mounted counts, whether or not a flag of the engine
leaves it out at run time. A path that is taken from the environment is its default.
"""

import ast
import pathlib
import sys

VERBS = {"get", "post", "put", "delete", "patch", "head", "options", "websocket"}
ADDING = {"api_route", "add_api_route", "add_api_websocket_route", "mount"}


def text(node, names):
    """Returns what a path's expression is, or None."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Call) and len(node.args) == 2:  # os.environ.get(NAME, DEFAULT)
        return text(node.args[1], names)
    return None


def route(call, prefixes, names):
    """Returns the path and the methods that a call declares, or None."""
    f = call.func
    if isinstance(f, ast.Name) and f.id == "Mount" and call.args:
        path = text(call.args[0], names)
        return path and (path, ["GET"])
    if not isinstance(f, ast.Attribute) or f.attr not in VERBS | ADDING or not call.args:
        return None
    owner = f.value.id if isinstance(f.value, ast.Name) else getattr(f.value, "attr", "")
    if not owner.endswith(("app", "router")):
        return None
    path = text(call.args[0], names)
    if path is None:
        return None  # computed: of another declaration, or set by whoever starts the engine
    if f.attr in VERBS:
        methods = [f.attr.upper()]
    else:
        methods = next((ast.literal_eval(k.value) for k in call.keywords if k.arg == "methods"), ["GET"])
    return (prefixes.get(owner, "") + path, methods)


def of_file(tree):
    prefixes, names = {}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "APIRouter":
                prefixes[name] = next((text(k.value, names) or "" for k in node.value.keywords if k.arg == "prefix"), "")
            elif (path := text(node.value, names)) is not None:
                names[name] = path
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (found := route(node, prefixes, names)):
            yield found


def main():
    routes = {}
    for folder in sys.argv[1:]:
        for file in sorted(pathlib.Path(folder).rglob("*.py")):
            for path, methods in of_file(ast.parse(file.read_text())):
                routes.setdefault(path or "/", set()).update(m.upper() for m in methods)
    for path in sorted(routes):
        print(path, ",".join(sorted(routes[path])))


main()
