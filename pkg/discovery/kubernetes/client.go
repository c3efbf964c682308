package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// ClientConfig says how the apiserver is reached.
type ClientConfig struct {
	// Kubeconfig is a file as kubectl reads it; its present context counts. Default: the
	// service account of the pod in which the process runs. A token that is in a file is
	// read again each minute, since the kubelet replaces it.
	Kubeconfig string
	// Agent is how the client names itself to the apiserver.
	Agent string
	// Nowhere allows a process outside of a pod without a kubeconfig, whose sources will
	// not run: a configuration is checked elsewhere than where it is used.
	Nowhere bool
}

// Client reaches one apiserver. Several sources may share one.
type Client struct {
	dynamic dynamic.Interface
	http    *http.Client
	base    *url.URL
}

// serviceAccountNamespace holds the namespace of the pod in which a process runs.
const serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// NamespaceHere returns the namespace of the pod in which the process runs, or "".
func NamespaceHere() string {
	b, err := os.ReadFile(serviceAccountNamespace)
	if err != nil {
		return ""
	}
	return string(b)
}

// Quiet silences the log of the client library, of which a process has one: what is wrong is
// told by the sources. It must be called while no source runs.
func Quiet() { klog.SetLogger(logr.Discard()) }

// Dial returns a client. It does not connect.
func Dial(c ClientConfig) (*Client, error) {
	conf, err := c.rest()
	if c.Nowhere && errors.Is(err, errNoPod) {
		conf, err = &rest.Config{Host: "127.0.0.1:1"}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	conf.UserAgent = c.Agent
	conf.WarningHandler = rest.NoWarnings{}
	web, err := rest.HTTPClientFor(conf)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	dyn, err := dynamic.NewForConfigAndClient(conf, web)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(conf)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	return &Client{dynamic: dyn, http: web, base: base}, nil
}

var errNoPod = errors.New("this process does not run in a pod (KUBERNETES_SERVICE_HOST is not set): set a kubeconfig")

func (c ClientConfig) rest() (*rest.Config, error) {
	if c.Kubeconfig == "" {
		conf, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errNoPod
		}
		return conf, err
	}
	conf, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}, &clientcmd.ConfigOverrides{},
	).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", c.Kubeconfig, err)
	}
	return conf, nil
}

// unreadKinds are, by their API group and version, the resources by which a cluster says how
// requests of a pool are to be treated, and which Baton does not read.
func unreadKinds() map[string][]string {
	return map[string][]string{
		"llm-d.ai/v1alpha2":                      {"InferenceObjective", "InferenceModelRewrite"},
		"inference.networking.x-k8s.io/v1alpha2": {"InferenceObjective", "InferenceModel", "InferenceModelRewrite"},
	}
}

// unread lists the kinds of unreadKinds that the cluster has. It reads the API's own
// directory, which every account may. What cannot be read counts as absent.
func (c *Client) unread(ctx context.Context) (out []string) {
	for group, kinds := range unreadKinds() {
		var list metav1.APIResourceList
		if c.getBy(ctx, "/apis/"+group, nil, &list) != nil {
			continue
		}
		for _, r := range list.APIResources {
			if slices.Contains(kinds, r.Kind) && !strings.Contains(r.Name, "/") {
				out = append(out, r.Kind+" ("+group+")")
			}
		}
	}
	slices.Sort(out)
	return out
}

// getBy reads a page of the API, by a query or none.
func (c *Client) getBy(ctx context.Context, path string, query url.Values, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	at := c.base.JoinPath(path)
	at.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	return json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(into)
}

// Host is where the apiserver is reached.
func (c *Client) Host() string { return c.base.Host }

// Close closes idle connections. The sources of the client must have ended.
func (c *Client) Close() error {
	utilnet.CloseIdleConnectionsFor(c.http.Transport)
	return nil
}
