package config

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
)

// Self is Advertise in the one form that all replicas use, as an owner's name has it: ports of
// Kubernetes' pods come as [10.0.0.1]:9002, since their addresses may be of either family.
func (c *LegConfig) Self() string {
	host, port, err := net.SplitHostPort(c.Advertise)
	if err != nil {
		return "" // not set
	}
	return net.JoinHostPort(host, port)
}

// Shares reports whether this process shares with other replicas what it has booked.
func (c *LegConfig) Shares() bool {
	return c.Advertise != "" && c.KeyFile != "" && unlessFalse(c.Share)
}

// In sets the namespace of what names none: pools, and the Service of replicas.
func (c *Config) In(namespace string) {
	c.Discovery.In(namespace)
	if s := &c.Leg.ReplicasService; *s != "" && !strings.Contains(*s, "/") {
		*s = namespace + "/" + *s
	}
}

// checkReplicas returns the faults of the settings that name other replicas.
func (c *LegConfig) checkReplicas() (errs []error) {
	for i, r := range c.Replicas {
		if !HostPort(r) {
			errs = append(errs, fmt.Errorf("leg.replicas[%d] (--leg-replicas) %q: expected host:port", i, r))
		}
	}
	if n := strings.Count(c.ReplicasService, "/"); n > 1 || strings.HasPrefix(c.ReplicasService, "/") || strings.HasSuffix(c.ReplicasService, "/") {
		errs = append(errs, fmt.Errorf("leg.replicas_service %q: expected the name of a Service, or namespace/name", c.ReplicasService))
	}
	if (len(c.Replicas) > 0 || c.ReplicasService != "") && (c.Advertise == "" || c.KeyFile == "") {
		errs = append(errs, errors.New("leg.replicas and leg.replicas_service: expected leg.advertise (--leg-advertise) and leg.key_file, too: replicas call each other at that address, and prove by that key that they are replicas"))
	}
	return errs
}

// LegKey reads the key that seals leg tokens; without a file it draws one.
func LegKey(file string) ([]byte, error) {
	if file == "" {
		key := make([]byte, 32)
		_, _ = rand.Read(key) // crypto/rand never fails
		return key, nil
	}
	key, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("leg.key_file %s: %w: expected a file of at least 16 bytes, or none to make a key at each start", file, errors.Unwrap(err))
	}
	if len(key) < 16 {
		return nil, fmt.Errorf("leg.key_file %s: holds %d bytes: expected at least 16", file, len(key))
	}
	return key, nil
}
