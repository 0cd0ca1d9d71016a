"""The defended detector as a service: a client that needs nothing but Python, and knows which defense answers it.

objectseeker serve --defense defense.json --port 8000          in another terminal
python serve.py 127.0.0.1:8000 street.jpg
"""

import json
import sys
from http.client import HTTPConnection
from pathlib import Path

server, photograph = sys.argv[1:]
connection = HTTPConnection(server, timeout=60)


def ask(method, path, body=None):
    connection.request(method, path, body)
    answer = connection.getresponse()
    content = json.load(answer)
    if answer.status != 200:  # 503: all places are taken, ask again after answer.headers["Retry-After"] seconds
        sys.exit(f"{answer.status}: {content['error']}")
    return content


model = ask("GET", "/v2/models/objectseeker")
(version,) = model["versions"]  # the SHA-256 of the defense: your figures are about this one
settings = model["parameters"]["defense"]
print(f"{settings['detector']} under {settings['masks']}, sha256:{version[:12]}")

found = ask("POST", "/detect?certify=1", Path(photograph).read_bytes())
if found["defense"] != version:
    sys.exit(f"another defense answers now, {found['defense']}: its certificates are not those you know")
for box in found["detections"]:
    x, y, width, height = box["bbox"]
    proven = "certified" if box["anywhere"] else "not certified"  # against the server's --patch, wherever it lies
    print(f"{box['category_name']} {box['score']:.2f} at {x:.0f}, {y:.0f}, {width:.0f} x {height:.0f}:", end=" ")
    print(f"{proven}; the largest square that cannot hide it has {box['largest_square']} pixels a side")
print("masks found what the image alone does not show" if found["alert"] else "no alert")
