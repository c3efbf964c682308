//go:build kube

package charts

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"sigs.k8s.io/yaml"

	"github.com/seed-60ae5743/baton/test/kubeparts"
	"github.com/seed-60ae5743/baton/test/kubesim"
	"github.com/seed-60ae5743/baton/test/kubetest"
	"github.com/seed-60ae5743/baton/test/stack"
)

var (
	rewrite  = flag.Bool("rewrite", false, "write examples/kubernetes from the chart")
	clusters kubetest.Clusters
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kubetest.Main{M: m, Clusters: &clusters}) }

const examples = "../../examples/kubernetes"

const digest = "6d53b8f5b5a4a1f8e4d0c1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6"

// pods are the labels that the default values lack.
var pods = []string{"--set", "router.modelServers.matchLabels.app=llama"}

// variants are what the chart's README and values say that it can be.
func variants() map[string][]string {
	return map[string][]string{
		"as it is":       pods,
		"one replica":    append([]string{"--set", "router.epp.replicas=1"}, pods...),
		"a key of yours": append([]string{"--set", "router.epp.keySecret=theirs"}, pods...),
		"pods with IPv6 addresses alone": append([]string{
			"--set", "provider.name=istio,httpRoute.create=true,httpRoute.parentRefs[0].name=models,provider.istio.twoLegs.prefillAddress=::",
			"--set", "router.tracing.enabled=true,router.tracing.otelExporterEndpoint=http://[fd00::7]:4317",
		}, pods...),
		"flags of yours": append([]string{"--set", `router.epp.flags.leg-advertise=\[$(POD_IP)\]:9102,router.epp.flags.tracing=true,router.epp.flags.secure-serving=true`,
			"--set", "router.epp.config.trace.endpoint=collector:4317,router.epp.config.log.format=text,router.epp.config.tls.cert=/c,router.epp.config.tls.key=/k"}, pods...),
		"names that YAML takes for others": append([]string{"--set", "httpRoute.create=true,httpRoute.parentRefs[0].name=models",
			"--set-string", "router.inferencePool.name=405,serviceAccount.name=405,router.epp.priorityClassName=405"}, pods...),
		"said to be empty": append([]string{"--set", "provider.name=istio,httpRoute.create=true,httpRoute.parentRefs[0].name=models,router.epp.config.prefill.listener=,router.epp.config.log.format="}, pods...),
		"not shared":       append([]string{"--set", "router.epp.config.leg.share=false,router.epp.config.leg.replicas_service="}, pods...),
		"a pool of yours":  {"--set", "router.inferencePool.create=false,router.inferencePool.name=theirs"},
		"no pool":          append([]string{"--set", "router.inferencePool.create=false"}, pods...),
		"istio, one leg":   append([]string{"--set", "provider.name=istio,provider.istio.twoLegs.enabled=false"}, pods...),
		"istio":            append([]string{"--set", "provider.name=istio,httpRoute.create=true,httpRoute.parentRefs[0].name=models,httpRoute.parentRefs[0].namespace=prod"}, pods...),
		"istio, two legs": append([]string{
			"--set-json", `provider={"name": "istio", "istio": {"twoLegs": {"enabled": true, "gateway": {"name": "models", "namespace": "prod"}, "route": "infra.llama.0", "keySecret": "legs"}}}`,
			"--set-json", `networkPolicy={"create": true, "gateways": [{"podSelector": {"matchLabels": {"app": "gateway"}}}]}`,
		}, pods...),
		"an account of yours": append([]string{"--set", "serviceAccount.create=false,serviceAccount.name=theirs"}, pods...),
		"no rights":           append([]string{"--set", "rbac.create=false,serviceAccount.create=false"}, pods...),
		"all of it": append([]string{
			"--set-json", `router={
			"imagePullSecrets": [{"name": "s"}],
			"epp": {"image": {"registry": "registry.example:5000/a", "tag": "v1", "digest": "sha256:` + digest + `", "pullPolicy": "Always"}, "extProcPort": 9102, "grpcHealthPort": 9103, "metricsPort": 9190,
				"flags": {"log-level": "debug", "enforce-disagg": true}, "config": {"engines": {"report_interval": "2s"}}, "env": [{"name": "A", "value": "b"}],
				"initContainers": [{"name": "before", "image": "i"}], "extraContainers": [{"name": "beside", "image": "b", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
				"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
					{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"team": "x"}}}],
				"volumes": [{"name": "v", "emptyDir": {}}], "volumeMounts": [{"name": "v", "mountPath": "/v"}], "priorityClassName": "system-cluster-critical",
				"podAnnotations": {"a": "b"}, "podLabels": {"team": "x"}, "nodeSelector": {"kubernetes.io/arch": "amd64"},
				"tolerations": [{"key": "gpu", "operator": "Exists"}],
				"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}}},
			"modelServers": {"targetPorts": [{"number": 8000}, {"number": 8001}]},
			"inferencePool": {"failureMode": "FailOpen", "name": "other"},
			"monitoring": {"prometheus": {"enabled": true, "extraLabels": {"release": "prometheus"}}, "rules": {"enabled": true, "extraLabels": {"release": "rules"}}, "dashboards": {"enabled": true}},
			"tracing": {"enabled": true, "otelExporterEndpoint": "http://collector:4317"}}`,
			"--set-json", `provider={"name": "istio"}`,
			"--set-json", `httpRoute={"create": true, "parentRefs": [{"name": "gateway"}], "hostnames": ["llama.example"], "requestTimeout": "10m"}`,
			"--set-json", `serviceAccount={"name": "picker", "annotations": {"a": "b"}}`,
			"--set-json", `networkPolicy={"create": true, "gateways": [{"podSelector": {"matchLabels": {"app": "gateway"}}}], "metrics": [{"namespaceSelector": {}}]}`,
		}, pods...),
	}
}

