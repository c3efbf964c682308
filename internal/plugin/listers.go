package plugin

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/mesh"
	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
	"github.com/seed-60ae5743/baton/pkg/discovery/kubernetes"
)

// listersOf returns who lists the other replicas, and what has to be closed afterwards: a list of addresses,
// etcd if workers come from there, and a Service of Kubernetes. A dry process reaches none. There may be
// something to close after an error, too.
func listersOf(c *config.Config, dry bool) (out map[string]mesh.Lister, closers []io.Closer, err error) {
	leg, d := &c.Leg, &c.Discovery
	out = make(map[string]mesh.Lister)
	if len(leg.Replicas) > 0 {
		out["leg.replicas"] = func(ctx context.Context) ([]string, error) { return resolved(ctx, leg.Replicas) }
	}
	if len(d.Etcd.Endpoints) > 0 && !dry {
		conf, err := d.Etcd.Client()
		if err != nil {
			return nil, nil, err
		}
		client, err := etcd.Dial(conf)
		if err != nil {
			return nil, nil, err
		}
		closers = append(closers, client)
		list, err := etcd.NewReplicas(client, d.Etcd.Prefix, leg.Self())
		if err != nil {
			return nil, closers, err
		}
		closers = append([]io.Closer{list}, closers...)
		out["etcd "+strings.Join(d.Etcd.Endpoints, ",")] = list.List
	}
	if leg.ReplicasService == "" {
		return out, closers, nil
	}
	kubeconfig := ""
	if len(d.Kubernetes) > 0 {
		kubeconfig = d.Kubernetes[0].Kubeconfig
	}
	client, err := kubernetes.Dial(kubernetes.ClientConfig{Kubeconfig: kubeconfig, Agent: "baton/" + Version(), Nowhere: dry})
	if err != nil {
		return nil, closers, fmt.Errorf("leg.replicas_service: %w", err)
	}
	_, port, _ := net.SplitHostPort(leg.Self())
	namespace, name, _ := strings.Cut(leg.ReplicasService, "/")
	out["service "+leg.ReplicasService] = func(ctx context.Context) ([]string, error) {
		hosts, err := client.Endpoints(ctx, namespace, name)
		for i := range hosts {
			hosts[i] = net.JoinHostPort(hosts[i], port)
		}
		return hosts, err
	}
	return out, append(closers, client), nil
}

// resolved returns the addresses of members. That a name cannot be resolved is an error only if none can.
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
