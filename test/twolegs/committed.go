package twolegs

import "github.com/seed-60ae5743/baton/envoy"

// Committed returns the files of the folder envoy by name, as they must be.
func Committed() (map[string][]byte, error) {
	out := make(map[string][]byte)
	for name, p := range map[string]envoy.Params{
		"standalone.yaml":             {},
		"standalone-full-duplex.yaml": {FullDuplex: true},
		"standalone-prerouted.yaml": {
			Routing: "prerouted",
			Title:   "Baton in your own Envoy for schedulers that name workers themselves: the client listener is not for others.",
		},
		"standalone-picker.yaml": {
			PickerPort: 9003,
			Title:      "Baton in your own Envoy behind another endpoint picker, which chooses both workers.",
		},
		"standalone-tracing.yaml": {
			TracingHost: "127.0.0.1", TracingPort: 4317,
			Title: "Baton in your own Envoy, bodies buffered, with Envoy's own spans sent to an OTLP collector.",
		},
	} {
		b, err := envoy.Standalone(p)
		if err != nil {
			return nil, err
		}
		out[name] = b
	}
	return out, committedGateway(out)
}