func render(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return kubetest.Helm(t, append([]string{"template", "llama", chart, "--namespace", "infra"}, args...)...)
}

func rendered(t *testing.T, args ...string) string {
	t.Helper()
	objects, err := render(t, args...)
	require.NoError(t, err)
	return objects
}

func kubectl(t *testing.T, k kubetest.Cluster, stdin string, args ...string) string {
	t.Helper()
	out, err := kubetest.Kubectl(t, k, stdin, args...)
	require.NoError(t, err)
	return out
}

// await waits in the test's own goroutine.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, stack.Await(ctx, what, is))
}

// definitions has a cluster in which every kind is defined that a variant has, and nothing
// that the chart makes.
func definitions(t *testing.T) kubetest.Cluster {
	t.Helper()
	k := clusters.New(t, kubesim.Config{})
	kubectl(t, k, "", "apply", "--server-side", "-f", kubetest.Tool(t, kubeparts.Definitions))
	kubectl(t, k, "{apiVersion: v1, kind: Namespace, metadata: {name: prod}}", "apply", "--server-side", "-f", "-")
	kubectl(t, k, "", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	await(t, "pools to be found", func() bool {
		_, err := kubetest.Kubectl(t, k, "", "delete", "--all", "--wait=false", "--namespace=infra",
			"inferencepools.inference.networking.k8s.io,deployments,services,serviceaccounts,roles,rolebindings,configmaps,poddisruptionbudgets,networkpolicies")
		return err == nil
	})
	return k
}

// judged lets the apiserver judge objects as if they were written: no unknown field, no
// value that a schema or a rule of it forbids.
func judged(t *testing.T, k kubetest.Cluster, objects string) (err error) {
	t.Helper()
	await(t, "each kind to be found", func() bool { // some time after it has been defined
		_, err = kubetest.Kubectl(t, k, objects, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
		return err == nil || !strings.Contains(err.Error(), "no matches for kind")
	})
	return err
}

func TestEachVariantIsAccepted(t *testing.T) {
	k := definitions(t)
	for name, args := range variants() {
		t.Run(name, func(t *testing.T) {
			out, err := kubetest.Helm(t, append([]string{"lint", "--strict", chart, "--namespace", "infra"}, args...)...)
			require.NoError(t, err, out)
			require.NoError(t, judged(t, k, rendered(t, args...)))
		})
	}
}

// An apiserver that would accept anything judges nothing.
func TestWhatIsWrongIsNotAccepted(t *testing.T) {
	k := definitions(t)
	objects := rendered(t, pods...)
	require.NoError(t, judged(t, k, objects))
	for from, to := range map[string]struct{ text, fault string }{
		"replicas: 2":            {"replica: 2", ".spec.replica: field not declared in schema"},
		"failureMode: FailClose": {"failureMode: Never", "supported values"},
		"number: 8000":           {"number: 0", "greater than or equal to 1"},
	} {
		broken := strings.Replace(objects, from, to.text, 1)
		require.NotEqual(t, objects, broken)
		require.ErrorContains(t, judged(t, k, broken), to.fault)
	}
}

func TestValuesDecideWhatIsRendered(t *testing.T) {
	for name, tt := range map[string]struct{ has, lacks []string }{
		"as it is": {[]string{
			"replicas: 2", "kind: PodDisruptionBudget", `"--pool-name=llama"`, "kind: InferencePool", "terminationGracePeriodSeconds: 135", "debug_header: false",
			"name: llama-epp-pods", "clusterIP: None", "replicas_service: llama-epp-pods", "key_file: /etc/baton-leg/key", "--leg-advertise=[$(POD_IP)]:9002",
			"kind: Secret", "name: llama-epp-legs", `secretName: "llama-epp-legs"`, "resources: [endpointslices]", "format: json", "immutable: true",
		}, []string{"DestinationRule", "annotations:\n        ", "topologySpreadConstraints:\n", "initContainers", "endpoint-selector", "sidecar.istio.io", "PrometheusRule", "grafana_dashboard"}},
		"pods with IPv6 addresses alone": {[]string{"endpoint: '[fd00::7]:4317'", "insecure: true", `address: {socket_address: {address: "::", port_value: 9005}}`}, []string{"0.0.0.0"}},
		"flags of yours":                 {[]string{`"--leg-advertise=[$(POD_IP)]:9102"`, "format: text", "cert: /c"}, []string{"--leg-advertise=[$(POD_IP)]:9002", "zap-encoder", "format: json"}},
		"said to be empty":               {[]string{`listener: ""`, `format: ""`, "key_file: /etc/baton-leg/key"}, []string{"listener: http", "format: json"}},
		"one replica":                    {[]string{"replicas: 1", "replicas_service: llama-epp-pods", "--leg-advertise=", `secretName: "llama-epp-legs"`}, []string{"PodDisruptionBudget"}},
		"a key of yours":                 {[]string{`secretName: "theirs"`, "key_file: /etc/baton-leg/key"}, []string{"kind: Secret"}},
		"not shared":                     {[]string{"share: false", `replicas_service: ""`, "key_file: /etc/baton-leg/key"}, nil},
		"a pool of yours":                {[]string{`"--pool-name=theirs"`}, []string{"kind: InferencePool"}},
		"no pool":                        {[]string{`"--endpoint-selector=app=llama"`, `"--endpoint-target-ports=8000"`}, []string{"pool-name", "kind: InferencePool"}},
		"istio, one leg":                 {[]string{"host: llama-epp", `sidecar.istio.io/inject: "false"`, "kind: Secret"}, []string{"EnvoyFilter", "listener:"}},
		"istio": {[]string{
			"kind: EnvoyFilter", `gateway.networking.k8s.io/gateway-name: "models"`, `{name: "infra.llama-epp.0"}`, "listener: http://llama-epp-infra-legs.prod.svc:9005",
			"kind: Secret", "name: llama-epp-legs", `secretName: "llama-epp-legs"`,
		}, []string{"THE_"}},
		"istio, two legs": {[]string{
			"kind: EnvoyFilter", "outbound|9002||llama-epp.infra.svc.cluster.local", `gateway.networking.k8s.io/gateway-name: "models"`, `{name: "infra.llama.0"}`,
			"listener: http://llama-epp-infra-legs.prod.svc:9005", "key_file: /etc/baton-leg/key", "--leg-advertise=[$(POD_IP)]:9002", `secretName: "legs"`,
		}, []string{"THE_", "kind: Secret"}},
		"no rights": {[]string{`serviceAccountName: "default"`}, []string{"kind: Role"}},
		"all of it": {[]string{
			"image: \"registry.example:5000/a/baton:v1@sha256:" + digest + `"`, "name: before", "name: beside",
			"topologyKey: rack", "app.kubernetes.io/instance: llama\n              app.kubernetes.io/name: baton\n          maxSkew: 1",
			"matchLabels:\n              team: x\n          maxSkew: 2", `"--enforce-disagg=true"`, "endpoint: collector:4317", "insecure: true", "report_interval: 2s",
			"debug_header: false", "number: 8001", "release: prometheus", "honorLabels: true",
			"kind: PrometheusRule", "release: rules", "alert: BatonRequestsFail", "{{ $labels.job }}", `grafana_dashboard: "1"`, "baton-workers.json: |", "request: 10m", `serviceAccountName: "picker"`,
		}, nil},
	} {
		objects := rendered(t, variants()[name]...)
		for _, text := range tt.has {
			require.Contains(t, objects, text, name)
		}
		for _, text := range tt.lacks {
			require.NotContains(t, objects, text, name)
		}
	}
}

// TestReleasesMeetInNoObject: what two releases make is theirs alone, also in the namespace of
// the gateways, whatever they and their namespaces are called.
func TestReleasesMeetInNoObject(t *testing.T) {
	long := strings.Repeat("n", 63)
	of := map[string]string{}
	for _, r := range []struct{ release, namespace string }{
		{"llama", "a"}, {"llama", "b"}, {"a-epp", "b"}, {"a", "epp-b"}, {"a-epp-b", "c"}, {"a", "b-epp-c"},
		{strings.Repeat("r", 53), long}, {strings.Repeat("r", 53), long[1:] + "m"},
	} {
		objects, err := kubetest.Helm(t, append([]string{"template", r.release, chart, "--namespace", r.namespace,
			"--set", "provider.name=istio,httpRoute.create=true,httpRoute.parentRefs[0].name=g-" + r.namespace[:1] + ",httpRoute.parentRefs[0].namespace=gateways",
			"--set", "provider.istio.twoLegs.clusterDomain=my.domain"}, pods...)...)
		require.NoError(t, err)
		require.Contains(t, objects, "-epp."+r.namespace+".svc.my.domain")
		for _, text := range strings.Split(objects, "\n---\n") {
			var o struct {
				Kind     string
				Metadata struct{ Name, Namespace string }
			}
			require.NoError(t, yaml.Unmarshal([]byte(text), &o))
			if o.Kind == "" {
				continue
			}
			require.LessOrEqual(t, len(o.Metadata.Name), map[bool]int{true: 63, false: 253}[o.Kind == "Service"])
			key := o.Kind + " " + o.Metadata.Namespace + "/" + o.Metadata.Name
			require.Empty(t, of[key], "%s is of %v, too", key, r)
			of[key] = r.release + " in " + r.namespace
		}
	}
}

// TestDashboardsAndRulesAreThoseOfTheExample: Helm changes nothing of them.
func TestDashboardsAndRulesAreThoseOfTheExample(t *testing.T) {
	objects := rendered(t, append([]string{"--show-only", "templates/monitor.yaml", "--set", "router.monitoring.rules.enabled=true,router.monitoring.dashboards.enabled=true"}, pods...)...)
	var found []string
	for _, text := range strings.Split(objects, "\n---\n") {
		var o struct {
			Kind string
			Spec any
			Data map[string]string
		}
		require.NoError(t, yaml.Unmarshal([]byte(text), &o))
		found = append(found, o.Kind)
		if o.Kind == "PrometheusRule" {
			var want any
			is, err := os.ReadFile("../../examples/monitoring/rules.yaml")
			require.NoError(t, err)
			require.NoError(t, yaml.Unmarshal(is, &want))
			require.Equal(t, want, o.Spec)
			continue
		}
		require.Len(t, o.Data, 2)
		for name, board := range o.Data {
			want, err := os.ReadFile("../../examples/monitoring/dashboards/" + name)
			require.NoError(t, err)
			require.Equal(t, string(want), board)
		}
	}
	require.ElementsMatch(t, []string{"PrometheusRule", "ConfigMap"}, found)
}

// TestTheAutoscalersOfTheExampleAreAccepted, by an apiserver; KEDA's are of a kind that it does not know.
func TestTheAutoscalersOfTheExampleAreAccepted(t *testing.T) {
	k := definitions(t)
	text, err := os.ReadFile("../../examples/autoscaling/hpa.yaml")
	require.NoError(t, err)
	kubectl(t, k, "{apiVersion: v1, kind: Namespace, metadata: {name: infra}}", "apply", "--server-side", "-f", "-")
	require.NoError(t, judged(t, k, string(text)))
	require.ErrorContains(t, judged(t, k, strings.ReplaceAll(string(text), "maxReplicas: 8", "maxReplica: 8")), "maxReplica")
}

// A number is what was written, also in a file, which Helm reads as floating-point.
func TestNumbersOfAFileStayWhatTheyAre(t *testing.T) {
	file := filepath.Join(t.TempDir(), "values.yaml")
	require.NoError(t, os.WriteFile(file, []byte("router: {epp: {flags: {some-number: 1000000, some-part: 0.5, some-text: 'a: b # c'}}}\n"), 0o600))
	objects := rendered(t, append([]string{"-f", file}, pods...)...)
	for _, text := range []string{`"--some-number=1000000"`, `"--some-part=0.5"`, `"--some-text=a: b # c"`} {
		require.Contains(t, objects, text)
	}
}

// Whoever reaches the picker's port can tell it anything of its workers: where the gateways are
// named, nobody else does.
func TestWhereGatewaysAreNamedNobodyElseReachesThePicker(t *testing.T) {
	const named = `networkPolicy.gateways[0].podSelector.matchLabels.app=gateway`
	policy := func(set string) string {
		_, after, _ := strings.Cut(rendered(t, append([]string{"--set", set}, pods...)...), "kind: NetworkPolicy")
		spec, _, _ := strings.Cut(after, "---")
		return spec
	}
	require.Empty(t, policy("networkPolicy.create=true"))
	require.Empty(t, policy("networkPolicy.create=false,"+named))
	on := policy(named)
	require.Regexp(t, `- from:\s+- podSelector:\s+matchLabels:\s+app: gateway\s+ports: \[\{port: grpc-ext-proc\}\]`, on)
	require.Regexp(t, `- from:\s+- podSelector:\s+matchLabels:\s+app.kubernetes.io/name: baton\s+app.kubernetes.io/instance: "llama"\s+ports: \[\{port: grpc-ext-proc\}\]`, on, "the other replicas")
	require.Equal(t, 2, strings.Count(on, "port: grpc-ext-proc"), "by no other rule")
}

func TestBadValuesAreRefusedByName(t *testing.T) {
	for set, text := range map[string]string{
		"":                                       "router.modelServers.matchLabels: expected the labels",
		"router.tracing.enabled=true":            "router.tracing.otelExporterEndpoint: expected an OTLP collector",
		"router.tracing.otelExporterEndpoint=a":  "otelExporterEndpoint",
		"httpRoute.create=true":                  "httpRoute.parentRefs: expected the gateway",
		"serviceAccount.create=false":            "serviceAccount.name: expected an account",
		"router.epp.replica=3":                   "replica",
		"router.epp.replicas=0":                  "replicas",
		"provider.name=envoy":                    "provider",
		"router.inferencePool.failureMode=Never": "failureMode",

		// Helm drops what is null.
		"router.epp.config=null":                                  "missing property 'config'",
		"router.epp.image=null":                                   "missing property 'image'",
		"httpRoute.parentRefs=null":                               "missing property 'parentRefs'",
		"provider.istio.twoLegs.gateway=null":                     "missing property 'gateway'",
		`router.epp.podLabels.app\.kubernetes\.io/name=theirs`:    "router.epp.podLabels: the chart sets app.kubernetes.io/name itself",
		`router.epp.podLabels.app\.kubernetes\.io/instance=other`: "router.epp.podLabels: the chart sets app.kubernetes.io/instance itself",
		`provider.istio.twoLegs.clusterDomain=a b`:                "clusterDomain",
		`router.monitoring.prometheus.enabled=true,router.monitoring.prometheus.extraLabels.helm\.sh/chart=x`:         "router.monitoring.prometheus.extraLabels: the chart sets helm.sh/chart itself",
		`router.monitoring.rules.enabled=true,router.monitoring.rules.extraLabels.helm\.sh/chart=x`:                   "router.monitoring.rules.extraLabels: the chart sets helm.sh/chart itself",
		`router.monitoring.dashboards.enabled=true,router.monitoring.dashboards.extraLabels.helm\.sh/chart=x`:         "router.monitoring.dashboards.extraLabels: the chart sets helm.sh/chart itself",
		`provider.name=istio,provider.istio.twoLegs.enabled=false,router.epp.podLabels.sidecar\.istio\.io/inject=yes`: "router.epp.podLabels: the chart sets sidecar.istio.io/inject itself",

		"provider.name=istio": "provider.istio.twoLegs.gateway.name: expected the Gateway",
		"provider.name=istio,provider.istio.twoLegs.gateway.name=g": "provider.istio.twoLegs.route: expected the HTTPRoute's rule",

		"router.epp.image.digest=sha256:12":                       "digest",
		"router.tracing.otelExporterEndpoint=http://fd00::7:4317": "otelExporterEndpoint",
		"router.tracing.otelExporterEndpoint=http://[fd00::7]":    "otelExporterEndpoint",
		"router.epp.env[0].name=A,router.epp.env[1].name=POD_IP":  "router.epp.env[1].name: the chart has POD_IP itself",
		"router.epp.volumes[0].name=tmp":                          "router.epp.volumes[0].name: the chart has tmp itself",
		"router.epp.extraContainers[0].name=epp":                  "router.epp.extraContainers[0].name: the chart has epp itself",
		"router.epp.initContainers[0].name=epp":                   "router.epp.initContainers[0].name: the chart has epp itself",
		"router.epp.extraContainers[0].image=x":                   "missing property 'name'",
		"router.epp.config.leg=on":                                "got string, want object",
		"provider.istio.twoLegs.prefillAddress=1.2.3.4":           "prefillAddress",
		"networkPolicy.metrics[0].podSelector.matchLabels.app=p":  "networkPolicy.gateways: expected the gateways' pods, since networkPolicy.metrics are named",
		"router.epp.metricsPort=9002":                             "router.epp.metricsPort: router.epp.extProcPort has the port 9002, too: expected another one",
		"router.epp.extProcPort=9003":                             "router.epp.grpcHealthPort: router.epp.extProcPort has the port 9003, too: expected another one",
	} {
		var args []string
		if set != "" {
			args = append([]string{"--set", set}, pods...)
		}
		_, err := render(t, args...)
		require.ErrorContains(t, err, text, set)
	}
}

// TestNothingThatIsSaidTwiceIsLost: a flag beats the configuration, and a later flag an earlier one, without a
// word. The chart refuses that, all at once.
func TestNothingThatIsSaidTwiceIsLost(t *testing.T) {
	const config, flags = "router.epp.config.", "router.epp.flags."
	for set, faults := range map[string][]string{
		config + "listen=:1":                                    {"router.epp.config: listen would be lost, since the chart sets it by router.epp.extProcPort"},
		config + "probes.listen=:1":                             {"probes.listen would be lost, since the chart sets it by router.epp.grpcHealthPort"},
		config + "metrics.listen=:1":                            {"metrics.listen would be lost, since the chart sets it by router.epp.metricsPort"},
		config + "drain_timeout=1s":                             {"drain_timeout would be lost, since the chart sets it by router.epp.drainTimeoutSeconds"},
		config + "leg.advertise=a:1":                            {"leg.advertise would be lost, since each picker has an address of its own"},
		flags + "grpc-port=3":                                   {"router.epp.flags.grpc-port: it sets listen, which the chart sets by router.epp.extProcPort"},
		flags + "listen=:3":                                     {"router.epp.flags.listen: it sets listen, which the chart sets"},
		flags + "pool-name=x":                                   {"router.epp.flags.pool-name: it sets discovery.kubernetes.0.pool, which the chart sets by router.inferencePool"},
		flags + "v=4," + flags + "log-level=info":               {"router.epp.flags.v: it sets log.level, as router.epp.flags.log-level does: expected one of the two"},
		flags + "baton-config=x":                                {"router.epp.flags.baton-config: the chart sets it"},
		flags + "secure-serving=false," + config + "tls.cert=c": {"router.epp.flags.secure-serving: it would beat tls.cert of router.epp.config"},
		"router.tracing.enabled=true,router.tracing.otelExporterEndpoint=http://c:1," + flags + "trace-endpoint=d:2," + config + "trace.endpoint=e:3": {
			"router.epp.config: trace.endpoint would be lost, since the chart sets it by router.tracing",
			"router.epp.flags.trace-endpoint: it sets trace.endpoint, which the chart sets by router.tracing",
		},
		config + "discovery.kubernetes[0].pool=x," + config + "discovery.kubernetes[0].selector=a=b," + flags + "v=4," + config + "log.level=info": {
			"discovery.kubernetes.0.pool would be lost", "discovery.kubernetes.0.selector would be lost", "router.epp.flags.v: it would beat log.level of router.epp.config",
		},
	} {
		_, err := render(t, append([]string{"--set", set}, pods...)...)
		for _, text := range faults {
			require.ErrorContains(t, err, text, set)
		}
		require.Equal(t, len(faults), strings.Count(err.Error(), "\nrouter.epp."), "%s: %v", set, err)
	}
	rendered(t, append([]string{"--set", config + "discovery.kubernetes[0].kv_group_label=x," + config + "discovery.kubernetes[1].pool=second," + flags + "log-level=debug," + config + "log.format=text"}, pods...)...)
}

// The picker may read pods and pools of its namespace, and list the addresses of Services, and nothing else.
func TestTheRightsAreExactlyThose(t *testing.T) {
	k := definitions(t)
	kubectl(t, k, rendered(t, append([]string{"--show-only", "templates/account.yaml"}, pods...)...), "apply", "--server-side", "-f", "-")
	may := func(verb, resource, namespace string) bool {
		resource, part, _ := strings.Cut(resource, "/")
		out, err := kubetest.Kubectl(t, k, "", "auth", "can-i", verb, resource, "--subresource="+part, "--namespace", namespace, "--as", "system:serviceaccount:infra:llama-epp")
		answer := strings.TrimSpace(out)
		require.Contains(t, []string{"yes", "no"}, answer, err)
		return answer == "yes"
	}
	for _, resource := range []string{"pods", "inferencepools.inference.networking.k8s.io"} {
		for _, verb := range []string{"get", "list", "watch"} {
			await(t, verb+" "+resource, func() bool { return may(verb, resource, "infra") })
			require.False(t, may(verb, resource, "default"), "%s %s of another namespace", verb, resource)
		}
		for _, verb := range []string{"create", "update", "patch", "delete", "deletecollection"} {
			require.False(t, may(verb, resource, "infra"), "%s %s", verb, resource)
		}
	}
	const slices = "endpointslices.discovery.k8s.io"
	await(t, "list "+slices, func() bool { return may("list", slices, "infra") })
	require.False(t, may("list", slices, "default"), "of another namespace")
	for _, verb := range []string{"get", "watch", "create", "update", "patch", "delete", "deletecollection"} {
		require.False(t, may(verb, slices, "infra"), "%s %s", verb, slices)
	}
	for _, resource := range []string{"pods/log", "pods/exec", "secrets", "configmaps", "events", "services", "leases.coordination.k8s.io"} {
		for _, verb := range []string{"get", "create"} {
			require.False(t, may(verb, resource, "infra"), "%s %s", verb, resource)
		}
	}
}

// TestAReleaseOf010IsUpgradedAndRolledBack: testdata has the chart of 0.1.0, as `helm package` makes it of that
// version's tree. No field that may not change is changed, each Deployment finds the configuration that it was
// made for, and none goes that pods of before may still read.
func TestAReleaseOf010IsUpgradedAndRolledBack(t *testing.T) {
	k := definitions(t)
	kubectl(t, k, "{apiVersion: v1, kind: Namespace, metadata: {name: infra}}", "apply", "--server-side", "-f", "-")
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, kubetest.AdminKubeconfig(t, k), 0o600))
	helm := func(args ...string) error {
		_, err := kubetest.Helm(t, append(args, "--namespace=infra", "--kubeconfig="+file)...)
		return err
	}
	configOf := func() (name, text string) {
		name = kubectl(t, k, "", "get", "deployment/llama-epp", "--namespace=infra", `--output=jsonpath={.spec.template.spec.volumes[?(@.name=="config")].configMap.name}`)
		return name, kubectl(t, k, "", "get", "configmap/"+name, "--namespace=infra", `--output=jsonpath={.data.baton\.yaml}`)
	}
	for name, more := range map[string][]string{
		"as it is": nil,
		"istio":    {"--set", "provider.name=istio,httpRoute.create=true,httpRoute.parentRefs[0].name=models,router.monitoring.prometheus.enabled=true"},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, helm(append(append([]string{"install", "llama", "testdata/baton-0.1.0.tgz", "--set", "router.epp.config.engines.report_interval=3s"}, pods...), more...)...))
			first, old := configOf()
			require.Equal(t, "llama-epp", first)
			require.ErrorContains(t, helm("upgrade", "llama", chart, "--reuse-values"), "missing property", "what is new would have no default")

			require.NoError(t, helm("upgrade", "llama", chart, "--reset-then-reuse-values"))
			second, text := configOf()
			require.Contains(t, text, "report_interval: 3s", "the user's value")
			require.Equal(t, old, kubectl(t, k, "", "get", "configmap/llama-epp", "--namespace=infra", `--output=jsonpath={.data.baton\.yaml}`), "for pods of 0.1.0")

			require.NoError(t, helm("upgrade", "llama", chart, "--reset-then-reuse-values", "--set", "router.epp.config.engines.report_interval=4s"))
			third, text := configOf()
			require.NotEqual(t, second, third)
			require.Contains(t, text, "report_interval: 4s")
			require.Contains(t, kubectl(t, k, "", "get", "configmap/"+second, "--namespace=infra", "--output=yaml"), "report_interval: 3s", "for pods of the second revision")

			require.NoError(t, helm("rollback", "llama", "2"))
			is, _ := configOf()
			require.Equal(t, second, is)
			kubectl(t, k, "", "get", "configmap/"+third, "--namespace=infra")
			require.NoError(t, helm("rollback", "llama", "1"))
			is, text = configOf()
			require.Equal(t, first, is)
			require.Equal(t, old, text)
			kubectl(t, k, "", "get", "configmap/"+second, "--namespace=infra")
			require.NoError(t, helm("upgrade", "llama", chart, "--reset-then-reuse-values"))
			is, _ = configOf()
			require.Equal(t, second, is, "the same configuration has the same name")

			require.NoError(t, helm("uninstall", "llama"))
			kubectl(t, k, "", "delete", "configmap", "--namespace=infra", "--selector=app.kubernetes.io/instance=llama,app.kubernetes.io/name=baton")
		})
	}
}

