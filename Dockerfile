# Three images from the wheels in dist/ (scripts/build_wheels.py), none with a C compiler.
# docs/guides/containers.md explains them.
#
#   docker build --target compile -t ekiden .
#   docker run --rm -v "$PWD:/models" ekiden compile model.onnx -o model.eki
#
#   docker build --target run -t ekiden-runtime .
#   docker run --rm -v "$PWD:/models:ro" ekiden-runtime serve_my_model.py
#
#   docker build --target serve -t ekiden-serve .
#   docker run --rm -v "$PWD/models:/models:ro" -p 8000:8000 ekiden-serve /models --host 0.0.0.0 --open
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS base
RUN useradd --create-home user
WORKDIR /models
ENV PYTHONUNBUFFERED=1

FROM base AS run
RUN --mount=type=bind,source=dist,target=/dist \
    pip install --no-cache-dir --find-links /dist --only-binary :all: ekiden-runtime
USER user
ENTRYPOINT ["python"]

FROM base AS compile
RUN --mount=type=bind,source=dist,target=/dist \
    pip install --no-cache-dir --find-links /dist --only-binary :all: ekiden
USER user
ENV EKIDEN_CACHE_DIR=/home/user/.cache/ekiden
ENTRYPOINT ["ekiden"]

FROM base AS serve
RUN --mount=type=bind,source=dist,target=/dist \
    pip install --no-cache-dir --find-links /dist --only-binary :all: 'ekiden[serve,llm]'
USER user
ENV EKIDEN_CACHE_DIR=/home/user/.cache/ekiden EKIDEN_HEALTH_PORT=8000
EXPOSE 8000 8001
# Live, not ready: an orchestrator restarts what fails it, which helps no model that cannot be loaded.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["python", "-c", "\
import os, urllib.request; \
urllib.request.urlopen(f'http://127.0.0.1:{os.environ[\"EKIDEN_HEALTH_PORT\"]}/v2/health/live', timeout=3)"]
ENTRYPOINT ["ekiden", "serve"]
