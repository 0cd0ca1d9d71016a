# objectseeker serve on a GPU. In the root of a clone:
#   docker build -f containers/cuda.Dockerfile -t objectseeker:cuda .
# PyTorch brings its own CUDA libraries; the driver is the host's (NVIDIA Container Toolkit). docs/guides/serve.md shows how to
# run it.
# A tag moves; for an image that can be built again, pin it by digest: --build-arg BASE=python@sha256:...
# (docker buildx imagetools inspect python:3.12-slim-bookworm prints the digest of today).
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
WORKDIR /build
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN python -m venv /opt/objectseeker \
    && /opt/objectseeker/bin/pip install --no-cache-dir --compile ".[serve,torch]"

FROM ${BASE}
COPY --from=build /opt/objectseeker /opt/objectseeker
ENV PATH=/opt/objectseeker/bin:$PATH \
    HOME=/tmp \
    ORT_DISABLE_TELEMETRY=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
WORKDIR /models
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=4)"]
ENTRYPOINT ["objectseeker", "serve", "--host", "0.0.0.0", "--port", "8000", "--device", "cuda"]
CMD ["--defense", "/models/defense.json"]
