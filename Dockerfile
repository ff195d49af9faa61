# One image for the operator (default command) and for the plugins that ship with it.
#
# The base is pinned here, and nowhere else; its digest names an index, so it serves every architecture.
ARG BASE=docker.io/library/python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b

FROM ${BASE} AS build
WORKDIR /src
# The allocator is compiled to C (hatch_build.py). The compiler stays in this stage; it is Debian's, signed and not pinned.
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 KOPF_DRA_COMPILE=1
RUN type gcc > /dev/null || { apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev; }
# Dependencies before the source: a change of the source does not fetch them again. Each file is checked by its hash.
COPY requirements-image.lock requirements-build.lock ./
RUN python -m venv --without-pip /opt/kopf-dra && python -m venv /opt/build \
 && /opt/build/bin/pip --python /opt/kopf-dra/bin/python install --no-compile --no-deps --only-binary :all: --require-hashes \
      --requirement requirements-image.lock \
 && /opt/build/bin/pip install --no-deps --only-binary :all: --require-hashes --requirement requirements-build.lock
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY proto proto
COPY kube kube
COPY cel cel
COPY ledger ledger
COPY operator operator
COPY simulator simulator
COPY kubeletplugin kubeletplugin
COPY devcluster devcluster
RUN /opt/build/bin/python -m hatchling build --target wheel --directory dist \
 && /opt/build/bin/pip --python /opt/kopf-dra/bin/python install --no-compile --no-deps --no-index dist/*.whl
# Of the kubernetes client only the reader of kubeconfigs is used: its asynchronous twin (40 MB) goes, and its API and
# models stay without byte code. The rest is compiled here, since the root file system is read-only later.
RUN cd /opt/kopf-dra/lib/python*/site-packages && rm -r kubernetes/aio \
 && python -m compileall -q -f --invalidation-mode unchecked-hash -x 'kubernetes/client/(api|models)/[^_]' .

FROM ${BASE}
ARG VERSION=0.0.0 REVISION=unknown
LABEL org.opencontainers.image.title="kopf-dra" \
      org.opencontainers.image.description="Kubernetes Dynamic Resource Allocation: operator and kubelet plugins" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/kopf-dra/kopf-dra" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/kopf-dra /opt/kopf-dra
ENV PATH=/opt/kopf-dra/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# Container runtimes take the group from here if a pod names none: without an entry it is 0, that of root.
RUN echo "kopf-dra:x:65532:65532::/:/usr/sbin/nologin" >> /etc/passwd && echo "kopf-dra:x:65532:" >> /etc/group
# A number, so that runAsNonRoot can be checked without reading the image's /etc/passwd.
USER 65532:65532
CMD ["dra-operator", "run", "--metrics-host", "0.0.0.0", "--metrics-port", "8080"]
