package config

import (
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/seed-60ae5743/baton/internal/register"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// topologyFlags adds the flags that say in which domains a worker is and where its KV may
// go. The function that it returns checks them, and converts them for o.
func topologyFlags(fs *flag.FlagSet, o *register.Override) func() error {
	fs.Var((*list)(&o.Taints), "taints", "`taints` that requests may ask a worker to carry, separated by commas")
	domains := fs.String("topology", "", "topology `domains` and their values, as zone=us-east-1a,rack=r7; each is a taint, too")
	domain := fs.String("kv-transfer-domain", "", "topology `domain` that the KV of this prefill worker is not to leave")
	enforcement := fs.String("kv-transfer-enforcement", "required", "required: a decode worker outside of the domain never gets it; preferred: it costs more")
	weight := fs.Float64("kv-transfer-weight", 0, "`weight` of a preferred domain, above 0 and at most 1; raising it leaves the domain later")
	return func() error {
		var errs []error
		for _, pair := range splitList(*domains) {
			d, v, ok := strings.Cut(pair, "=")
			if !ok || d == "" || v == "" {
				errs = append(errs, fmt.Errorf("--topology %q: expected domain=value", pair))
				continue
			}
			if o.TopologyDomains == nil {
				o.TopologyDomains = make(map[string]string)
			}
			o.TopologyDomains[d] = v
		}
		e, err := worker.ParseEnforcement(*enforcement)
		if err != nil {
			errs = append(errs, fmt.Errorf("--kv-transfer-enforcement %q: expected required or preferred", *enforcement))
		}
		switch {
		case *domain != "":
			o.KVTransfer = worker.KVTransfer{Domain: *domain, Enforcement: e, Weight: *weight}
		case *weight != 0:
			errs = append(errs, fmt.Errorf("--kv-transfer-weight %v: expected --kv-transfer-domain with it", *weight))
		}
		return errors.Join(errs...)
	}
}
