"""A file server of a few lines, for addresses that name a host and a user; or one that never answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def ftp_server(files: Mapping[str, bytes]) -> Iterator[tuple[int, list[str]]]:
    """The port of a server of these files, by path below one folder, and what it was told."""
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, files, told), daemon=True).start()
        yield listening.getsockname()[1], told


@contextmanager
def silent_server() -> Iterator[tuple[int, Callable[[], socket.socket]]]:
    """The port of a server that accepts and says nothing, and a function that waits until a client connects."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        listening.settimeout(60)
        yield listening.getsockname()[1], lambda: listening.accept()[0]


def _accept(listening: socket.socket, files: Mapping[str, bytes], told: list[str]) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:  # closed
            return
        threading.Thread(target=_serve, args=(connection, files, told), daemon=True).start()


def _serve(connection: socket.socket, files: Mapping[str, bytes], told: list[str]) -> None:
    data = socket.create_server(("127.0.0.1", 0))

    def send(content: bytes) -> None:
        say("150 here it comes")
        accepted, _ = data.accept()
        accepted.sendall(content)
        accepted.close()
        say("226 that was all")

    def say(line: str) -> None:
        connection.sendall(f"{line}\r\n".encode())

    with connection, data, connection.makefile("r", newline="\r\n") as lines:
        say("220 ready")
        for line in lines:
            verb, _, name = line.strip().partition(" ")
            told.append(line.strip())
            if verb == "USER":
                say("331 and the password?")
            elif verb == "PASV":
                port = data.getsockname()[1]
                say(f"227 entering passive mode (127,0,0,1,{port // 256},{port % 256})")
            elif verb == "MLSD":
                below = [(path, files[path]) for path in files if path.rpartition("/")[0] == name.rstrip("/")]
                kinds = [f"type=file;size={len(content)}; {path.rpartition('/')[2]}" for path, content in below]
                folders = {path[len(name.rstrip("/")) + 1 :].split("/")[0] for path in files if path.startswith(name)}
                kinds += [
                    f"type=dir; {folder}" for folder in sorted(folders) if f"{name.rstrip('/')}/{folder}" not in files
                ]
                send("".join(f"{kind}\r\n" for kind in kinds).encode())
            elif verb == "RETR":
                send(files[name])
            elif verb == "QUIT":
                say("221 bye")
                return
            else:
                say("230 fine" if verb == "PASS" else "200 fine")