// examples/kubernetes is what the chart renders for a Secret of who applies it, and its overlay names one
// namespace.
func TestTheBaseIsTheCharts(t *testing.T) {
	k := definitions(t)
	out, err := kubetest.Helm(t, append([]string{"template", "baton", chart, "--namespace", "default", "--set", "router.epp.keySecret=baton-epp-legs"}, pods...)...)
	require.NoError(t, err)
	for file, want := range base(t, out) {
		file = filepath.Join(examples, "base", file)
		if *rewrite {
			require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		}
		is, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, want, string(is), "run `make charts`")
	}
	for _, at := range []string{"base", "istio"} {
		objects := kubectl(t, k, "", "kustomize", filepath.Join(examples, at))
		require.NoError(t, judged(t, k, objects))
		if at == "istio" {
			require.NotContains(t, objects, "namespace: default")
			require.Contains(t, objects, "host: baton-epp")
			require.Regexp(t, `(?s)configMap:\s+name: (baton-epp-\w{10}).*`, objects)
		}
	}
}

// base is what was rendered, by file, without what only a release of Helm has. The configuration is a file of
// its own, of which Kustomize makes the ConfigMap with a sum in its name.
func base(t *testing.T, rendered string) map[string]string {
	const head = "# Written by `make charts` from charts/baton.\n"
	var b strings.Builder
	var config, name string
	b.WriteString(head)
	for _, text := range strings.Split(rendered, "\n---\n") {
		object := map[string]any{}
		require.NoError(t, yaml.Unmarshal([]byte(text), &object))
		if object["kind"] == "ConfigMap" {
			config = object["data"].(map[string]any)["baton.yaml"].(string)
			name = object["metadata"].(map[string]any)["name"].(string)
			continue
		}
		if len(object) == 0 {
			continue
		}
		strip(object)
		out, err := yaml.Marshal(object)
		require.NoError(t, err)
		b.WriteString("---\n" + string(out))
	}
	require.NotEmpty(t, name)
	return map[string]string{"baton.yaml": strings.ReplaceAll(b.String(), name, "baton-epp"), "config.yaml": head + config}
}

