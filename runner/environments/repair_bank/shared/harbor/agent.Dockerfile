# @CANARY@
# The pinned source and the defect are seen by the first stage only; tmux comes with the base image (docker/sandbox-base.sh).
FROM @BASE_IMAGE@ AS prep
COPY . /prep
RUN sh /prep/prepare.sh

FROM @BASE_IMAGE@
COPY --from=prep /app /app
RUN mkdir -p /logs/agent /logs/artifacts
WORKDIR /app/@CODE@
RUN tmux -V
CMD ["sleep", "infinity"]
