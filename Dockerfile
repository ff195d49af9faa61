# One image for the operator (default command, non-root) and for the plugins that ship with it.
FROM python:3.13-slim AS build
WORKDIR /src
RUN python -m venv /opt/kopf-dra
COPY pyproject.toml hatch_build.py requirements.lock README.md LICENSE ./
COPY proto proto
COPY kube kube
COPY cel cel
COPY operator operator
COPY kubeletplugin kubeletplugin
COPY devcluster devcluster
RUN /opt/kopf-dra/bin/pip install --no-cache-dir --constraint requirements.lock .

FROM python:3.13-slim
LABEL org.opencontainers.image.title="kopf-dra" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/kopf-dra /opt/kopf-dra
ENV PATH=/opt/kopf-dra/bin:$PATH \
    PYTHONUNBUFFERED=1
# A number, so that runAsNonRoot can be checked without reading the image's /etc/passwd.
USER 65532:65532
CMD ["dra-operator", "run", "--metrics-host", "0.0.0.0", "--metrics-port", "8080"]
