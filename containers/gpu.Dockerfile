# The harness with OpenRLHF's Ray trainers, vLLM and DeepSpeed, for NVIDIA GPUs with driver 580 or newer.
#
#   docker build -f containers/gpu.Dockerfile -t sharing-harness-gpu .
#   docker run --rm --gpus all --shm-size 16g -v "$PWD:/work" sharing-harness-gpu plan my.yaml --inventory 8xH100-80G
#
# CUDA's libraries come with torch's wheels; the driver comes with the container runtime. Not slim: Triton compiles its kernels'
# launchers when they are first called, with gcc and Python's headers.
FROM python:3.11-bookworm
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility HARNESS_CACHE=/work/cache
WORKDIR /opt/harness
COPY . .
# The image is built where no GPU is to be seen
RUN GPU=yes tools/install_openrlhf.sh /opt/environment \
    && useradd --create-home --uid 1000 harness \
    && install --directory --owner harness /work
ENV PATH=/opt/environment/bin:$PATH

USER 1000
WORKDIR /work
ENTRYPOINT ["harness"]
CMD ["--help"]
