"""The listening socket of an address, and the file that a Unix socket leaves behind.

Owns that file. Invariants: only this user can connect to a Unix socket, from the moment it exists; a socket that
somebody listens on, or a file that is no socket, is never replaced; only our own is removed. Any thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import replace

from radixtier.control.address import Address
from radixtier.control.runtime import make_runtime_directory, runtime_directory
from radixtier.units import BadValue

BACKLOG = 64

TRIES = 5
TRY_AGAIN_S = 0.02
"""Of taking a lock that another server holds for a moment."""


class Listener:
    """A socket that listens at ``address``.

    Attributes
    ----------
    socket : socket.socket
        The caller accepts from it and closes it.
    address : Address
        Where it really is: with the port that the system chose.

    Raises
    ------
    BadValue
        When the address cannot be had; says why and what to do.
    """

    def __init__(self, address: Address) -> None:
        self._file: tuple[int, int] | None = None
        self.address = address
        try:
            self.socket = self._unix(address.path) if address.path else self._tcp(address)
        except OSError as error:
            raise BadValue(f"cannot listen there: {error.strerror or error}", "Choose another address") from None

    def remove(self) -> None:
        """Remove the file of the Unix socket, unless another took its place."""
        if self._file is not None and _identity(self.address.path) == self._file:
            with contextlib.suppress(OSError):
                os.unlink(self.address.path)
        self._file = None

    def _tcp(self, address: Address) -> socket.socket:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        with _closed_on_error(sock):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address.host, address.port))
            sock.listen(BACKLOG)
        self.address = replace(address, port=sock.getsockname()[1])
        return sock

    def _unix(self, path: str) -> socket.socket:
        directory = os.path.dirname(path)
        if directory == runtime_directory():
            make_runtime_directory()
        with _alone_in(directory):
            _clear(path)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with _closed_on_error(sock):
                # Linux gives the file the mode of the socket, so there is no moment in which others could connect.
                os.fchmod(sock.fileno(), 0o600)
                sock.bind(path)
                self._file = _identity(path)
                os.chmod(path, 0o600)
                sock.listen(BACKLOG)
        return sock


@contextlib.contextmanager
def _closed_on_error(sock: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        sock.close()
        raise


@contextlib.contextmanager
def _alone_in(directory: str) -> Iterator[None]:
    """Keep two servers from taking over the same stale socket: between their looks nothing would be safe."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(TRIES):
            if _locked(handle):
                break
            time.sleep(TRY_AGAIN_S)
        else:
            fix = "Try again, or choose a directory of its own"
            raise BadValue(f"another process holds a lock on {directory}", fix)
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


def _clear(path: str) -> None:
    """Remove the socket of a server that is gone."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise BadValue(f"{path} exists and is not a socket", "Choose another path, or remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.settimeout(1.0)
        try:
            trial.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            why = f"{path} is a socket whose owner cannot be found out: {error.strerror or error}"
            raise BadValue(why, "Choose another path, or remove it") from None
        else:
            raise BadValue(f"somebody listens on {path}", "Stop that server, or choose another path")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
