# The demo on a CPU: docker build -t feddwa . && docker run --rm -v "$PWD/runs:/work/runs" feddwa
# An index with smaller builds of torch, for CPUs alone: --build-arg PIP_EXTRA_INDEX_URL=...
FROM python:3.12-slim
ARG PIP_EXTRA_INDEX_URL
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt hatch_build.py ./
COPY src src
COPY apps apps
RUN pip install --no-cache-dir --constraint constraints.txt . ./apps/reproduction
WORKDIR /work
ENTRYPOINT ["feddwa"]
CMD ["compare", "--algorithms", "feddwa", "local", "fedavg"]
