"""Load on `objectseeker serve`, against `objectseeker detect` on the same machine: python tests/serve_load.py

Both run for the whole time, the built-in detector with bands, and take turns: while one works the other is stopped
(SIGSTOP), so whatever else the machine does hits both alike. Every answer is compared with the library's own boxes.
At the end the server gets more requests than it has places for, clients that leave, and TERM with every place taken.
"""

import argparse
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import PIL.Image

from objectseeker import Bands, Defense
from objectseeker.demo.samples import samples
from objectseeker.files.images import load_image

PATIENCE = [
    "--limit",
    "queue_timeout=3600",
    "--limit",
    "receive_timeout=3600",
]  # a process that is stopped knows nothing of it

LEAVING = 2  # places in addition to those of the clients that stay


class Load:
    """Clients that ask without a pause, and what they were answered."""

    def __init__(self, port: int, images: list[tuple[bytes, list[Any]]]) -> None:
        self.port, self.images = port, images
        self.statuses: Counter[str] = Counter()
        self.wrong = 0
        self.ending = threading.Event()
        self.threads: list[threading.Thread] = []

    def start(self, clients: int) -> None:
        self.threads = [threading.Thread(target=self._client, args=(number,)) for number in range(clients)]
        for thread in self.threads:
            thread.start()

    def _client(self, number: int) -> None:
        choose, connection = random.Random(number), None
        while not self.ending.is_set():
            body, expected = choose.choice(self.images)
            try:
                connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
                connection.request("POST", "/detect", body)
                answer = connection.getresponse()
                content = json.loads(answer.read())
            except (OSError, http.client.HTTPException) as error:
                self.statuses[type(error).__name__] += 1
                connection = None
                time.sleep(0.05)
                continue
            self.statuses[str(answer.status)] += 1
            if answer.status == 200:
                got = [[*row["bbox"], row["score"], row["category_id"]] for row in content["detections"]]
                self.wrong += got != expected

    def join(self) -> None:
        self.ending.set()
        for thread in self.threads:
            thread.join()


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes, float]:
    """Status, content and seconds of one answer."""
    begin = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    connection.request(method, path, body)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, time.monotonic() - begin


def figure(port: int, name: str) -> float:
    text = ask(port, "GET", "/metrics")[1].decode()
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} "))


