"""The forwarder: starts inside a fence, listens on 127.0.0.1 and carries bytes to the socket of the broker.

    python3 -I -S forwarder.py SOCKET PORT COMMAND [ARGUMENT ...]

It listens, leaves a process behind that forwards, and becomes the command: the command has the same number, streams and
end as without it, and finds the port open from its first moment. It decides nothing: whatever runs inside could talk to
the socket itself. Only the standard library, of any Python 3.6 or newer: it runs with the interpreter of the fence.
"""

import os
import selectors
import signal
import socket
import sys

PIECE = 65536
MOST = 256
# As shells answer: the command cannot be run, or does not exist.
CANNOT_RUN, NOT_FOUND = 126, 127


class Side:
    """One end of a connection: its socket, and what is waiting to be written to it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.waiting = b""
        self.reads = True  # until its end was read
        self.ended = False  # nothing more is written to it
        self.other = self


def forward(listener: socket.socket, path: str) -> None:
    """Carry bytes until killed, which the end of the command does."""
    chosen = selectors.DefaultSelector()
    listener.setblocking(False)
    chosen.register(listener, selectors.EVENT_READ, None)
    count = 0
    full = False
    while True:
        for key, events in chosen.select():
            side = key.data
            if side is None:
                count += accept(chosen, listener, path)
            elif side.sock.fileno() >= 0:
                count -= carry(chosen, side, events)
        if full != (count >= MOST):
            full = not full
            if full:
                chosen.unregister(listener)
            else:
                chosen.register(listener, selectors.EVENT_READ, None)


def accept(chosen: selectors.BaseSelector, listener: socket.socket, path: str) -> int:
    try:
        client = listener.accept()[0]
    except OSError:
        return 0
    out = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        out.connect(path)
    except OSError:
        out.close()
        client.close()
        return 0
    sides = Side(client), Side(out)
    sides[0].other, sides[1].other = sides[1], sides[0]
    for side in sides:
        side.sock.setblocking(False)
        chosen.register(side.sock, selectors.EVENT_READ, side)
    return 1


def carry(chosen: selectors.BaseSelector, side: Side, events: int) -> int:
    """Read a piece for the other side, write what waits for this one. 1 when the connection is over."""
    other = side.other
    try:
        if events & selectors.EVENT_WRITE and side.waiting:
            side.waiting = side.waiting[side.sock.send(side.waiting) :]
        if events & selectors.EVENT_READ and not other.waiting:
            try:
                data = side.sock.recv(PIECE)
            except ConnectionResetError:
                data = b""  # the broker closes when it has answered, also before everything was sent to it
            if not data:
                side.reads = False
            elif not other.ended:
                try:
                    other.waiting = data[other.sock.send(data) :]
                except BlockingIOError:
                    other.waiting = data
                except (BrokenPipeError, ConnectionResetError):
                    other.ended = True  # what it answered before is still read from it
        for each in (side, other):
            if not each.other.reads and not each.waiting and not each.ended:
                each.ended = True
                each.sock.shutdown(socket.SHUT_WR)
    except BlockingIOError:
        pass
    except OSError:
        return close(chosen, side)
    if not side.reads and not other.reads and not side.waiting and not other.waiting:
        return close(chosen, side)
    for each in (side, other):
        wanted = selectors.EVENT_READ if each.reads and not each.other.waiting else 0
        wanted |= selectors.EVENT_WRITE if each.waiting else 0
        watch(chosen, each, wanted)
    return 0


def watch(chosen: selectors.BaseSelector, side: Side, wanted: int) -> None:
    known = side.sock in chosen.get_map()
    if wanted and known:
        chosen.modify(side.sock, wanted, side)
    elif wanted:
        chosen.register(side.sock, wanted, side)
    elif known:
        chosen.unregister(side.sock)


def close(chosen: selectors.BaseSelector, side: Side) -> int:
    for each in (side, side.other):
        watch(chosen, each, 0)
        each.sock.close()
    return 1


def main(path: str, port: str, command: "list[str]") -> None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(port)))
    listener.listen(128)
    # Twice, so that it is no child of the command, which may wait for all its children.
    first = os.fork()
    if not first:
        if os.fork():
            os._exit(0)
        os.setsid()
        nothing = os.open("/dev/null", os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        forward(listener, path)
    os.waitpid(first, 0)
    listener.close()
    # Python ignores these, and what is ignored stays so in the command: `yes | head` would not end.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        code, why = NOT_FOUND, "not found"
    except OSError as error:
        code, why = CANNOT_RUN, error.strerror
    os.write(2, "{}: {}\n".format(command[0], why).encode(errors="replace"))  # noqa: UP032
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
