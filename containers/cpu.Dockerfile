# The harness on a CPU, with its board.
#
#   docker build -f containers/cpu.Dockerfile -t sharing-harness .
#   docker run --rm -v "$PWD/results:/work/results" sharing-harness run quickstart
#   docker run --rm -v "$PWD/results:/work/results" -p 8501:8501 sharing-harness leaderboard
FROM python:3.11-slim-bookworm
ENV OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0 HARNESS_CACHE=/work/cache

# torch first and of its CPU index, so that nothing later brings gigabytes of CUDA
WORKDIR /opt/harness
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu

COPY pyproject.toml README.md LICENSE ./
COPY harness harness
COPY regimes regimes
COPY suites suites
COPY leaderboard leaderboard
COPY results/reference results/reference
RUN pip install --no-cache-dir --constraint constraints.txt '.[leaderboard,lora,tune]' \
    && useradd --create-home --uid 1000 harness \
    && install --directory --owner harness /work /work/results /work/cache

USER 1000
WORKDIR /work
EXPOSE 8501
ENTRYPOINT ["harness"]
CMD ["--help"]
