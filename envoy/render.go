package envoy

import (
	"bytes"
	"embed"
	"encoding/base64"
	"fmt"
	"net"
	"strconv"
	"strings"
	"text/template"
)

//go:embed *.tmpl
var templates embed.FS

//go:embed gap.wasm
var gapModule []byte

// Gaps are the times, in seconds and rising, from which the plugin chooses how long a streamed
// answer may stand still.
var Gaps = []int{1, 2, 5, 10, 20, 40, 80, 160, 320}

// GapModule is the filter that looks the route of an answer up again, in base64.
func (v View) GapModule() string { return base64.StdEncoding.EncodeToString(gapModule) }

// Gaps are for the template.
func (v View) Gaps() []int { return Gaps }

// View is what the templates read. Protocol says that the main leg's filter is
// the one of the Gateway API protocol. Istio is for one template.
type View struct {
	GatewayParams
	Protocol bool
	Istio    IstioParams
}

// Sends reports whether the plugin sends every prefill leg itself.
func (v View) Sends() bool {
	return v.PluginSocket != "" && v.PrefillSocket != "" && !v.Protocol && !v.Mirrors
}

// Endpoint is one address of the pool.
type Endpoint struct{ Host, Port string }

// Endpoints are those of the pool.
func (v View) Endpoints() ([]Endpoint, error) { return endpoints("endpoint of the pool", v.Pool) }

// Others are the further replicas.
func (v View) Others() ([]Endpoint, error) { return endpoints("replica", v.Replicas) }

// Origins are the matchers of CORS.
func (v View) Origins() []string {
	out := make([]string, len(v.CORS))
	for i, origin := range v.CORS {
		out[i] = fmt.Sprintf("{exact: %q}", origin)
		if origin == "*" {
			out[i] = `{safe_regex: {regex: ".*"}}`
		}
	}
	return out
}

func endpoints(what string, addresses []string) ([]Endpoint, error) {
	out := make([]Endpoint, 0, len(addresses))
	for _, e := range addresses {
		host, port, err := net.SplitHostPort(e)
		if err != nil {
			return nil, fmt.Errorf("envoy: %s %q: %w", what, e, err)
		}
		out = append(out, Endpoint{host, port})
	}
	return out, nil
}

// Render executes one template. Two functions place a named part, which is
// written without indentation: `at` at n spaces, and `item`, which takes the one
// element of a list, as a value of its own. `host` writes an address as YAML reads it
// within braces, and `isName` says that Envoy has to look it up.
func Render(name string, v View) ([]byte, error) {
	t := template.New(name).Option("missingkey=error")
	part := func(name string, v View) (string, error) {
		var b strings.Builder
		err := t.ExecuteTemplate(&b, name, v)
		return b.String(), err
	}
	t.Funcs(template.FuncMap{
		"at": func(n int, name string, v View) (string, error) {
			s, err := part(name, v)
			return indent(s, n), err
		},
		"item": func(n int, name string, v View) (string, error) {
			s, err := part(name, v)
			s = strings.TrimPrefix(s, "- ") // and two spaces of the other lines
			return indent(strings.ReplaceAll(s, "\n  ", "\n"), n), err
		},
		"host": func(s string) string {
			if strings.Contains(s, ":") { // of IPv6
				return strconv.Quote(s)
			}
			return s
		},
		"isName": func(host string) bool { return net.ParseIP(host) == nil },
	})
	if _, err := t.ParseFS(templates, "*.tmpl"); err != nil {
		return nil, fmt.Errorf("envoy: template: %w", err)
	}
	var b bytes.Buffer
	if err := t.ExecuteTemplate(&b, name, v); err != nil {
		return nil, fmt.Errorf("envoy: render: %w", err)
	}
	return b.Bytes(), nil
}

// indent puts n spaces before each line that is not empty.
func indent(s string, n int) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = strings.Repeat(" ", n) + line
		}
	}
	return strings.Join(lines, "\n")
}
