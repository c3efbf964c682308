# The image for those who build with Docker; `make dist` makes the same without it. This
# file has not been tried: where it differs, `make dist` is right.
FROM --platform=$BUILDPLATFORM golang:1.26.8 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags '-s -w' -o /root-of-image/extproc ./cmd/extproc
# Other endpoint pickers are started by these names, and some deployments sleep before they
# stop.
RUN mkdir -p /root-of-image/app /root-of-image/bin && ln -s /extproc /root-of-image/app/epp && \
    ln -s /extproc /root-of-image/lwepp && ln -s /extproc /root-of-image/bin/sleep

FROM scratch
COPY --from=build /root-of-image/ /
USER 65532:65532
ENTRYPOINT ["/extproc"]