func strip(object map[string]any) {
	for _, drop := range []string{"helm.sh/chart", "app.kubernetes.io/managed-by"} {
		delete(object, drop)
	}
	for name, value := range object {
		if inner, ok := value.(map[string]any); ok {
			if name == "metadata" {
				delete(inner, "namespace")
			}
			if strip(inner); len(inner) == 0 && name == "annotations" {
				delete(object, name)
			}
		}
	}
}

// TestThePickerServesWithTheChartsArguments runs the picker as the chart's pod would: its
// arguments, its configuration, its service account, on the pool that the chart makes; and
// asks what the chart's probes ask.
func TestThePickerServesWithTheChartsArguments(t *testing.T) {
	k := definitions(t)
	bin := t.TempDir()
	require.NoError(t, stack.Build(bin, "", false, "./cmd/extproc"))
	ports, err := stack.FreePorts(t.Context(), 5)
	require.NoError(t, err)
	objects := rendered(t, append([]string{
		"--set", fmt.Sprintf("router.epp.extProcPort=%d,router.epp.grpcHealthPort=%d,router.epp.metricsPort=%d", ports[0], ports[1], ports[2]),
		"--set", fmt.Sprintf("router.epp.flags.discovery-networks=127.0.0.0/8,router.epp.flags.admin=127.0.0.1:%d,router.modelServers.targetPorts[0].number=%d", ports[3], ports[4]),
	}, pods...)...)
	kubectl(t, k, objects, "apply", "--server-side", "-f", "-")
	made := read(t, objects)
	require.Equal(t, []string{"/extproc", "epp"}, made.container.Command)

	dir := t.TempDir()
	kubeconfig, token := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "token")
	config, key := filepath.Join(dir, "baton.yaml"), filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(token, []byte(strings.TrimSpace(kubectl(t, k, "", "create", "token", made.account, "--namespace=infra"))), 0o600))
	require.NoError(t, os.WriteFile(kubeconfig, kubetest.Kubeconfig(k, token), 0o600))
	require.NoError(t, os.WriteFile(key, []byte(made.key), 0o600))
	require.NoError(t, os.WriteFile(config, []byte(strings.Replace(made.config, "/etc/baton-leg/key", key, 1)), 0o600))
	args := append([]string{"epp"}, made.container.Args...)
	for i, a := range args {
		args[i] = strings.NewReplacer("/etc/baton/baton.yaml", config, "$(POD_IP)", "127.0.0.1").Replace(a)
	}
	p, err := stack.StartProgram(t.Context(), stack.ProgramOptions{
		Name: "extproc", Path: filepath.Join(bin, "extproc"), Args: append(args, "--kubeconfig="+kubeconfig), Env: []string{"NAMESPACE=infra"},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = p.Kill()
		if t.Failed() {
			t.Log(p.Log())
		}
	})

	probes := dial(t, ports[1])
	await(t, "the chart's liveness probe to succeed", func() bool { return probes(made.container.LivenessProbe.GRPC.Service) == "SERVING" })
	await(t, "the chart's readiness probe to succeed", func() bool { return probes(made.container.ReadinessProbe.GRPC.Service) == "SERVING" })
	require.Empty(t, probes("a service that nobody has"))
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0]), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	require.NoError(t, err, "the gateway asks with TLS")
	require.Equal(t, "h2", conn.ConnectionState().NegotiatedProtocol)
	require.NoError(t, conn.Close())

	k.Put(kubesim.Pods(), map[string]any{
		"metadata": map[string]any{"namespace": "infra", "name": "llama-0", "labels": map[string]any{"app": "llama"}},
		"status":   map[string]any{"phase": "Running", "podIP": "127.0.0.1", "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
	})
	worker := regexp.MustCompile(`(?m)^baton_workers\{.*role="aggregated".*\} 1$`) // nobody has heard from it, since nobody listens there
	await(t, "the pod to be a worker", func() bool { return worker.MatchString(get(ports[2], "/metrics")) })

	// The Service's other pod is one where nobody listens.
	kubectl(t, k, fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, endpoints: [{addresses: [192.0.2.1]}],
		metadata: {name: %[1]s-1, namespace: infra, labels: {kubernetes.io/service-name: %[1]s}}}`, made.replicas), "apply", "--server-side", "-f", "-")
	await(t, "the other replica to be listed", func() bool {
		return strings.Contains(get(ports[3], "/debug/state"), fmt.Sprintf(`"address": "192.0.2.1:%d"`, ports[0]))
	})
}

// dial asks for the health of a service, as the kubelet does; "" is an error.
func dial(t *testing.T, port int) func(service string) string {
	c, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return func(service string) string {
		r, err := grpc_health_v1.NewHealthClient(c).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil {
			return ""
		}
		return r.GetStatus().String()
	}
}

func get(port int, path string) string {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(text)
}

type probe struct{ GRPC struct{ Service string } }

type container struct {
	Command, Args                 []string
	LivenessProbe, ReadinessProbe probe
}

// pod is what the chart gives the picker.
type pod struct {
	container container
	account   string
	config    string
	key       string // of the replicas
	replicas  string // the Service whose pods they are
}

func read(t *testing.T, objects string) (out pod) {
	for _, text := range strings.Split(objects, "\n---\n") {
		var d struct {
			Kind     string
			Metadata struct{ Name string }
			Data     map[string]string
			Spec     struct {
				ClusterIP string
				Template  struct {
					Spec struct {
						ServiceAccountName string
						Containers         []container
					}
				}
			}
		}
		require.NoError(t, yaml.Unmarshal([]byte(text), &d))
		switch d.Kind {
		case "Deployment":
			out.container, out.account = d.Spec.Template.Spec.Containers[0], d.Spec.Template.Spec.ServiceAccountName
		case "ConfigMap":
			out.config = d.Data["baton.yaml"]
		case "Secret":
			out.key = d.Data["key"]
		case "Service":
			if d.Spec.ClusterIP == "None" {
				out.replicas = d.Metadata.Name
			}
		}
	}
	return out
}
