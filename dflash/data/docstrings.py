"""Functions of Python's own standard library as completion tasks: signature and docstring.

Sources are parsed, not imported, because importing some modules has effects. Docstrings differ a
little between Python versions, and so does this set.
"""

from __future__ import annotations

import ast
import sysconfig
from functools import cache
from pathlib import Path

from dflash.data.wording import Prompt, function_task
from dflash.model.errors import UserError

# Modules whose functions make sense without their surroundings; all present in 3.11 to 3.14.
# fmt: off
MODULES = (
    "ast", "base64", "bisect", "calendar", "codecs", "colorsys", "configparser", "contextlib",
    "copy", "csv", "dataclasses", "datetime", "difflib", "dis", "doctest", "email.utils",
    "email.header", "email.quoprimime", "email.base64mime", "email.encoders", "email.iterators",
    "enum", "fileinput", "fnmatch", "fractions", "functools", "genericpath", "getpass", "gettext",
    "glob", "graphlib", "gzip", "hashlib", "heapq", "hmac", "html", "http.cookiejar",
    "http.client", "imaplib", "inspect", "io", "ipaddress", "json", "keyword", "linecache",
    "locale", "logging", "logging.config", "mailbox", "mimetypes", "multiprocessing.util",
    "netrc", "ntpath", "nturl2path", "numbers", "operator", "os", "pickle", "pickletools",
    "pkgutil", "platform", "plistlib", "posixpath", "pprint", "profile", "pstats", "py_compile",
    "pyclbr", "pydoc", "queue", "quopri", "random", "runpy", "secrets", "shlex", "shutil", "site",
    "smtplib", "socket", "ssl", "stat", "statistics", "string", "stringprep", "subprocess",
    "sysconfig", "tarfile", "tempfile", "textwrap", "threading", "timeit", "tokenize", "trace",
    "traceback", "tracemalloc", "types", "typing", "unittest.util", "urllib.error",
    "urllib.parse", "urllib.request", "uuid", "warnings", "wave", "weakref", "webbrowser",
    "wsgiref.util", "xml.etree.ElementTree", "xml.sax.saxutils", "xmlrpc.client", "zipapp",
    "zipfile", "_pydecimal", "_strptime",
)
# fmt: on
# In characters. A prompt token costs as much as an answer token on a CPU.
_MIN_DOC, _MAX_STUB = 50, 420


def read_docstrings() -> list[Prompt]:
    """Documented functions of the standard library, in HumanEval's frame."""
    return [prompt for module in MODULES for prompt in _tasks(module)]


@cache
def _tasks(module: str) -> tuple[Prompt, ...]:
    prompts: dict[str, Prompt] = {}
    for node in ast.parse(_source(module)).body:
        if isinstance(node, ast.FunctionDef) and (stub := _stub(node)) is not None:
            name = f"docstrings/{module}.{node.name}"
            prompts.setdefault(name, Prompt(name, "code", (function_task(stub),)))
    return tuple(prompts.values())


def _source(module: str) -> str:
    # Not through find_spec: it hides the files of frozen modules such as codecs.
    stem = Path(sysconfig.get_path("stdlib")).joinpath(*module.split("."))
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise UserError(
        f"prompt set 'docstrings' needs the source of the standard module {module}, which this "
        "Python does not carry; use a Python that ships its .py files"
    )


def _stub(function: ast.FunctionDef) -> str | None:
    """Signature and docstring, or None if they would not make a short, clear task."""
    doc = ast.get_docstring(function)
    if doc is None or not doc.isascii() or len(doc) < _MIN_DOC or '"""' in doc:
        return None
    result = "" if function.returns is None else f" -> {ast.unparse(function.returns)}"
    body = "\n".join(f"    {line}".rstrip() for line in doc.splitlines())
    signature = f"def {function.name.lstrip('_')}({ast.unparse(function.args)}){result}:"
    stub = f'{signature}\n    """{body.strip()}\n    """\n'
    return stub if len(stub) <= _MAX_STUB else None