def resident(pid: int) -> float:
    """Megabytes that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def expected_of(defense: Defense, image: Any) -> list[Any]:
    (boxes,) = defense.build()([image])
    rows = zip(boxes.xyxy.tolist(), boxes.score.tolist(), boxes.label.tolist(), strict=True)
    return [[x1, y1, x2 - x1, y2 - y1, score, label + 1] for (x1, y1, x2, y2), score, label in rows]


def write_images(folder: Path, count: int) -> None:
    """Images of the sizes of the bundled ones, no two alike: detect looks at equal ones once."""
    images = [load_image(sample.path) for sample in samples()]
    folder.mkdir()
    for number in range(count):
        image = images[number % len(images)].copy()
        image[:8, :8] = np.random.default_rng(number).integers(0, 256, (8, 8, 3))
        PIL.Image.fromarray(image).save(folder / f"{number:05}.jpg", quality=92)


def take_turns(server: Any, detect: Any, journal: Path, load: Load, seconds: float, turn: float) -> dict[str, Any]:
    """Rates of both, images per second, in turns; and the memory of the server after each of its own."""
    rates: dict[str, list[float]] = {"serve": [], "detect": []}
    memory, spent = [resident(server.pid)], 0.0
    done = {"serve": lambda: load.statuses["200"], "detect": lambda: journal.read_bytes().count(b"\n")}
    while spent < seconds and detect.poll() is None:
        for name, process in (("serve", server), ("detect", detect)):
            os.kill(process.pid, signal.SIGCONT)
            before, begin = done[name](), time.monotonic()
            time.sleep(turn)
            rates[name].append((done[name]() - before) / (time.monotonic() - begin))
            os.kill(process.pid, signal.SIGSTOP)
        memory.append(resident(server.pid))
        spent += turn
    os.kill(server.pid, signal.SIGCONT)
    detect.kill()
    return {
        "serve_images_a_second": sum(rates["serve"]) / len(rates["serve"]),
        "detect_images_a_second": sum(rates["detect"]) / len(rates["detect"]),
        "of_detect": sum(rates["serve"]) / max(sum(rates["detect"]), 1e-9),
        "turns": len(rates["serve"]),
        "memory_mb": {
            "before": memory[0],
            "middle": memory[len(memory) // 2],
            "after": memory[-1],
            "most": max(memory),
        },
    }


def overload(port: int, body: bytes, more: int) -> dict[str, Any]:
    """Clients that leave while they wait and while they send; then requests beyond the places, all at once."""
    for part in (len(body), len(body) // 2):
        with socket.create_connection(("127.0.0.1", port)) as leaving:
            leaving.sendall(b"POST /detect HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:part])
            time.sleep(0.3)
    with ThreadPoolExecutor(more) as clients:
        answers = list(clients.map(lambda _: ask(port, "POST", "/detect", body), range(more)))
    took = [seconds for status, _, seconds in answers if status == 503]
    return {"asked": more, "rejected": len(took), "refused_within_s": max(took, default=None)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clients", type=int, default=32)
    options.add_argument("--seconds", type=float, default=180, help="of load on the server; detect has as many")
    options.add_argument("--turn", type=float, default=10)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(measure(Path(name), given.clients, given.seconds, given.turn), indent=2))


def measure(folder: Path, clients: int, seconds: float, turn: float) -> dict[str, Any]:
    Defense.for_detector("builtin", masks=Bands(0.01)).save(folder / "defense.json")
    defense = Defense.load(folder / "defense.json")
    images = [(s.path.read_bytes(), expected_of(defense, load_image(s.path))) for s in samples()]
    write_images(folder / "images", int(30 * seconds) // 3 + 50)
    program = [sys.executable, "-m", "objectseeker.cli"]
    serve = [
        *program,
        "serve",
        "--defense",
        "defense.json",
        "--port",
        "0",
        "--limit",
        f"max_concurrent_requests={clients + LEAVING}",
        *PATIENCE,
    ]
    log = (folder / "log").open("w+")
    server = subprocess.Popen(serve, cwd=folder, stdout=log)
    try:
        port = first_line(folder / "log")["port"]
        load = Load(port, images)
        load.start(clients)
        while load.statuses["200"] < 2 * len(images):  # sizes, buffers: the first time is another matter
            time.sleep(0.1)
        os.kill(server.pid, signal.SIGSTOP)
        arguments = ["detect", "images", "--defense", "defense.json", "--no-annotate", "--quiet", "--out", "found"]
        detect = subprocess.Popen([*program, *arguments], cwd=folder, stdout=subprocess.DEVNULL)
        journal = folder / "found" / "progress.jsonl"
        while not journal.exists() or journal.read_bytes().count(b"\n") < 2 * len(images):
            time.sleep(0.1)
        os.kill(detect.pid, signal.SIGSTOP)
        result = take_turns(server, detect, journal, load, seconds, turn)
        result["beyond_the_places"] = overload(port, images[0][0], 20)  # two of them have places
        while figure(port, "objectseeker_requests_in_flight") < clients:
            time.sleep(0.01)
        before = load.statuses["200"]
        load.ending.set()  # no client asks again: what is there now was taken
        server.terminate()
        load.join()
        code = server.wait(timeout=600)
        lines = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
        statuses = Counter(str(line["status"]) for line in lines if line.get("what") == "detect")
        result["term"] = {"places_taken": clients, "answered_after": load.statuses["200"] - before, "exit_code": code}
        result |= {"clients": clients, "answers": dict(load.statuses), "log": dict(statuses), "wrong": load.wrong}
        others = result["beyond_the_places"]["asked"] - result["beyond_the_places"]["rejected"]
        result["lost"] = statuses["200"] - others - load.statuses["200"]
        result["seconds_an_image"] = median(line["worked"] for line in lines if "worked" in line)
        result["load_average"] = os.getloadavg()[0]
        return result
    finally:
        server.kill()


def first_line(file: Path) -> dict[str, Any]:
    while "\n" not in (text := file.read_text()):
        time.sleep(0.1)
    line: dict[str, Any] = json.loads(text.partition("\n")[0])
    return line


if __name__ == "__main__":
    main()
