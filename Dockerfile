# Three images, of the wheels in dist/ (scripts/build_wheels.py): neither has a compiler of C.
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
    pip install --no-cache-dir --find-links /dist --only-binary :all: 'ekiden[serve]'
USER user
ENV EKIDEN_CACHE_DIR=/home/user/.cache/ekiden
ENTRYPOINT ["ekiden", "serve"]
