"""The forwarder: starts inside a fence, listens on 127.0.0.1 and carries bytes to the socket of the broker.

    python3 -I -S forwarder.py SOCKET PORT COMMAND [ARGUMENT ...]

It listens, leaves a process behind that forwards, and becomes the command: the command has the same number, streams and
end as without it, and finds the port open from its first moment. It decides nothing: whatever runs inside could talk to
the socket itself. It runs with the interpreter of the fence, any Python 3.6 or newer, before every command: it uses the
modules below `socket` and `signal`, because loading those takes as long as starting Python does.
"""

# pyright: basic, reportMissingImports=false
import _signal
import _socket
import os
import select
import sys

PIECE = 65536
OWN_LIBRARY = "/opt/foliot-python/lib"
MOST = 256
# As shells answer: the command cannot be run, or does not exist.
CANNOT_RUN, NOT_FOUND = 126, 127
READ, WRITE, BROKEN = select.POLLIN, select.POLLOUT, select.POLLHUP | select.POLLERR


class Side:
    """One end of a connection: its socket, and what is waiting to be written to it."""

    def __init__(self, sock: _socket.socket) -> None:
        self.sock = sock
        self.waiting = b""
        self.reads = True  # until its end was read
        self.ended = False  # nothing more is written to it
        self.watched = 0
        self.other = self


class Forwarder:
    """All connections of one command."""

    def __init__(self, listener: _socket.socket, path: str) -> None:
        self.listener = listener
        self.path = path
        self.poll = select.poll()
        self.sides: dict[int, Side] = {}
        self.listens = False

    def run(self) -> None:
        """Carry bytes until killed, which the end of the command does."""
        self.listener.setblocking(False)
        while True:
            self.listen(len(self.sides) < 2 * MOST)
            for number, events in self.poll.poll():
                if number == self.listener.fileno():
                    self.accept()
                elif number in self.sides:
                    self.carry(self.sides[number], events)

    def listen(self, wanted: bool) -> None:
        if wanted and not self.listens:
            self.poll.register(self.listener.fileno(), READ)
        elif self.listens and not wanted:
            self.poll.unregister(self.listener.fileno())
        self.listens = wanted

    def accept(self) -> None:
        try:
            number = self.listener._accept()[0]  # type: ignore
        except OSError:
            return
        client = _socket.socket(fileno=number)  # type: ignore
        out = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            out.connect(self.path)
        except OSError:
            out.close()
            client.close()
            return
        one, two = Side(client), Side(out)
        one.other, two.other = two, one
        for side in (one, two):
            side.sock.setblocking(False)
            self.sides[side.sock.fileno()] = side
            self.watch(side, READ)

    def carry(self, side: Side, events: int) -> None:
        """Read a piece for the other side, and write what waits for this one."""
        other = side.other
        if side.waiting and events & (WRITE | BROKEN):
            self.write(side)
        if side.reads and not other.waiting and events & (READ | BROKEN):
            try:
                data = side.sock.recv(PIECE)
            except (BlockingIOError, InterruptedError):
                data = None
            except OSError:
                data = b""  # the broker closes when it has answered, also before everything was sent to it
            if data:
                other.waiting = b"" if other.ended else data
                self.write(other)
            elif data is not None:
                side.reads = False
        for each in (side, other):
            if not each.other.reads and not each.waiting and not each.ended:
                each.ended = True
                try:  # noqa: SIM105 (one module less to load)
                    each.sock.shutdown(_socket.SHUT_WR)
                except OSError:
                    pass
        if side.reads or other.reads or side.waiting or other.waiting:
            for each in (side, other):
                self.watch(
                    each, (READ if each.reads and not each.other.waiting else 0) | (WRITE if each.waiting else 0)
                )
        else:
            for each in (side, other):
                self.watch(each, 0)
                del self.sides[each.sock.fileno()]
                each.sock.close()

    def write(self, side: Side) -> None:
        try:
            if side.waiting:
                side.waiting = side.waiting[side.sock.send(side.waiting) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            # Nobody takes it any more. What was answered before is still read.
            side.waiting = b""
            side.ended = True

    def watch(self, side: Side, wanted: int) -> None:
        if wanted and side.watched:
            self.poll.modify(side.sock.fileno(), wanted)
        elif wanted:
            self.poll.register(side.sock.fileno(), wanted)
        elif side.watched:
            # Not with an empty wish: poll tells the end of a connection always.
            self.poll.unregister(side.sock.fileno())
        side.watched = wanted


def main(path: str, port: str, command: "list[str]") -> None:
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
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
        Forwarder(listener, path).run()
    os.waitpid(first, 0)
    listener.close()
    # Python ignores these, and what is ignored stays so in the command: `yes | head` would not end.
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)
    if os.environ.get("LD_LIBRARY_PATH", "").startswith(OWN_LIBRARY):
        _, apart, others = os.environ["LD_LIBRARY_PATH"].partition(":")
        del os.environ["LD_LIBRARY_PATH"]  # it was for this interpreter
        if apart:
            os.environ["LD_LIBRARY_PATH"] = others
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
