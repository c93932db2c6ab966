# The loader with Spark, dbt, and the jars for PostgreSQL and S3. Build the wheel first: make dist
FROM python:3.12-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-21-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home loader
COPY requirements.lock dist/*.whl /tmp/
RUN wheel=$(ls /tmp/strandline-*.whl) \
    && pip install --no-cache-dir --constraint /tmp/requirements.lock "${wheel}[embedded,postgresql,redis]" \
    && rm -r /tmp/requirements.lock /tmp/*.whl
ENV STRANDLINE_CACHE=/opt/strandline
RUN loader setup --archive postgresql aws && chmod -R a+rX /opt/strandline
USER loader
WORKDIR /project
ENTRYPOINT ["loader"]
