//go:build kube

package node

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/seed-60ae5743/baton/test/kubeparts"
	"github.com/seed-60ae5743/baton/test/stack"
)

// mesh is Istio's configuration: pods talk without its certificates, and no filter is named
// that only Istio's own proxy has.
const mesh = `accessLogFile: /dev/stdout
defaultConfig: {discoveryAddress: "istiod.istio-system.svc:15012"}
defaultProviders: {}
enablePrometheusMerge: false
enableAutoMtls: false
rootNamespace: istio-system
trustDomain: cluster.local
`

// istiodService leads pods to the istiod, which is no pod.
const istiodService = `
apiVersion: v1
kind: Namespace
metadata: {name: istio-system}
---
apiVersion: v1
kind: Service
metadata: {name: istiod, namespace: istio-system}
spec: {ports: [{name: grpc-xds, port: 15010}, {name: https-dns, port: 15012}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: istiod, namespace: istio-system, labels: {kubernetes.io/service-name: istiod}}
addressType: IPv4
ports: [{name: grpc-xds, port: 15010}, {name: https-dns, port: 15012}]
endpoints: [{addresses: [` + Address + `], conditions: {ready: true}}]
`

// Istio starts an istiod, and makes the image of its gateways: Envoy, which envoy names, and
// Istio's agent. All kinds are defined that istiod reads. A Gateway of the class istio then
// gets pods and an address.
func (n *Node) Istio(ctx context.Context, envoy string, say func(string)) error {
	parts, err := kubeparts.Istio()
	if err != nil {
		return err
	}
	say("starting istiod")
	if err := n.definitions(ctx); err != nil {
		return err
	}
	if err := n.Apply(ctx, istiodService); err != nil {
		return err
	}
	injector, err := n.Helm(ctx, "template", "istiod", filepath.Join(parts, "chart"), "--namespace=istio-system",
		"--show-only=templates/istiod-injector-configmap.yaml", "--set=global.hub=localhost,global.tag=node,global.imagePullPolicy=Never")
	if err != nil {
		return err
	}
	if err := n.Apply(ctx, injector); err != nil {
		return err
	}
	if err := os.WriteFile(n.file("mesh.yaml"), []byte(mesh), 0o600); err != nil {
		return err
	}
	istiod, err := n.run("istiod", filepath.Join(parts, "pilot-discovery"), []string{
		"POD_NAME=istiod", "POD_NAMESPACE=istio-system", "SERVICE_ACCOUNT=istiod", "CLUSTER_ID=Kubernetes", "PILOT_CERT_PROVIDER=istiod",
		"ENABLE_GATEWAY_API_INFERENCE_EXTENSION=true", "PILOT_ENABLE_METADATA_EXCHANGE=false", "PILOT_ENABLE_ALPN_FILTER=false",
		"INJECTION_WEBHOOK_CONFIG_NAME=", "VALIDATION_WEBHOOK_CONFIG_NAME=", "PILOT_ENABLE_ANALYSIS=false",
	},
		"discovery", "--kubeconfig", n.Kubeconfig(), "--meshConfig", n.file("mesh.yaml"),
		"--monitoringAddr", ":15014", "--httpAddr", ":8080", "--domain", "cluster.local", "--log_output_level", "default:warn")
	if err != nil {
		return err
	}
	if err := await(ctx, istiod, func() bool { return page(ctx, http.DefaultClient, "http://127.0.0.1:8080/ready", "") }); err != nil {
		return err
	}
	say("making the gateways' image")
	files := map[string]string{
		"/usr/local/bin/pilot-agent":                     filepath.Join(parts, "pilot-agent"),
		"/var/lib/istio/envoy/envoy_bootstrap_tmpl.json": filepath.Join(parts, "envoy_bootstrap.json"),
		"/etc/istio/proxy":                               "",
	}
	if err := withLibraries(files, "/usr/local/bin/envoy", envoy); err != nil {
		return err
	}
	return n.Import(ctx, Image{Name: "localhost/proxyv2:node", Entrypoint: []string{"/usr/local/bin/pilot-agent"}, User: "1337:1337", Files: files})
}

// definitions defines the kinds of the Gateway API, of the inference extension, and of Istio.
func (n *Node) definitions(ctx context.Context) error {
	crds, err := kubeparts.Definitions()
	if err != nil {
		return err
	}
	if _, err := n.Kubectl(ctx, "", "apply", "--server-side", "-f", crds); err != nil {
		return err
	}
	if _, err := n.Kubectl(ctx, "", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"); err != nil {
		return err
	}
	var last error
	late := stack.Await(ctx, "the new kinds to be served", func() bool {
		_, last = n.Kubectl(ctx, "", "get", "inferencepools,gateways,httproutes,destinationrules,envoyfilters", "--all-namespaces")
		return last == nil
	})
	if late != nil {
		return fmt.Errorf("%w: %w", late, last)
	}
	return nil
}
