"""A page of torch's debug server: what the groups of a job do, and who holds them up.

Every rank calls, with torch 2.15 or newer:

    from torch.distributed.debug import start_debug_server
    from torch.distributed.debug._debug_handlers import default_handlers
    import goccl.debug

    start_debug_server(handlers=[*default_handlers(), goccl.debug.Handler()])

The page is /goccl of rank 0's server. Ranks are asked by torch's worker servers, for
/handler/goccl_status: goccl.status() as JSON. They answer by Python, so a rank that holds its
interpreter does not; `goccl ps` sees that one, too.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import torch

from goccl import _capi

try:
    from torch._C._distributed_c10d import _register_handler
    from torch.distributed.debug._frontend import (
        DebugHandler,
        NavLink,
        Route,
        fetch_all,
        format_fetch_summary,
    )
except ImportError as error:
    raise ImportError(
        f"goccl.debug needs torch.distributed.debug of torch 2.15 or newer; this is torch "
        f"{torch.__version__}: {error}"
    ) from error

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _Request, _Response
    from torch.distributed.debug._frontend import HTTPRequestHandler

__all__ = ["Handler"]


# Prints what ranks tell. torch's frontend is a child of fork(), where the library cannot be called.
_PRINT = """
import sys
from goccl import _capi, _ps
print(_ps.render(_capi.call("goccl_ps_judge", sys.stdin.buffer.read())))
"""

_PAGE = """
{% extends "base.html" %}
{% block header %}<h1>{% block title %}GoCCL{% endblock %}</h1>{% endblock %}
{% block content %}<pre>{{ text | e }}</pre>{% endblock %}
"""


def _answer(_request: _Request, response: _Response) -> None:
    """Answers what this process's groups do."""
    status = _capi.call("goccl_status")
    response.set_content(json.dumps(status), "application/json")
    response.set_status(200)


# torch lets go of its handlers when the interpreter has ended: the last reference must not be its.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_answer))
_register_handler("goccl_status", _answer)


class Handler(DebugHandler):
    """A handler for start_debug_server(): the page /goccl.

    >>> start_debug_server(handlers=[*default_handlers(), goccl.debug.Handler()])
    """

    def routes(self) -> list[Route]:
        """The paths that it serves."""
        return [Route("/goccl", self._page)]

    def nav_links(self) -> list[NavLink]:
        """The links of each page to them."""
        return [NavLink("/goccl", "GoCCL")]

    def templates(self) -> dict[str, str]:
        """What pages are made of."""
        return {"goccl.html": _PAGE}

    def dump(self) -> str:
        """What is written periodically: the text of the page."""
        return self._text()

    def dump_filename(self) -> str:
        """What the names of dumps begin with."""
        return "goccl"

    def _page(self, request: HTTPRequestHandler) -> bytes:
        return request.frontend.render_template("goccl.html", text=self._text())

    def _text(self) -> str:
        addresses, responses = fetch_all("goccl_status", timeout=self.fetch_timeout)
        summary = format_fetch_summary(addresses, responses)
        told = ",".join(r.text for r in responses if r.status_code == 200)
        done = subprocess.run(
            [sys.executable, "-c", _PRINT],
            input=f"[{told}]",
            capture_output=True,
            text=True,
            check=False,
            timeout=self.fetch_timeout,
        )
        text = done.stdout.rstrip() or done.stderr
        return f"{summary}\n\n{text}" if summary else text
