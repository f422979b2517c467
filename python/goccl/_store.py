"""`goccl store`: a store at which the processes of a job meet, in a process of its own.

It is torch's TCPStore. The job can lose any of its processes, and the store stays. Processes that
join later find the others in it. It runs until SIGTERM or SIGINT (Ctrl-C) ends it.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import socket
import sys

from goccl._command import add_examples

_PORT = 29500  # as of torchrun
_BACKLOG = 4096  # connections at once, as when a large job starts


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a port: allowed are 1 to 65535, and 0 for one that is free"
        )
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `goccl store`."""
    add = parser.add_argument
    add(
        "--port",
        type=_port,
        default=_PORT,
        help=f"to listen on (default {_PORT}); 0 for one that is free",
    )
    add(
        "--host",
        metavar="ADDRESS",
        help="name or address of this host to listen on (default: all its addresses)",
    )
    add_examples(
        parser,
        ["goccl store", "goccl store --host 10.0.0.1 --port 0"],
        {
            0: "it was ended by SIGTERM or SIGINT",
            1: "it cannot listen",
            2: "the command line is wrong",
        },
    )


def main(args: argparse.Namespace) -> int:
    """Runs the command.

    Returns:
        0: it was ended by SIGTERM or SIGINT; 1: it cannot listen.
    """
    ends = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # in threads that are made later, too
    try:
        listener = _listen(args.host, args.port)
    except OSError as error:
        at = f"{args.host or 'all addresses'}, port {args.port}"
        number = error.errno or 0  # of a name that is not known it is negative
        why = os.strerror(number) if number > 0 else error.strerror
        print(f"goccl store: cannot listen on {at}: {why}", file=sys.stderr)
        return 1
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each client has a connection
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # torch logs each client that goes
    from torch.distributed import TCPStore

    with listener:
        address, port = listener.getsockname()[:2]
        store = TCPStore(
            "localhost" if address in ("::", "0.0.0.0") else address,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=os.dup(listener.fileno()),
        )
    print(f"the store listens on {args.host or socket.gethostname()}:{port}", flush=True)
    signal.sigwait(ends)
    del store
    return 0


def _listen(host: str | None, port: int) -> socket.socket:
    """Opens a socket at one address of this host, or at all."""
    if host is None and socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
        )
    family = socket.AF_INET
    if host is not None:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host or "", port), family=family, backlog=_BACKLOG)
