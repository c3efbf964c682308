package sources

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
	"github.com/seed-60ae5743/baton/pkg/discovery/kubernetes"
)

// ReplicasConfig says where the other replicas of the plugin are listed. Any may be empty. If workers come
// from etcd, replicas are listed there, too.
type ReplicasConfig struct {
	Self    string   // the address of this process, as others reach it
	Members []string // addresses; a name stands for all that it resolves to
	Service string   // whose pods in Namespace are replicas, at the port of Self
	// Namespace is that of the Service.
	Namespace string
}

// Replicas returns who lists the other replicas, by what is asked, and what has to be closed afterwards.
func (c *Config) Replicas(r ReplicasConfig, w World) (map[string]func(context.Context) ([]string, error), []io.Closer, error) {
	out := make(map[string]func(context.Context) ([]string, error))
	if len(r.Members) > 0 {
		out["leg.replicas"] = func(ctx context.Context) ([]string, error) { return resolved(ctx, r.Members) }
	}
	var closers []io.Closer
	if ofEtcd(c) && !w.Dry {
		conf, err := c.Etcd.Client()
		if err != nil {
			return nil, nil, err
		}
		client, err := etcd.Dial(conf)
		if err != nil {
			return nil, nil, err
		}
		list, err := etcd.NewReplicas(client, c.Etcd.Prefix, r.Self)
		if err != nil {
			_ = client.Close()
			return nil, nil, err
		}
		closers = append(closers, list, client)
		out["etcd "+strings.Join(c.Etcd.Endpoints, ",")] = list.List
	}
	if r.Service != "" {
		kubeconfig := ""
		if len(c.Kubernetes) > 0 {
			kubeconfig = c.Kubernetes[0].Kubeconfig
		}
		client, err := kubernetes.Dial(kubernetes.ClientConfig{Kubeconfig: kubeconfig, Agent: w.Agent, Nowhere: w.Dry})
		if err != nil {
			return nil, nil, fmt.Errorf("leg.replicas_service: %w", err)
		}
		closers = append(closers, client)
		_, port, _ := net.SplitHostPort(r.Self)
		out["service "+r.Namespace+"/"+r.Service] = func(ctx context.Context) ([]string, error) {
			hosts, err := client.Endpoints(ctx, r.Namespace, r.Service)
			for i := range hosts {
				hosts[i] = net.JoinHostPort(hosts[i], port)
			}
			return hosts, err
		}
	}
	return out, closers, nil
}

// resolved returns the addresses of members. A name that cannot be resolved is an error only if none can.
func resolved(ctx context.Context, members []string) (out []string, err error) {
	for _, m := range members {
		host, port, _ := net.SplitHostPort(m)
		addrs, fault := net.DefaultResolver.LookupHost(ctx, host)
		if fault != nil {
			err = fault
		}
		for _, a := range addrs {
			out = append(out, net.JoinHostPort(a, port))
		}
	}
	if len(out) > 0 {
		err = nil
	}
	return out, err
}
