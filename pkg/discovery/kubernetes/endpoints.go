package kubernetes

import (
	"context"
	"net/url"
)

// Endpoints returns the addresses of the pods behind a Service, ready or not, as its EndpointSlices have
// them. The account needs to list endpointslices of discovery.k8s.io.
func (c *Client) Endpoints(ctx context.Context, namespace, service string) ([]string, error) {
	var list struct {
		Items []struct {
			Endpoints []struct {
				Addresses []string `json:"addresses"`
			} `json:"endpoints"`
		} `json:"items"`
	}
	path := "/apis/discovery.k8s.io/v1/namespaces/" + url.PathEscape(namespace) + "/endpointslices"
	if err := c.getBy(ctx, path, url.Values{"labelSelector": {"kubernetes.io/service-name=" + service}}, &list); err != nil {
		return nil, err
	}
	var out []string
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			out = append(out, e.Addresses...)
		}
	}
	return out, nil
}
