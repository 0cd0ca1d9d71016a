# objectseeker serve on a CPU. In the root of a clone:
#   docker build -f containers/cpu.Dockerfile -t objectseeker:cpu .
# docs/guides/serve.md shows how to run it: as an unprivileged user, on a read-only file system.
# A tag moves; for an image that can be built again, pin it by digest: --build-arg BASE=python@sha256:...
# (docker buildx imagetools inspect python:3.12-slim-bookworm prints the digest of today).
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
WORKDIR /build
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN python -m venv /opt/objectseeker \
    && /opt/objectseeker/bin/pip install --no-cache-dir --compile ".[serve]"

FROM ${BASE}
COPY --from=build /opt/objectseeker /opt/objectseeker
# Nothing is written, except what a library may put in /tmp.
ENV PATH=/opt/objectseeker/bin:$PATH \
    HOME=/tmp \
    ORT_DISABLE_TELEMETRY=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /models
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=4)"]
# Inside a container, loopback is unreachable: publishing the port decides who may reach the server.
ENTRYPOINT ["objectseeker", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["--defense", "/models/defense.json"]
