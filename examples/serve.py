"""A client of the defended detector: it needs only Python, and checks which defense responds.

objectseeker serve --defense defense.json --port 8000          in another terminal
python serve.py 127.0.0.1:8000 street.jpg
"""

import json
import sys
from http.client import HTTPConnection
from pathlib import Path

server, image = sys.argv[1:]
connection = HTTPConnection(server, timeout=60)


def request(method, path, body=None):
    connection.request(method, path, body)
    response = connection.getresponse()
    content = json.load(response)
    if response.status != 200:  # 503: the server is busy, retry after response.headers["Retry-After"] seconds
        sys.exit(f"{response.status}: {content['error']}")
    return content


model = request("GET", "/v2/models/objectseeker")
(version,) = model["versions"]  # the SHA-256 of the defense: your metrics are valid for this one
settings = model["parameters"]["defense"]
print(f"{settings['detector']} under {settings['masks']}, sha256:{version[:12]}")

result = request("POST", "/detect?certify=1", Path(image).read_bytes())
if result["defense_sha256"] != version:
    sys.exit(f"the server now has another defense, {result['defense_sha256']}: its certificates differ")
for box in result["detections"]:
    x, y, width, height = box["bbox"]
    verdict = "certified" if box["anywhere"] else "not certified"  # against the server's --patch-area, at any position
    print(f"{box['category_name']} {box['score']:.2f} at {x:.0f}, {y:.0f}, {width:.0f} x {height:.0f}:", end=" ")
    print(f"{verdict}; the largest square that cannot hide it has {box['largest_square']} pixels per side")
print("masking recovered boxes" if result["alert"] else "no alert")
