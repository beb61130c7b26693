# The page and the service; see docs/serve.md. Everything comes from the registries of the package managers: to use your
# own, or one with a smaller torch, pass --build-arg PIP_INDEX_URL=… or PIP_EXTRA_INDEX_URL=….
#
#   docker build -t tellapart .
#   docker run -p 127.0.0.1:8000:8000 -e TELLAPART_TOKEN -v "$PWD/photos.lance:/photos.lance:ro" tellapart /photos.lance
FROM python:3.11-slim AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/tellapart
# torch goes first and pinned, as in the Makefile; its layer is made again only when the pins change.
COPY constraints.txt /build/
RUN /opt/tellapart/bin/pip install -c /build/constraints.txt torch==2.13.0
COPY pyproject.toml README.md LICENSE /build/
COPY src /build/src
COPY recipes /build/recipes
COPY models /build/models
RUN /opt/tellapart/bin/pip install -c /build/constraints.txt '/build[serve,index]'

FROM python:3.11-slim
RUN useradd --system --uid 10001 --create-home tellapart
COPY --from=build /opt/tellapart /opt/tellapart
ENV PATH=/opt/tellapart/bin:$PATH
USER 10001
WORKDIR /home/tellapart
# The encoder's network is exported once, so that the container starts quickly and may be read-only.
RUN python -c "import tellapart; from PIL import Image; tellapart.load().caption(Image.new('RGB', (9, 9)))"
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "import urllib.request as web; web.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
# Others can connect to a container, so the token in TELLAPART_TOKEN is needed.
ENTRYPOINT ["tellapart", "serve", "--host", "0.0.0.0"]
