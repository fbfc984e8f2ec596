# Two stages: the first has the build tools, the second only what runs.
ARG PYTHON=3.12-slim

FROM python:${PYTHON} AS build
WORKDIR /src
COPY constraints.txt constraints-dev.txt ./
RUN python -m venv /build \
 && /build/bin/pip install --no-cache-dir --require-hashes -r constraints.txt -r constraints-dev.txt \
 && python -m venv /opt/queue-runtime \
 && /opt/queue-runtime/bin/pip install --no-cache-dir --require-hashes -r constraints.txt
COPY . .
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/queue-runtime/bin/pip install --no-cache-dir --no-index --no-deps /wheels/*.whl

FROM python:${PYTHON}
# A numeric user, so that Kubernetes can see that it is not root (runAsNonRoot).
RUN install -d -o 10001 -g 10001 /var/lib/queue-runtime
COPY --from=build /opt/queue-runtime /opt/queue-runtime
# PYTHONSAFEPATH: a handlers.py in the working folder must not hide the package of that name.
ENV PATH=/opt/queue-runtime/bin:$PATH \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    QUEUE_RUNTIME_LISTEN=:8090 \
    QUEUE_RUNTIME_LOG_FORMAT=json
USER 10001:10001
# QUEUE_RUNTIME_SQLITE_PATH is relative by default, so the queue's file is kept in the volume. The stores mysql and redis
# keep nothing here.
WORKDIR /var/lib/queue-runtime
VOLUME /var/lib/queue-runtime
EXPOSE 8090
# Give the container longer to stop than QUEUE_RUNTIME_GRACE_SECONDS (20): docker stop --time 30.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=6s --start-period=10s CMD ["queue-runtime", "health"]
ENTRYPOINT ["queue-runtime"]
CMD ["serve"]
