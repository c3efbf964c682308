package extproc

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// filter is what the metadata of a main leg's filter says about the requests that come
// through it. With the zero value no names of workers are obeyed.
type filter struct {
	leg.Way
	trust pin.Trust
	// headersOnly refuses names of workers in bodies, which come from clients. Names in
	// headers come from whoever may name workers, since the edge strips those of clients.
	headersOnly bool
	// shows says that Envoy sends the body of an answer here if it is asked to.
	shows bool
}

// strangeKey returns an error if the filter's metadata has an unknown key with the prefix
// x-baton-. A misspelt key would have no effect, and so would not keep out what it should.
func strangeKey(md metadata.MD) error {
	known := [...]string{filterKey, prefill.HeaderLeg, routingKey, routingRepickKey, routingFieldsKey, protocolKey, legsKey}
	strange := ""
	for key := range md {
		if strings.HasPrefix(key, "x-baton-") && !slices.Contains(known[:], key) && (strange == "" || key < strange) {
			strange = key
		}
	}
	if strange != "" {
		return fmt.Errorf("initial metadata %s is not known: expected none but %s; mend it on the ext_proc filter's grpc_service", strange, strings.Join(known[:], ", "))
	}
	return nil
}

// filterOf reads the filter's metadata. The error says what was expected.
func filterOf(md metadata.MD, plain bool) (filter, error) {
	var faults []error
	one := func(key string, allowed ...string) string {
		v := md.Get(key)
		if len(v) == 1 && slices.Contains(allowed, v[0]) {
			return v[0]
		}
		if len(v) > 0 {
			faults = append(faults, fmt.Errorf("initial metadata %s is %q: expected one of %q, or none; set it on the ext_proc filter's grpc_service", key, v, allowed))
		}
		return ""
	}
	routing, repick, fields := one(routingKey, "prerouted", "direct"), one(routingRepickKey, "true", "false"), one(routingFieldsKey, "believe", "refuse")
	protocol, shows, legs := one(protocolKey, protocolGateway, protocolOneLeg), one(errorsKey, "shown"), one(legsKey, "sent")
	if plain && routing+repick+fields+protocol+shows+legs != "" {
		faults = append(faults, fmt.Errorf("initial metadata says more than nothing, and not %s: set it to %s on the ext_proc filter's grpc_service", filterKey, filterMain))
	}
	trust := map[string]pin.Trust{"prerouted": pin.Prerouted, "direct": pin.Direct}[routing]
	speaks := leg.Own
	switch {
	case plain || protocol == protocolOneLeg:
		speaks = leg.PlainGateway
	case protocol != "":
		speaks = leg.Gateway
	}
	return filter{
		Way:   leg.Way{Repick: repick == "true", Speaks: speaks, Sends: legs == "sent"},
		trust: trust, headersOnly: fields == "refuse", shows: shows == "shown",
	}, errors.Join(faults...)
}
